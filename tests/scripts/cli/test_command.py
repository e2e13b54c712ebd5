"""Every command reads its options, fails and ends in the same way."""

import io
import os
import re
import resource
import signal
import subprocess
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated

import pytest

from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.scripts.cli.command import Command, print_progress, run_command
from gemma_serving.scripts.cli.options import JsonSwitch, Option, StackName
from tests.polling import until
from tests.safetensors_files import safetensors

ROOT = Path(__file__).parents[3]
COMMANDS = sorted({path.parent.name for path in (ROOT / "scripts").glob("*/__main__.py")} - {"gemma"})
"""`gemma` starts the others."""
AUTHORS = ("demo", "docs", "release")
"""Commands of the authors: they are run from `dev/authors/`, and look alike."""


@dataclass(frozen=True, kw_only=True)
class Inner:
    """Things to set."""

    count: Annotated[int, Option("How many.", least=1, most=9)] = 2
    share: Annotated[float | None, Option("Which share.")] = None
    fast: Annotated[bool, Option("Be fast.", negatable=True)] = False


@dataclass(frozen=True, kw_only=True)
class Outer:
    """Options of a command."""

    inner: Inner
    folder: Annotated[Path, Option("Where.", flag="--from")]
    name: Annotated[tuple[str, ...], Option("Which.", repeated=True)] = ()
    as_json: JsonSwitch = False


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "The following arguments are required: --from. See --help."),
        (("--from", "x", "--cou", "3"), "--cou is not an option. Did you mean --count? See --help."),
        (("--form", "x"), "--form is not an option. Did you mean --from? See --help."),
        (("--from", "x", "--no-fats"), "--no-fats is not an option. Did you mean --no-fast? See --help."),
        (("--from", "x", "--colour=red"), "--colour is not an option. See --help."),
        (("--from", "x", "--share", "-1", "y"), "y is not expected. See --help."),
        (("--from", "x", "--count", "0"), "--count is '0'; it must be a whole number of 1 or more and 9 or less."),
        (("--from", "x", "--count", "10"), "--count is '10'; it must be a whole number of 1 or more and 9 or less."),
        (("--from", "x", "--count", "1.5"), "--count is '1.5'; it must be a whole number of 1 or more and 9 or less."),
        (("--from", "x", "--share", "nan"), "--share is 'nan'; it must be a number."),
    ],
)
def test_a_wrong_command_line_is_one_sentence_and_exit_code_2(words, sentence, capsys):
    command = Command(name="x", help="Do x.", options=Outer, run=lambda _options: ExitCode.DONE)
    assert run_command(command, words) == 2
    assert capsys.readouterr().err == f"x: {sentence}\n"


@dataclass(frozen=True, kw_only=True)
class OfStack:
    """Options of a command for a stack."""

    stack: StackName


def test_a_stack_with_organization_and_project_is_refused_with_its_name(capsys):
    command = Command(name="x", help="Do x.", options=OfStack, run=lambda _options: ExitCode.DONE)
    assert run_command(command, ["--stack", "acme/gemma-serving/l4-qat"]) == 2
    said = "--stack is 'acme/gemma-serving/l4-qat'; it must be the name alone: l4-qat."
    assert capsys.readouterr().err == f"x: {said}\n"


BUFFERED = {name: text for name, text in os.environ.items() if name != "PYTHONUNBUFFERED"}


