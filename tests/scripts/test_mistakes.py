"""Mistakes of a person, one a row: what was typed, what is said about it, the next step, the exit code.

A message names what is wrong, and ends in the next step. The rows run through the commands themselves; the engine's answers are recorded ones.
"""

import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

import pytest

from gemma_serving.contracts.settings_files import shipped_files
from gemma_serving.contracts.stack_lock import StackLock
from gemma_serving.engine import runner
from gemma_serving.scripts.cli.command import run_command
from gemma_serving.scripts.gemma.__main__ import main as gemma

ROOT = Path(__file__).parents[2]
E2B = "plan --model google/gemma-4-E2B-it --accelerator"
NEXT_STEP = re.compile(
    r"(?:Run|Pass|Set|Add|Use|See|Write|Fix|Replace|Save|Choose|Change|Remove|Get|Raise) |Did you mean \S|Allowed: \S|Listed: \S|Commands: \S"
    r"|To (?:select|create|set) .*(?:run|pass) \S|This project deploys \S|expected \S|it must be \S|set \S|lower .* or raise "
    r"|a duration needs a unit, for example \S|a memory size needs its binary unit, for example \S|\S+ requires \S"
)
"""How a next step begins: a verb with its object, the words that are allowed, or the one that was probably meant."""
NO_SENTENCE = re.compile(r"Traceback|unhandled|Error:|\bNone\b|<[a-z_.]+ object|  |\.\.(?!\.)|\?\.|\n")


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """One row."""

    typed: str
    """Command line: the name of a command with its arguments, or `gemma` with its own."""
    wrong: str
    """What the message names."""
    step: str
    """The next step; the message ends with the sentence that it begins."""
    code: int = 2


def typed(line, wrong, step, code=2):
    return Mistake(typed=line, wrong=wrong, step=step, code=code)


