"""Generate pages and tables of the documentation, the provider's schema and its Python class.

A generated file is written as a whole. A generated table is placed between `<!-- generated: NAME -->` and `<!-- end -->` in a handwritten
page. With --check nothing is written, and the exit code is 1 if a file is out of date.
"""

import importlib
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, cast

from authors.gcp_resources import MODULES as GCP_MODULES
from contracts.errors import ScriptError
from contracts.exit_codes import ExitCode
from scripts.cli.command import Command, run_command
from scripts.cli.options import JsonSwitch, Option

ROOT: Final = Path(__file__).parents[1]
COMMAND_LINE: Final = "make docs"
_MARKED: Final = re.compile(r"(<!-- generated: ([\w-]+) -->\n)(?:(?!<!-- generated).)*?(<!-- end -->)", re.DOTALL)


def _accuracy_page() -> str:
    from authors.accuracy.corpus.measured import load
    from authors.accuracy.page import page
    from authors.accuracy.sweeps import all_points

    return page(load(), all_points())


def _settings_page() -> str:
    from stacks.reference import page

    return page()


def _settings_schema() -> str:
    from stacks.reference import schema_text

    return schema_text()


def _results_schema() -> str:
    from scripts.bench.result_schema import schema_text

    return schema_text()


def _contracts() -> Mapping[str, str]:
    from authors.contract_tables import tables

    return tables()