def small_files():
    """Let no file of a child grow beyond 200 bytes, as on a full disk; /dev/full refuses each byte."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ("scripts.plan --stack tpu-v6e1 >/dev/full", "output"),
        ("scripts.gemma >/dev/full", "output"),
        ("scripts.preview run --stack tpu-v6e1 --out README.md", "README.md"),
        ("scripts.init full-{pid} --model 12B", f"{ROOT / 'Pulumi.full-'}"),
        (
            "scripts.bench --url {url} --concurrency 1 --output-tokens 8 --requests 2 --out {tmp}",
            "output",
        ),
    ],
)
def test_a_place_that_cannot_be_written_is_one_sentence_and_exit_code_1(line, place, tmp_path, url):
    """Tests may run as root, who may write to a read-only folder: a full device, a limit of the size, a file in place of a folder."""
    words, is_full, _ = line.format(tmp=tmp_path, url=url, pid=os.getpid()).partition(" >/dev/full")
    with Path("/dev/full" if is_full else os.devnull).open("w") as out:
        done = subprocess.run(
            [sys.executable, "-B", "-m", *words.split()],
            check=False,
            cwd=ROOT,
            env=BUFFERED,
            preexec_fn=small_files if "{" in line else None,
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
        )
    name = line.partition(" ")[0].removeprefix("scripts.")
    assert done.returncode == ExitCode.FAILED
    assert done.stderr.splitlines()[-1].startswith(f"{name}: Cannot write {place}")
    assert "Traceback" not in done.stderr
    assert not list(ROOT.glob("Pulumi.full-*")), "half a settings file would be in the way of the next try"


def module_of(command):
    return f"{'dev.authors' if command in AUTHORS else 'scripts'}.{command}"


def test_a_line_of_progress_is_written_at_once_because_threads_report_too(monkeypatch):
    written = []
    stream = SimpleNamespace(write=written.append, flush=lambda: None, isatty=lambda: False)
    monkeypatch.setattr(sys, "stderr", stream)
    print_progress("teardown", "router a: deleted")
    assert list(filter(None, written)) == ["teardown: router a: deleted\n"]


HELP = """
import runpy, sys
heavy = {'pydantic', 'rich', 'requests', 'yaml', 'aiohttp', 'google.auth', 'pulumi', 'typer', 'jinja2', 'prometheus_client', 'pygal'}
for module in sys.argv[1:]:
    sys.argv = [module.partition('.')[2], '--help']
    try: runpy.run_module(module, run_name='__main__', alter_sys=True)
    except SystemExit: pass
    print('loaded:', module, sorted(heavy & set(sys.modules)))
"""


def test_the_limits_that_up_and_doctor_read_load_no_classes_of_resources():
    words = [
        sys.executable,
        "-c",
        "import sys, gemma_serving.stacks.hooks.run_recorder; print('pulumi_gcp' in sys.modules)",
    ]
    assert subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout == "False\n"


def test_help_answers_at_once_without_loading_the_commands_work():
    """Heavy libraries are loaded when the options are read, so that Ctrl-C and mistakes end a command with one sentence at any time."""
    modules = [module_of(command) for command in (*COMMANDS, *AUTHORS)]
    command = [sys.executable, "-c", HELP, *modules]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
    assert re.findall("^loaded: .*", shown, re.MULTILINE) == [f"loaded: {module} []" for module in modules]
    assert shown.count("Exit codes: docs/reference/commands.md") == len(modules)
    for command in (*COMMANDS, *AUTHORS):
        assert f"usage: {'python -m dev.authors.' if command in AUTHORS else 'gemma '}{command}" in shown


STOPPABLE = [
    ("alerts", "--stack", "l4-qat"),
    ("bench", "--stack", "l4-qat", "--out", "out"),
    ("connect", "--stack", "l4-qat"),
    ("doctor", "--stack", "l4-qat"),
    ("logs", "--stack", "l4-qat"),
    ("preview", "run", "--stack", "l4-qat", "--out", "out"),
    ("save_token", "hfToken", "--stack", "l4-qat"),
    ("smoke", "--stack", "l4-qat"),
    ("stage_model", "--stack", "l4-qat", "--from", "checkpoint"),
    ("status", "--stack", "l4-qat"),
    ("teardown", "--stack", "l4-qat", "--yes"),
    ("up", "--stack", "l4-qat", "--yes"),
]
"""Commands that ask the engine first."""
WITHOUT_ENGINE = [
    ("agent",),
    ("capacity", "v6e-4"),
    ("demo",),
    ("docs",),
    ("init", "mine", "--model", "E2B"),
    ("plan", "--stack", "l4-qat"),
    ("release", "build", "--out", "out"),
]
"""Commands whose first work is something else."""
ENGINE_THAT_WAITS = """
from gemma_serving.engine import runner
runner.pulumi = lambda: "./pulumi"
"""
WORK_THAT_WAITS = """
import pathlib, shutil, time
from gemma_serving.scripts.cli import command
clear = shutil.rmtree
class Waiting:
    def find_spec(self, *_, **__):
        sys.meta_path[:] = [each for each in sys.meta_path if each is not self]
        shutil.rmtree = clear
        pathlib.Path("started").touch()
        for _ in range(600):
            time.sleep(0.1)
waiting = Waiting()
def read(*arguments, known=command._read):
    found = known(*arguments)
    sys.meta_path.insert(0, waiting)
    shutil.rmtree = waiting.find_spec
    return found
command._read = read
"""
"""The first module that a command loads for its work never comes, and no folder is ever cleared, which is the first work of the demo. Only the first wait
lasts: what follows the interrupt may import and clear. It is many sleeps, because Python acts on a signal between two: one that comes after its last
look and before the system's sleep does not end that sleep."""