COMMAND_LINES = (
    typed("status --stak tpu-v6e1", "--stak is not an option", "Did you mean --stack? See --help."),
    typed("connect chta", "chta is not a command", "Did you mean chat? See --help."),
    typed("connect tpu-v6e1", "tpu-v6e1 is not a command", "To select a stack, pass --stack tpu-v6e1. See --help."),
    typed(
        "plan --stack tpu-v6e1 --gke out.yaml",
        "out.yaml is not expected",
        "Add > out.yaml to write the output to a file. See --help.",
    ),
    typed("preview show", "show is not a command", "Commands: run, plans. See --help."),
    typed("logs", "--stack", "See --help."),
    typed("smoke", "No server selected", "Pass STACK or --url URL."),
    typed("teardown", "", "Pass either STACK or --all."),
    typed("save_token hftoken --stack tpu-v6e1", "KEY is 'hftoken'", "Did you mean hfToken?"),
    typed(
        "save_token hfToken --stack tpu-v6e1 --generate", "--generate supports only apiKey", "Get a Hugging Face token"
    ),
    typed(
        "doctor --project X", "--project is 'X'", "it must be a project id: 6 to 30 of a-z, 0-9 and -, a letter first."
    ),
)
NEW = (
    typed(
        "init Chat --model 12B",
        '"Chat"',
        "Use up to 30 lower-case letters, digits and hyphens, starting with a letter.",
    ),
    typed(
        "init tpu-v6e1 --model 12B",
        "Pulumi.tpu-v6e1.yaml already exists",
        "Choose another NAME or pass --force",
    ),
    typed("init chat --model gemma-4-12b-instruct", '"gemma-4-12b-instruct"', "Did you mean google/gemma-4-12B-it or "),
    typed("init chat --model 31B --budget 0.01", "$1.35/h exceeds --budget 0.01", "Change a limit and retry."),
    typed("init chat --model E2B --workload in=100", "requires a load", "Add users=N or rate=N to --workload."),
)
PLAN = (
    typed("plan --compare", "No deployment", "Pass STACK, or --model ID and --accelerator NAME."),
    typed("plan --model E2B", "No accelerator", "Pass --accelerator NAME, or --compare for all of them."),
    typed(
        "plan --model llama --accelerator L4",
        '"llama"',
        "Choose one of docs/reference/checkpoints.md, or set modelConfig",
    ),
    typed(
        f"{E2B} L4 --set vllm.maxModelLen=long", 'vllm.maxModelLen is "long"', "expected a whole number of 1 or more."
    ),
    typed("plan --stack tpu-v6e1 --write x", "--write", "Add --solve."),
    typed(
        "plan --stack tpu-v6e2",
        "Pulumi.tpu-v6e2.yaml not found",
        "Did you mean tpu-v6e1 or tpu-v6e4? To create it, run",
    ),
    typed("plan --stack xyzzy", "Pulumi.xyzzy.yaml not found", "To create it, run `gemma init xyzzy --model ID`."),
    typed(
        "plan --stack gone",
        "Pulumi.gone.yaml not found, but it is committed",
        "Run `git checkout Pulumi.gone.yaml` to restore it.",
    ),
    typed(
        "plan --stack emptied",
        "Pulumi.emptied.yaml has no settings",
        "Run `git checkout Pulumi.emptied.yaml` to restore it.",
    ),
)
BENCH = (
    typed("bench", "No server selected", "Pass STACK or --url URL."),
    typed("bench --stack l4-qat --url http://127.0.0.1:9", "STACK and --url cannot be combined", "Pass one of them."),
    typed("bench --url http://localhost:9", "--url is localhost", "Use 127.0.0.1."),
    typed(
        "bench --url http://127.0.0.1:9 --concurrency 0",
        "--concurrency is '0'",
        "it must be whole numbers of 1 or more, such as 1,8,64.",
    ),
    typed("bench --url http://127.0.0.1:9 --resume", "--resume requires the folder", "Pass --out DIR."),
    typed("bench compare a b", "a/results.jsonl: No such file", "Pass the folder of a sweep."),
)
GEMMA = (
    typed("gemma pln", "pln is not a command", "Did you mean plan? Run `gemma help` to list the commands."),
    typed("gemma completion tcsh", "'tcsh'", "Run `gemma completion bash | zsh | fish`."),
    typed("gemma status tpu-v6e2", "Stack tpu-v6e2 does not exist", "Did you mean tpu-v6e1 or tpu-v6e4? Pass an"),
)
NOT_EXISTING = "Run `gemma up tpu-v6e1` to deploy it."
NO_DEPLOYMENT = {
    "no state": (255, "", "error: no stack named 'tpu-v6e1' found\n"),
    "torn down": (0, '{"version": 3, "deployment": {}}', ""),
    "only its bucket": (
        0,
        """{"version": 3, "deployment": {"resources": [
            {"urn": "urn:pulumi:tpu-v6e1::gemma-serving::pulumi:pulumi:Stack::x", "type": "pulumi:pulumi:Stack",
             "outputs": {"target": "tpu", "model": "google/gemma-4-E2B-it"}},
            {"urn": "urn:pulumi:tpu-v6e1::gemma-serving::gcp:storage/bucket:Bucket::models", "id": "b", "type": "gcp:storage/bucket:Bucket"}]}}""",
        "",
    ),
}
ONLY_BUCKET = "No server exists, only bucket b, billed by size."
NOT_DEPLOYED = tuple(
    typed(f"{line} --stack tpu-v6e1", "Stack tpu-v6e1 is not deployed", "Run `gemma up tpu-v6e1`.")
    for line in (
        "status", "logs", "alerts", "connect", "smoke", "bench --out /nowhere", "up --restart",
    )
)  # fmt: skip
PLAN_X = "plan --stack x"
FILES = (
    (
        b"config: {}  # caf\xe9\n",
        typed(PLAN_X, "Pulumi.x.yaml is not UTF-8: byte 17 is 0xe9", "Save the file as UTF-8."),
    ),
)


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A project in git with the shipped stacks, one whose settings file is deleted, and one where the engine wrote another in its place."""
    folder = tmp_path_factory.mktemp("project")
    for path in (ROOT / "Pulumi.yaml", *shipped_files(ROOT)):
        shutil.copy(path, folder)
    for name in ("gone", "emptied"):
        shutil.copy(ROOT / "Pulumi.tpu-v6e1.yaml", folder / f"Pulumi.{name}.yaml")
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.com", "-c", "commit.gpgsign=false"]
    for words in (["init", "-q"], ["add", "."], [*identity, "commit", "-q", "-m", "x"]):
        subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True)
    (folder / "Pulumi.gone.yaml").unlink()
    (folder / "Pulumi.emptied.yaml").write_text(
        "encryptionsalt: v1:x=:v1:y:z==\n"
    )  # what the engine writes in its place
    return folder


@pytest.fixture
def project(template, monkeypatch):
    monkeypatch.chdir(template)
    monkeypatch.setattr("gemma_serving.scripts.plan.question.ROOT", template)
    yield template
    (template / "Pulumi.x.yaml").unlink(missing_ok=True)


@pytest.fixture(autouse=True)
def engine(monkeypatch):
    """The engine: it knows no stack. Its texts are recorded ones."""
    answers = {}

    def run(*arguments, **_):
        if arguments[:2] == ("stack", "ls"):
            return subprocess.CompletedProcess(arguments, 0, "[]", "")
        code, out, error = answers.get("any", (255, "", f"error: no stack named '{arguments[-1]}' found\n"))
        return subprocess.CompletedProcess(arguments, code, out, error)

    monkeypatch.setattr(runner, "run", run)
    return answers


def fault_of(message, row):
    """Return what is missing in a message; empty if nothing is."""
    body = message.partition(": ")[2].rstrip("\n")
    if found := NO_SENTENCE.search(body):
        return f"no sentence: {found[0]!r}"
    if row.wrong not in body:
        return f"what is wrong, {row.wrong!r}, is not named"
    at = body.rfind(row.step)
    if at < 0 or at < body.find(row.wrong) - len(row.step):
        return f"the next step, {row.step!r}, is lost"
    if not NEXT_STEP.match(row.step):
        return f"{row.step!r} is no next step"
    return "" if body.endswith((".", "?")) else "the end is lost"


def run_line(line):
    name, *words = shlex.split(line)
    if name == "gemma":
        return gemma(words)
    return run_command(import_module(f"gemma_serving.scripts.{name}.__main__").COMMAND, words)


def check(row, capsys):
    code = run_line(row.typed)
    out, message = capsys.readouterr()
    assert (code, out, message.count("\n")) == (row.code, "", 1), message
    assert fault_of(message, row) == "", message
    assert "hf_canary" not in message


def test_a_wrong_command_line_ends_in_the_next_step(project, capsys, subtests):
    for row in (*COMMAND_LINES, *NEW, *PLAN, *BENCH, *GEMMA):
        with subtests.test(row.typed):
            check(row, capsys)
    assert not (project / "Pulumi.chat.yaml").exists()


TOKEN = "hf_canaryABCDEFGHIJKLMNOPQRSTUVWX0123"


@pytest.mark.usefixtures("project", "engine")
@pytest.mark.parametrize(
    "line",
    [
        "gemma save_token tpu-v6e1 apiKey sk-canary",
        "gemma save_token apiKey sk-canary",
        "gemma save_token tpu-v6e1 sk-canary",
        f"gemma plan tpu-v6e1 --set vllm.maxModelLen={TOKEN}",
        f"gemma status {TOKEN}",
        f"gemma doctor tpu-v6e1 {TOKEN}",
        f"gemma {TOKEN}",
    ],
)
def test_a_secret_on_the_command_line_is_refused_and_not_printed(line, capsys):
    code = run_line(line)
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert "canary" not in err
    assert "evoke " in err


LONG = ("a" * 5_000, "/".join(["a" * 250] * 20))
"""A name and a path that no file can have."""
FILES_OF = [f"plan --stack tpu-v6e1 --set {key}" for key in ("modelConfig", "draftConfig", "prices")]
FILES_OF += [f"{E2B} v6e-1 --{option}" for option in ("config", "draft-config", "prices")]


@pytest.mark.parametrize("path", LONG, ids=["name", "path"])
@pytest.mark.parametrize(
    "line", [*FILES_OF, "init chat --model my/model --config", "gemma plan", "gemma up", "gemma status"]
)
def test_a_path_that_no_file_can_have_is_refused_in_a_sentence(project, capsys, line, path):
    separator = "=" if "--set" in line else " "
    assert run_line(f"{line}{separator}{path}") == 2
    message = capsys.readouterr().err.replace(path, "PATH")
    assert message.count("\n") == 1
    assert message.endswith(".\n")


@pytest.fixture
def no_logs(monkeypatch):
    """Google Cloud with an empty log. What would wait for ever fails."""
    monkeypatch.setattr("gemma_serving.scripts.logs.reading.follow", lambda *_, **__: pytest.fail("it waits for lines"))
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "my-project")
    monkeypatch.setattr("gemma_serving.cloud.google_api.connect", lambda *_: None)
    monkeypatch.setattr("gemma_serving.scripts.logs.reading.newest_lines", lambda *_: ())


@pytest.mark.usefixtures("project", "no_logs")
@pytest.mark.parametrize("state", NO_DEPLOYMENT)
def test_a_stack_that_serves_nothing_is_no_success(engine, capsys, subtests, state):
    engine["any"] = NO_DEPLOYMENT[state]
    for row in NOT_DEPLOYED:
        with subtests.test(row.typed):
            if state == "no state":
                row = replace(row, wrong="Stack tpu-v6e1 does not exist", step=NOT_EXISTING)  # noqa: PLW2901 - the same row
            elif state == "only its bucket":
                row = replace(row, wrong=ONLY_BUCKET)  # noqa: PLW2901 - the same row
            if state == "only its bucket" and row.typed.startswith("status"):
                assert run_line(row.typed) == 0
                assert ONLY_BUCKET in capsys.readouterr().out
            else:
                check(row, capsys)


@pytest.mark.usefixtures("project", "no_logs")
@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ((255, "", "error: PULUMI_ACCESS_TOKEN must be set for login during CLI sessions\n"), "is not logged in"),
        ((0, '{"version": 3, "depl', ""), "cannot be read"),
        ((255, "", "error: could not list bucket: blob (code=Unknown)\n"), "could not list bucket"),
    ],
)
def test_a_state_that_cannot_be_read_is_not_called_undeployed(engine, capsys, subtests, answer, says):
    engine["any"] = answer
    for line in ("status", "connect", "connect chat", "smoke", "bench --out /nowhere", "up --restart"):
        with subtests.test(line):
            assert run_line(f"{line} --stack tpu-v6e1") == 1
            out, message = capsys.readouterr()
            assert says in out.replace("\n", " ") + message
            assert "is not deployed" not in message
            assert "to deploy it" not in message


@pytest.mark.usefixtures("project", "no_logs")
def test_a_stack_that_is_locked_may_be_deployed_just_now(engine, capsys, monkeypatch):
    engine["any"] = NO_DEPLOYMENT["torn down"]
    held = StackLock(place="", user="ana", host="vm", pid=7, since="2026-11-23T10:00:00Z")
    for module in ("gemma_serving.scripts.stack.serves", "gemma_serving.scripts.stack.facts"):
        monkeypatch.setattr(f"{module}.stack_locks", lambda _: (held,))
    assert run_line("status --stack tpu-v6e1") == 0
    assert "ana@vm" in capsys.readouterr().out


def test_a_broken_settings_file_ends_in_the_next_step(project, capsys, subtests):
    for raw, row in FILES:
        with subtests.test(str(raw)):
            (project / "Pulumi.x.yaml").write_bytes(raw)
            check(row, capsys)
