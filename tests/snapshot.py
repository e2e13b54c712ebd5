"""`python -m tests.snapshot FOLDER`: write every interface of the project that users and programs rely on into text files.

Two checkouts are compared with `diff -r`: help of all commands, settings, outputs, rules, exit codes, JSON keys, the assistant's tools, `plan
--json` of every stack, and URNs. Only literal keys of the code's `to_json` functions are listed; fields of data classes are in help and outputs.
"""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from dev.authors.commands_page import all_commands
from dev.authors.contract_tables import tables
from dev.authors.planning_tables import rules_table
from gemma_serving.contracts.settings_files import shipped_files
from gemma_serving.scripts.gemma.__main__ import overview
from gemma_serving.stacks.reference import schema_text

ROOT: Final = Path(__file__).resolve().parents[1]
REFUSED: Final = (
    ("nonsense",),
    ("plan", "no-such-stack"),
    ("plan", "tpu-v6e1", "--no-such-option"),
    ("plan", "tpu-v6e1", "--set", "vllm.maxModelLen=many"),
    ("smoke", "no-such-stack"),
    ("teardown",),
)
"""Commands with invalid arguments. None of them needs a cloud."""


def files() -> Iterator[tuple[str, str]]:
    """Yield each file's name and text."""
    yield "help/gemma.txt", overview()
    for command in all_commands():
        for words in ([], *([sub.name] for sub in command.subcommands)):
            yield (
                f"help/{'-'.join([command.name, *words])}.txt",
                _run("-m", f"scripts.{command.name}", *words, "--help"),
            )
    yield "settings.schema.json", schema_text()
    yield "rules.md", rules_table()
    for name, table in tables().items():
        yield f"contracts/{name}.md", table
    yield "refusals.txt", "".join(_run("-m", "scripts.gemma", *words) for words in REFUSED)
    for folder, keys in sorted(json_keys().items()):
        yield f"json-keys/{folder}.txt", "\n".join(sorted(keys)) + "\n"
    for path in shipped_files(ROOT):
        stack = path.name.removeprefix("Pulumi.").removesuffix(".yaml")
        yield f"plans/{stack}.json", _run("-m", "scripts.plan", "--stack", stack, "--json")
    for path in sorted((ROOT / "tests" / "engine" / "golden").glob("*.urns")):
        yield f"urns/{path.name}", path.read_text(encoding="utf-8")


def json_keys() -> Mapping[str, set[str]]:
    """Return the literal keys of dictionaries in functions with `json` in their names, by the folder of `scripts`."""
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / "scripts").rglob("*.py")):
        functions = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef))
        for function in (node for node in functions if "json" in node.name):
            dicts = (node for node in ast.walk(function) if isinstance(node, ast.Dict))
            keys = {key.value for node in dicts for key in node.keys if isinstance(key, ast.Constant)}
            found.setdefault(path.relative_to(ROOT / "scripts").parts[0], set()).update(map(str, keys))
    return found


def _run(*words: str) -> str:
    """Return the output of Python in 80 columns, with the exit code if it is not 0."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "COLUMNS": "80", "HOME": "/nonexistent"},
    )
    ending = f"$ {' '.join(words)}\n{done.stderr}exit code {done.returncode}\n" if done.returncode else ""
    return done.stdout + ending


def main() -> int:
    """Write the files and return the exit code."""
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    folder = Path(sys.argv[1])
    written = dict(files())
    for name, text in written.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    print(json.dumps({"files": len(written), "folder": str(folder)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
