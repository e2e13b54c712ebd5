"""Generate pages and tables of the documentation, and the data that distributions have of the project.

A generated file is written as a whole. A generated table is placed between `<!-- generated: NAME -->` and `<!-- end -->` in a handwritten
page. With --check nothing is written, and the exit code is 1 if a file is out of date.
"""

import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from gemma_serving.contracts.errors import ScriptError
from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.scripts.cli.command import Command, run_command
from gemma_serving.scripts.cli.options import Option

ROOT: Final = Path(__file__).parents[2]
COMMAND_LINE: Final = "make docs"
_MARKED: Final = re.compile(r"(<!-- generated: ([\w-]+) -->\n)(?:(?!<!-- generated).)*?(<!-- end -->)", re.DOTALL)


def _made(name: str) -> Any:  # noqa: ANN401  pages are texts, tables are texts by name
    """Return the result of the function `module:name`, or the output of a module. It is imported now: some imports take seconds."""
    return pkgutil.resolve_name(name)() if ":" in name else _printed_by(name)


def _printed_by(module: str, *arguments: str) -> str:
    """Run a generator in a separate process.

    The distributions are not imported by commands, and the components' host loads another copy of Google's messages than the provider does.
    """
    folders = (ROOT, ROOT / "packages", ROOT / "packages" / "gcp-tpu")
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise ScriptError(f"`python -m {module}` failed: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout


def printed_tables() -> Mapping[str, str]:
    """Return the tables of the distributions."""
    return {
        "ledger-counts": _printed_by("localcloud.ledger.page", "sentence"),
    }


PAGES: Final[Mapping[str, str]] = {
    "dev/docs/assumptions.md": "localcloud.ledger.page",
    "docs/reference/checkpoints.csv": "dev.authors.planning_tables:checkpoints_file",
    "docs/reference/commands.md": "dev.authors.commands_page:commands_page",
    "docs/reference/settings.md": "gemma_serving.stacks.reference:page",
    "docs/settings.schema.json": "gemma_serving.stacks.reference:schema_text",
    "packages/gcp-tpu/gcp_tpu_provider/machines.json": "dev.authors.planning_tables:provider_machines",
    "packages/localcloud/world/data/catalog.json": "dev.authors.planning_tables:local_cloud_catalog",
}
"""Generated files by path, and the functions or programs that write them. To add one, add a line here."""

TABLES: Final = (
    "dev.authors.component_tables:tables",
    "dev.authors.contract_tables:tables",
    "dev.authors.planning_tables:tables",
    "dev.authors.provider_tables:tables",
    "dev.authors.docs:printed_tables",
)
"""Sources of generated tables, by the names in their markers. To add one, add it here and add its markers to a page."""
JUDGED: Final = frozenset({"dev/docs/accuracy.md"})
"""Pages whose tables the judges write (dev/judges/pages.py)."""


@dataclass(frozen=True, kw_only=True)
class DocsOptions:
    """Options of the command."""

    check: Annotated[bool, Option("Only report which files are out of date.")] = False


def generated_files(root: Path) -> Mapping[Path, str]:
    """Return the expected text of each page with generated parts. Raises ScriptError for a marker without a table."""
    texts: dict[Path, str] = {root / path: _made(name) for path, name in PAGES.items()}
    tables = {name: text for source in TABLES for name, text in _made(source).items()}
    unused = set(tables)
    for path in sorted([*root.glob("*.md"), *root.glob("docs/**/*.md"), *root.glob("dev/docs/**/*.md")]):
        before = path.read_text(encoding="utf-8")
        known = path in texts or path.relative_to(root).as_posix() in JUDGED
        if not known and "<!-- generated: " in before:
            texts[path] = fill(before, tables, path.name)
            unused -= {match[2] for match in _MARKED.finditer(before)}
    if unused:
        raise ScriptError(f"No page has the marker `<!-- generated: {min(unused)} -->`. Add it and `<!-- end -->`.")
    return texts


def fill(page: str, tables: Mapping[str, str], name: str) -> str:
    """Return a page with its generated tables updated. Raises ScriptError for an unknown or unclosed marker."""
    if page.count("<!-- generated: ") != len(_MARKED.findall(page)):
        raise ScriptError(f"{name}: a `<!-- generated: NAME -->` has no `<!-- end -->`. Add it.")

    def filled(match: re.Match[str]) -> str:
        if match[2] not in tables:
            raise ScriptError(f"{name}: table {match[2]} not found. Known tables: {', '.join(sorted(tables))}.")
        return f"{match[1]}\n{tables[match[2]]}\n{match[3]}"

    return _MARKED.sub(filled, page)


def _docs(options: DocsOptions) -> ExitCode:
    return write_pages(generated_files(ROOT), check=options.check)


def write_pages(texts: Mapping[Path, str], *, check: bool) -> ExitCode:
    """Write the pages that are out of date, or with `check` only report them. Return the exit code of the command."""
    stale = [path for path, text in texts.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    outcome = f"is out of date. Run `{COMMAND_LINE}`." if check else "written."
    for path in stale:
        if not check:
            path.write_text(texts[path], encoding="utf-8")
        print(f"docs: {path.relative_to(ROOT).as_posix()} {outcome}")
    if not stale:
        print(f"docs: all {len(texts)} pages are up to date.")
    return ExitCode.FAILED if stale and check else ExitCode.DONE


COMMAND: Final = Command(name="docs", room="dev.authors", help=__doc__, options=DocsOptions, run=_docs)

if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
