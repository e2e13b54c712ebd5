"""What docs/compatibility.md promises to keep: each setting, output, command, option, exit code and JSON key that promised.txt lists exists.

A version adds its own names when it is released, with UPDATE_GOLDEN=1. The names of a part that a new Y removes are removed there, and
CHANGELOG.md says what to do.
"""

import re
from pathlib import Path

from dev.authors.commands_page import all_commands
from dev.authors.contract_tables import tables
from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.scripts.cli.command_line import described_options
from gemma_serving.stacks.package.schema import COMPONENTS, inputs_of, outputs_of
from gemma_serving.stacks.schema import blocks
from tests.golden import golden, if_meant
from tests.snapshot import json_keys

PROMISED = Path(__file__).with_name("promised.txt")


def names():
    for path, block in blocks():
        yield from (f"setting {path}.{key}" for key in block["properties"])
    for title, table in tables().items():
        yield from (f"{title} {name}" for name in re.findall(r"^(?:\|| *-) `([^`]+)`", table, re.MULTILINE))
    for command in all_commands():
        for each, words in ((command, ""), *((sub, f" {sub.name}") for sub in command.subcommands)):
            yield f"command {command.name}{words}"
            yield from (f"option {command.name}{words} {one.words}" for one in described_options(each.options))
    for name, component in COMPONENTS.items():
        yield from (f"package input {name}.{one.key}" for one in inputs_of(component, {}))
        yield from (f"package output {name}.{one.key}" for one in outputs_of(component, {}))
    yield from (f"exit code {int(code)} {code.name}" for code in ExitCode)
    for folder, keys in json_keys().items():
        yield from (f"json {folder} {key}" for key in keys)


def test_nothing_that_is_promised_is_missing():
    found = {*names()}
    assert len(found) > 600
    promised = golden(PROMISED, "\n".join(sorted(found)) + "\n")
    assert {*promised.splitlines()} - found == set(), if_meant()