def _printed_by(module: str, *arguments: str) -> str:
    """Run a generator in a process of its own.

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


def _provider() -> Mapping[str, str]:
    return {
        "provider-properties": _printed_by("gcp_tpu_provider.reference"),
        "provider-states": _printed_by("gcp_tpu_provider.state_table"),
    }


def _ledger() -> Mapping[str, str]:
    return {"ledger-counts": _printed_by("localcloud.ledger.page", "sentence")}


def _local_cloud_catalog() -> str:
    """Return what Google offers, for the local cloud, which imports nothing of the project."""
    from planning.data.prices import PRICES
    from planning.machine.hardware import ACCELERATORS, CLOUD_RUN_GPUS, host_of

    gpus: dict[str, object] = {}
    for planned, name in CLOUD_RUN_GPUS.items():
        gpu, host = ACCELERATORS[planned].cloud_run, host_of(ACCELERATORS[planned], "cloud-run")
        gpus[name] = {
            "min_cpu": host.min_vcpu,
            "min_memory_gib": host.min_memory_gib,
            "max_cpu": host.most_vcpu,
            "max_memory_gib": host.max_memory_gib,
            "regions": [region for region in gpu.regions if region not in gpu.by_invitation],
            "new_project_quota": gpu.new_project_quota,
            "quota_metric": gpu.quota_metric,
            "quota_id": gpu.quota_id,
            "quota_units": gpu.quota_units,
        }
    prices = {key: {region: row.usd for region, row in price.regions.items()} for key, price in PRICES.items()}
    about = "Written by `make docs` from planning/data: edit machines.json and prices.json there."
    return json.dumps({"about": about, "gpus": gpus, "prices": prices}, indent=1) + "\n"


def _stacks_page() -> str:
    from authors.stacks_page import stacks_page

    return stacks_page(ROOT)


def _checkpoints_page() -> str:
    from authors.planning_pages import checkpoints_page

    return checkpoints_page()


def _rules_page() -> str:
    from authors.planning_pages import rules_page

    return rules_page()


def _commands_page() -> str:
    from authors.commands_page import commands_page

    return commands_page(all_commands())


def all_commands() -> Sequence[Command[Any]]:
    """Return the command of each module below `scripts` that has one, by name."""
    names = [f"scripts.{path.parent.name}.__main__" for path in (ROOT / "scripts").glob("*/__main__.py")]
    names.append("scripts.gemma.up")  # it has no module to run
    modules = [importlib.import_module(name) for name in names]
    found: list[Command[Any]] = [module.COMMAND for module in modules if hasattr(module, "COMMAND")]
    return sorted(found, key=lambda command: command.name)


def _gcp_resources(module: str) -> str:
    from authors.gcp_resources import module_text

    return module_text(module)


def _options() -> Mapping[str, str]:
    from authors.commands_page import options_table

    commands = {command.name: command for command in all_commands()}
    return {f"options-{name}": options_table(commands[name]) for name in WITH_OPTIONS}


def _planning() -> Mapping[str, str]:
    from authors.planning_pages import support_table
    from authors.solve_tables import goals_table, solve_table

    return {
        "support": support_table(),
        "solve": solve_table(),
        "solve-day": _solve_day("26B", hours=8),
        "solve-goals": goals_table(),
    }


def _solve_day(model: str, *, hours: int) -> str:
    """Return the command and the output of `scripts.plan --solve --hours-per-day` at 80 columns."""
    from rich.console import Console

    from scripts.plan.question import Comparison, Question, Solving
    from scripts.plan.solve import search, show

    workload = "in=4000,out=500,users=32"
    command = f"gemma plan --solve --workload {workload} --model {model} --hours-per-day {hours}"
    out = Console(file=io.StringIO(), width=80, color_system=None, highlight=False)
    show(search(Question(model=model, workload=workload), Comparison(), Solving(solve=True, hours_per_day=hours)), out)
    lines = (line.rstrip() for line in cast("io.StringIO", out.file).getvalue().splitlines())
    return "\n".join(("```console", f"$ {command}", *lines, "```")) + "\n"


PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "components/gcp_tpu.py": lambda: _printed_by("gcp_tpu_provider.python_sdk"),
    **{f"components/gcp/{module}.py": partial(_gcp_resources, module) for module in GCP_MODULES},
    "docs/authors/accuracy.md": _accuracy_page,
    "docs/authors/assumptions.md": lambda: _printed_by("localcloud.ledger.page"),
    "docs/bench-results.schema.json": _results_schema,
    "docs/reference/checkpoints.md": _checkpoints_page,
    "docs/reference/commands.md": _commands_page,
    "docs/reference/rules.md": _rules_page,
    "docs/reference/settings.md": _settings_page,
    "docs/reference/stacks.md": _stacks_page,
    "docs/settings.schema.json": _settings_schema,
    "packages/localcloud/world/data/catalog.json": _local_cloud_catalog,
}
"""Generated files by path. To add one, add a line here."""

WITH_OPTIONS: Final = ("capacity", "connect", "doctor", "logs", "new", "status", "teardown")
"""Commands whose pages list their options."""

TABLES: Final[tuple[Callable[[], Mapping[str, str]], ...]] = (
    _contracts,
    _provider,
    _planning,
    _options,
    _ledger,
)
"""Sources of generated tables, by the names in their markers. To add one, add it here and add its markers to a page."""


@dataclass(frozen=True, kw_only=True)
class DocsOptions:
    """Options of the command."""

    check: Annotated[bool, Option("Only report which files are out of date.")] = False
    as_json: JsonSwitch = False


def generated_files(root: Path) -> Mapping[Path, str]:
    """Return the expected text of each page with generated parts. Raises ScriptError for a marker without a table."""
    texts = {root / name: make() for name, make in PAGES.items()}
    tables = {name: text for source in TABLES for name, text in source().items()}
    unused = set(tables)
    for path in sorted([*root.glob("*.md"), *root.glob("docs/**/*.md")]):
        before = path.read_text(encoding="utf-8")
        if path not in texts and "<!-- generated: " in before:
            texts[path] = fill(before, tables, path.name)
            unused -= {match[2] for match in _MARKED.finditer(before)}
    if unused:
        raise ScriptError(f"No page has the marker `<!-- generated: {min(unused)} -->`. Add it and `<!-- end -->`.")
    return texts


def fill(page: str, tables: Mapping[str, str], name: str) -> str:
    """Return a page with its generated tables updated. Raises ScriptError for an unknown or unclosed marker."""
    if page.count("<!-- generated: ") != len(_MARKED.findall(page)):
        raise ScriptError(f"{name}: a `<!-- generated: NAME -->` has no `<!-- end -->`. Add it.")

    def table(match: re.Match[str]) -> str:
        if match[2] not in tables:
            raise ScriptError(f"{name}: table {match[2]} not found. Known tables: {', '.join(sorted(tables))}.")
        return f"{match[1]}\n{tables[match[2]]}\n{match[3]}"

    return _MARKED.sub(table, page)


def _docs(options: DocsOptions) -> ExitCode:
    texts = generated_files(ROOT)
    stale = [path for path, text in texts.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    names = [path.relative_to(ROOT).as_posix() for path in stale]
    if not options.check:
        for path in stale:
            path.write_text(texts[path], encoding="utf-8")
    if options.as_json:
        print(json.dumps({"pages": len(texts), "changed": names, "written": not options.check}))
    else:
        outcome = f"is out of date. Run `{COMMAND_LINE}`." if options.check else "written."
        for name in names:
            print(f"docs: {name} {outcome}")
        if not names:
            print(f"docs: all {len(texts)} pages are up to date.")
    return ExitCode.FAILED if stale and options.check else ExitCode.DONE


COMMAND: Final = Command(name="docs", room="authors", help=__doc__, options=DocsOptions, run=_docs)

if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