def test_no_command_is_forgotten():
    tried = {words[0] for words in [*STOPPABLE, *WITHOUT_ENGINE]}
    assert tried <= {*COMMANDS, *AUTHORS}
    forgotten = sorted({*COMMANDS, *AUTHORS} - tried)
    assert not forgotten, (
        f"add {forgotten} with arguments to STOPPABLE if it starts the engine, else to WITHOUT_ENGINE: Ctrl-C is tried there"
    )


@pytest.mark.parametrize("words", [*STOPPABLE, ("init", "mine", "--model", "E2B")])
def test_no_command_runs_the_program_of_another_project_or_writes_into_its_folder(tmp_path, words, monkeypatch, capsys):
    (tmp_path / "pulumi").write_text("#!/bin/sh\ntouch started\n")
    (tmp_path / "pulumi").chmod(0o755)
    (tmp_path / "Pulumi.yaml").write_text("name: my-infra\nruntime: python\n")
    (tmp_path / "Pulumi.l4-qat.yaml").write_text((ROOT / "Pulumi.l4-qat.yaml").read_text())
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gemma_serving.engine.runner.pulumi", lambda: str(tmp_path / "pulumi"))
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "my-project")
    monkeypatch.setattr("sys.stdin", io.StringIO(f"hf_{'a' * 34}\n"))
    assert (
        run_command(import_module(f"gemma_serving.scripts.{words[0]}.__main__").COMMAND, list(words[1:]))
        != ExitCode.DONE
    )
    sentence = (
        "This folder is the project my-infra. Make a folder for gemma: `mkdir serving && cd serving && gemma init NAME`"
    )
    printed = capsys.readouterr()
    assert sentence in " ".join((printed.out + printed.err).split())
    assert [path for path in sorted(tmp_path.rglob("*")) if path.name != "out"] == before


def slow_unless(words, *names):
    return pytest.param(words, id=words[0], marks=() if words[0] in names else pytest.mark.long)


@pytest.mark.parametrize("words", [slow_unless(words, "teardown", "bench", "preview") for words in STOPPABLE])
def test_ctrl_c_while_the_engine_works_is_one_sentence_and_exit_code_130(tmp_path, words):
    while_the_engine_works(tmp_path, words, signal.SIGINT)


@pytest.mark.parametrize("words", [slow_unless(words, "teardown") for words in STOPPABLE])
def test_sigterm_while_the_engine_works_is_one_sentence_and_exit_code_130(tmp_path, words):
    """All commands take it in the same place (scripts.cli.command)."""
    while_the_engine_works(tmp_path, words, signal.SIGTERM)


def while_the_engine_works(tmp_path, words, signum):
    """A `pulumi` that never answers stands in for the engine. The signal goes to the command alone, and reaches the engine."""
    engine = tmp_path / "pulumi"
    engine.write_text("#!/bin/sh\ntouch started\nexec sleep 600\n")
    engine.chmod(0o755)
    ends_with_one_sentence(tmp_path, words, signum, ENGINE_THAT_WAITS)


@pytest.mark.parametrize("words", [slow_unless(words, "agent", "demo", "plan") for words in WITHOUT_ENGINE])
def test_an_interrupt_from_its_beginning_is_one_sentence_and_exit_code_130(tmp_path, words):
    ends_with_one_sentence(tmp_path, words, signal.SIGINT, WORK_THAT_WAITS)


def ends_with_one_sentence(folder, words, signum, preparation):
    name, *arguments = words
    starter = (
        f"import sys, runpy\n{preparation}\nsys.argv = [{name!r}, *{arguments!r}]\n"
        f"runpy.run_module('{module_of(name)}', run_name='__main__', alter_sys=True)"
    )
    environment = {
        **os.environ,
        "GOOGLE_CLOUD_PROJECT": "my-project",
        "GOOGLE_OAUTH_ACCESS_TOKEN": "a-token",
        "PYTHONPATH": str(ROOT),
    }
    (folder / "token").write_text(f"hf_{'a' * 34}\n")
    if name != "init":
        (folder / "Pulumi.yaml").write_text("name: gemma-serving\n")
    (folder / "Pulumi.l4-qat.yaml").write_text((ROOT / "Pulumi.l4-qat.yaml").read_text())
    (folder / "checkpoint").mkdir()
    (folder / "checkpoint" / "config.json").write_text("{}")
    (folder / "checkpoint" / "model.safetensors").write_bytes(safetensors(b"\0" * 64))
    with (folder / "token").open() as token:
        process = subprocess.Popen(
            [sys.executable, "-c", starter],
            cwd=folder,
            env=environment,
            stdin=token,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    until((folder / "started").exists, "the command starts", process=process)
    os.kill(process.pid, signum)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    last = errors.strip().splitlines()[-1]
    assert last.startswith(f"{name}: interrupted.")
