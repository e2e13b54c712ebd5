"""What only reads runs no code of the project's folder, whatever a stranger has put into it. With the real commands, tools and engine."""

import json
import shlex
import subprocess
import sys

import anyio
import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from gemma_serving.contracts.installation import PROGRAM_FILES, product_program
from gemma_serving.contracts.settings_files import settings_file
from gemma_serving.scripts.agent.table import TOOLS
from gemma_serving.scripts.cli.command import Effect
from gemma_serving.scripts.cli.options import option_fields
from gemma_serving.scripts.gemma.catalog import ENTRIES
from tests.engine.conftest import LIMIT_S, PROJECT, ROOT
from tests.laws import examples

STACK = "l4-qat"
COLD_STARTS = True  # the folder has an interpreter of its own
READING = {
    "plan": ("STACK --live", "STACK --gke", "prices --dry-run"),
    "capacity": ("STACK",),
    "doctor": ("STACK",),
    "status": ("", "STACK --wake --tunnel"),
    "logs": ("STACK",),
    "alerts": ("STACK",),
    "chat": ("STACK hello",),
    "connect": ("STACK -- true",),
    "smoke": ("STACK",),
    "bench": ("STACK --preset quick", "compare results/a results/b"),
    "agent": ("code STACK",),
    "preview": ("plans --out plans.json",),
    "stage_model": ("STACK --list",),
    "teardown": ("STACK --dry-run", "--all --dry-run"),
    "": ("",),
}
"""Arguments with which a command reads, or sends requests to a server."""
RUNNING = ("up STACK --dry-run", "preview STACK", "status STACK --refresh")
"""Commands that change nothing, and run the program of the folder, as their help says."""
ARGUMENTS = {"plan": {"stack": STACK}, "compare": {"before": "results/a", "after": "results/b"}}
"""Arguments of tools whose commands need more or others than a stack."""
PROJECT_FILE = f"""\
{PROGRAM_FILES["Pulumi.yaml"].replace(".venv", "planted")}\
    - name: gcp
      path: planted/bin
"""
COMMANDS = """
import json, sys
sys.path.append(sys.argv[1])
from gemma_serving.scripts.gemma.__main__ import main
for words in json.loads(sys.argv[2]):
    main(words)
print("all ran")
"""
MODULES = ("json", "yaml", "mcp", "sitecustomize", "usercustomize", "pulumi", "gcp_tpu_provider", "loadtest")
PACKAGES = ("gemma_serving", "components", "scripts", "stacks")
PROGRAMS = ("python", "pulumi", "pulumi-language-python", "pulumi-resource-gcp", "pulumi-resource-gcp-tpu", "gcloud")


@pytest.fixture(scope="module")
def folder(workspace):
    """A folder with a deployed stack. Each of its files leaves a mark when it runs."""
    found, marks = workspace.folder / "planted", workspace.folder / "marks"
    found.mkdir()
    marks.mkdir()
    for name, text in PROGRAM_FILES.items():
        (found / name).write_text(text)
    (found / f"Pulumi.{STACK}.yaml").write_text(settings_file(STACK, ROOT).read_text())
    state = (ROOT / "tests" / "fixtures" / "state" / f"{STACK}.json").read_text().replace("my-project", PROJECT)
    for words in ("stack init", "stack import --force"):
        engine = [workspace.engine, *words.split(), "--non-interactive", "--stack", STACK]
        given = {"env": workspace.environment, "input": state, "text": True, "capture_output": True}
        subprocess.run(engine, cwd=found, check=True, **given)
    code = f"open({str(marks)!r} + '/' + __file__.replace('/', '!'), 'w')\n"
    for package in PACKAGES:
        (found / package).mkdir()
    modules = [
        *MODULES,
        *(f"{package}/{name}" for package in PACKAGES for name in ("__init__", "__main__")),
        "__main__",
    ]
    for module in modules:
        (found / f"{module}.py").write_text(code)
    for place in ("planted/bin", ".venv/bin"):
        (found / place).mkdir(parents=True)
        for name in PROGRAMS:
            program = found / place / name
            program.write_text(f'#!/bin/sh\ntouch "{marks}/{place.replace("/", "!")}!{name}"\n')
            program.chmod(0o755)
    (found / "Pulumi.yaml").write_text(PROJECT_FILE)
    return found


@pytest.fixture
def marks(workspace, folder):
    """Return the marks of the files that ran in a test."""
    place = workspace.folder / "marks"
    yield lambda: sorted(path.name for path in place.iterdir())
    for path in place.iterdir():
        path.unlink()


@pytest.fixture
def run(workspace, folder):
    """Run commands in the folder, as an installed `gemma` does, in one process."""

    def in_folder(lines):
        words = [shlex.split(line.replace("STACK", STACK)) for line in lines]
        argv = [sys.executable, "-P", "-c", COMMANDS, str(ROOT), json.dumps(words)]
        given = {
            "cwd": folder,
            "env": workspace.environment,
            "stdin": subprocess.DEVNULL,
            "capture_output": True,
            "text": True,
        }
        done = subprocess.run(argv, check=True, timeout=LIMIT_S, **given)
        assert done.stdout.endswith("all ran\n")
        assert "Traceback" not in done.stderr, done.stderr
        assert "See --help." not in done.stderr, done.stderr

    return in_folder


def test_every_command_that_only_reads_or_sends_is_tried():
    effects = {name: entry.whole().effect for name, entry in ENTRIES.items()}
    assert {name for name, effect in effects.items() if effect not in {Effect.CHANGES, Effect.DELETES}} <= {*READING}


def test_a_command_that_only_reads_runs_no_code_of_the_folder(run, marks):
    lines = [f"{command} {words}" for command, given in READING.items() for words in given]
    run(lines[:: examples(test=3, part=1, night=1)])
    assert marks() == []


@pytest.mark.parametrize("line", [*(pytest.param(line, marks=pytest.mark.long) for line in RUNNING[:-1]), RUNNING[-1]])
def test_a_command_that_runs_the_program_says_so_and_would_leave_a_mark(run, marks, line):
    run([line])
    assert "planted!bin!python" in marks()
    command = ENTRIES[line.split()[0]].whole()
    helps = [command.help, *(one.option.help for one in option_fields(command.options).values())]
    assert "runs the program of the " in " ".join(" ".join(helps).split())


READING_TOOLS = [tool.name for tool in TOOLS if not tool.changes]


@pytest.mark.parametrize(
    "reading", [("plan", "status", "preview"), pytest.param(READING_TOOLS, marks=pytest.mark.long)], ids=len
)
def test_a_tool_that_only_reads_runs_no_code_of_the_folder(workspace, folder, marks, reading):
    program, *words = product_program("gemma_serving.scripts.agent")
    parameters = StdioServerParameters(command=program, args=words, env=workspace.environment, cwd=str(folder))

    async def answers():
        async with Client(stdio_client(parameters), read_timeout_seconds=LIMIT_S) as client:
            found = {name: await client.call_tool(name, ARGUMENTS.get(name, {"stack": STACK})) for name in reading}
            return found, await client.call_tool("status", {"stack": STACK, "refresh": True})

    found, refreshed = anyio.run(answers)
    assert marks() == []
    for answer in (found.pop("preview"), refreshed):
        assert (
            "runs the program of the folder, and Pulumi.yaml is not as `gemma init` writes it" in answer.content[0].text
        )
    assert {name for name, answer in found.items() if not answer.is_error} >= {*reading} & {
        "plan",
        "prices",
        "doctor",
        "status",
    }
