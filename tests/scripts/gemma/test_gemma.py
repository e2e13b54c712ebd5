"""`gemma`: the stack as a word, defaults that are never guessed where something changes, suggestions, completion, the launcher."""

import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.contracts.spelling import meant
from gemma_serving.engine import runner
from gemma_serving.scripts.cli.options import option_fields
from gemma_serving.scripts.gemma import arguments as of_gemma
from gemma_serving.scripts.gemma import catalog
from gemma_serving.scripts.gemma.__main__ import main, overview
from gemma_serving.scripts.gemma.arguments import ListedStack, call_of, default_stack, with_stack
from gemma_serving.scripts.gemma.catalog import ENTRIES, SYNONYMS, command_rows, entry_of
from gemma_serving.scripts.gemma.completion import candidates

ROOT = Path(__file__).parents[3]


@pytest.fixture
def arguments(monkeypatch):
    """Return a function with the arguments that the command of `gemma NAME WORDS` gets."""
    monkeypatch.setattr(of_gemma, "default_stack", lambda _command: ("picked", "selected"))
    monkeypatch.setattr(runner, "listed_stacks", lambda: frozenset({"elsewhere"}))
    return lambda name, *words: list(with_stack(call_of(entry_of(name), words)))


def test_every_command_has_one_word():
    folders = {path.parent.name for path in (ROOT / "scripts").glob("*/__main__.py")} - {"gemma"}
    assert set(ENTRIES) == folders | {"chat"}


def test_a_new_folder_is_a_command(tmp_path, monkeypatch):
    (tmp_path / "hello").mkdir()
    (tmp_path / "hello" / "__main__.py").write_text('"""Say hello."""\n')
    monkeypatch.setattr(catalog, "_SCRIPTS", tmp_path)
    (entry,) = catalog.grouped_commands()["Other"]
    assert command_rows([entry]) == ["  hello  Say hello."]


@pytest.mark.parametrize("name", [name for name in ENTRIES if name != "init" and ENTRIES[name].whole().changes])
def test_a_command_that_changes_something_never_gets_a_default_stack(arguments, tmp_path, monkeypatch, name):
    (tmp_path / "Pulumi.yaml").write_text("name: gemma-serving\nruntime: python\n")
    for stack in ("chat", "search"):
        (tmp_path / f"Pulumi.{stack}.yaml").write_text("config: {}\n")
    monkeypatch.chdir(tmp_path)
    try:
        assert "picked" not in arguments(name)
    except CommandRefusedError as refused:
        assert str(refused) == f"No stack named. Stacks with a settings file: chat, search. Run `gemma {name} STACK`."


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ((), "No Pulumi.<stack>.yaml found. To create a stack, run `gemma init NAME --model ID`."),
        (("chat",), "No stack named. Run `gemma up chat`."),
    ],
)
def test_without_a_choice_of_stacks_the_refusal_has_the_command(arguments, tmp_path, monkeypatch, files, sentence):
    (tmp_path / "Pulumi.yaml").write_text("name: gemma-serving\nruntime: python\n")
    for stack in files:
        (tmp_path / f"Pulumi.{stack}.yaml").write_text("config: {}\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CommandRefusedError) as refused:
        arguments("up")
    assert str(refused.value) == sentence


@pytest.mark.parametrize("name", ["status", "up"])
def test_the_value_of_an_unknown_option_is_no_second_stack(arguments, name):
    assert arguments(name, "l4-qat", "--nosuch", "x") == ["--stack", "l4-qat", "x", "--nosuch"]


@pytest.mark.parametrize(
    ("words", "step"),
    [
        (("l4-qat", "tpu-v6e1"), "Run `gemma {} l4-qat` and `gemma {} tpu-v6e1`."),
        (("l4-qat", "nosuch"), "Run `gemma {} l4-qat`."),
        (("nosuch", "l4-qat", "--json"), "Run `gemma {} l4-qat`."),
        (("no", "such"), "Run `gemma` to list the stacks."),
    ],
)
@pytest.mark.parametrize("name", ["status", "up"])
def test_several_words_are_refused_by_a_command_of_one_stack(arguments, name, words, step):
    given = ", ".join(word for word in words if word[0] != "-")
    with pytest.raises(
        CommandRefusedError, match=re.escape(f"{name} takes one stack, not {given}. {step.format(name, name)}")
    ):
        arguments(name, *words)


def test_a_stack_may_have_the_name_of_a_command(arguments):
    for name in ENTRIES:
        assert arguments("connect", name, "--port", "80")[:2] == ["--stack", name]


def listing(monkeypatch, *found):
    monkeypatch.setattr(of_gemma, "known_stacks", lambda: [ListedStack(*one) for one in found])


def test_the_selected_stack_comes_before_the_only_deployed_one(monkeypatch):
    listing(monkeypatch, ("a", False, True), ("b", True, False))
    assert default_stack("smoke") == ("b", "selected")
    listing(monkeypatch, ("a", False, True), ("b", False, False))
    assert default_stack("smoke") == ("a", "the only one deployed")


@pytest.mark.parametrize(
    ("found", "reason"), [((), "No stack is deployed."), ((("a", False, True), ("b", False, True)), "Deployed: a, b.")]
)
def test_without_a_single_stack_the_command_is_refused_with_the_choice(monkeypatch, found, reason):
    listing(monkeypatch, *found)
    with pytest.raises(CommandRefusedError) as refused:
        default_stack("smoke")
    assert str(refused.value) == f"No stack named and none selected. {reason} Run `gemma smoke STACK`."


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        *((word, "To delete a stack, run `gemma teardown STACK`.") for word in ("delete", "destory")),
        ("destroy tpu-v6e1", "To delete a stack, run `gemma teardown tpu-v6e1`."),
        ("destroy --all", "To delete a stack, run `gemma teardown STACK`."),
        ("ls", "To list the stacks, run `gemma status`."),
        ("price", "To show the cost of a stack, run `gemma plan STACK --costs`."),
        ("deplyo x", "deplyo is not a command. To deploy a stack, run `gemma up STACK`."),
        ("launch tpu-v6e1", "To deploy a stack, run `gemma up tpu-v6e1`."),
        ("ssh tpu-v6e1", "To reach the server of a stack, run `gemma connect tpu-v6e1`."),
        ("version", "To show the version, run `gemma --version`."),
        ("tpu-v6e1 --help", "The command comes first: `gemma COMMAND tpu-v6e1`."),
        ("tpu-v6e2 up", "The command comes first: `gemma up tpu-v6e1` or `gemma up tpu-v6e4`."),
        ("up Pulumi.tpu-v6e1.yaml", "is not the name of a stack. Run `gemma up tpu-v6e1`."),
        ("chat ./Pulumi.tpu-v6e1.yaml", "is not the name of a stack. Run `gemma chat tpu-v6e1`."),
        ("up organization/gemma-serving/tpu-v6e1", "is not the name of a stack. Run `gemma up tpu-v6e1`."),
        ("plan tpu-v6e1 --set vllm.maxModelLen:4096", "Write --set vllm.maxModelLen=VALUE."),
        ("Pulumi.tpu-v6e1.yaml plan", "The command comes first: `gemma plan tpu-v6e1`."),
        ("preview tpu-v6e2", "Did you mean tpu-v6e1 or tpu-v6e4? To create it, run `gemma init tpu-v6e2 --model ID`."),
        ("preview plns", "plns is not a command. Did you mean plans? See --help."),
        ("create", "To write the settings of a new stack, run `gemma init NAME --model 12B`."),
        ("serve", "To deploy a stack, run `gemma up STACK`."),
        ("help destroy", "To delete a stack, run `gemma teardown STACK`."),
        ("--stack x plan", "The command comes first: `gemma COMMAND STACK`."),
        ("plan tpu-v6e1 tpu-v6e4", "Run `gemma plan tpu-v6e1` and `gemma plan tpu-v6e4`."),
    ],
)
def test_a_word_of_another_tool_is_answered_and_not_executed(words, sentence, capsys):
    assert main(words.split()) == ExitCode.REFUSED
    said = capsys.readouterr().err
    assert said.endswith(f"{sentence}\n")
    assert said.count("\n") == 1


DELETES = {"teardown", *(word for word, sentence in SYNONYMS.items() if "delete" in sentence)}
SPENDS = {
    "up",
    "stage_model",
    "deploy",
    "launch",
    "serve",
    "run",
    "apply",
    "init",
}


def misspelled(word):
    """Yield the word with each letter missing, doubled, and exchanged with its neighbour."""
    for at in range(len(word)):
        yield word[:at] + word[at + 1 :]
        yield word[:at] + word[at] + word[at:]
        yield word[:at] + word[at + 1 : at + 2] + word[at] + word[at + 2 :]


@pytest.mark.parametrize(("typed", "others"), [(DELETES, SPENDS), (SPENDS, DELETES)], ids=["deletes", "spends"])
def test_no_misspelling_leads_from_a_command_that_deletes_to_one_that_spends_or_back(typed, others):
    wrong = {one for word in typed for one in misspelled(word)} - set(ENTRIES) - set(SYNONYMS)
    assert len(wrong) > 50
    assert {one for one in wrong if set(meant(one, [*ENTRIES, *SYNONYMS])) & others} == set()


LEADS = [
    *((name,) for name in ENTRIES),
    *((name, sub.name) for name, entry in ENTRIES.items() for sub in entry.whole().subcommands if not sub.label),
]


@pytest.mark.parametrize("lead", LEADS, ids=" ".join)
def test_help_is_anywhere_in_the_line_and_its_usage_shows_the_stack(capsys, lead):
    for words in ((*lead, "tpu-v6e1", "--help"), ("help", *lead, "tpu-v6e1"), (*lead, "-h", "--nonsense", "-1")):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code in {0, None}
        call = call_of(entry_of(lead[0]), [*lead[1:], *(["tpu-v6e1"] if "tpu-v6e1" in words else [])])
        stack = option_fields(call.command.options).get("stack")
        shown = capsys.readouterr().out.partition("\n")[0]
        assert shown.startswith(f"usage: gemma {' '.join(lead)}")
        is_named = stack is not None or lead == ("preview",)  # `gemma preview STACK` is `gemma preview run STACK`
        assert ("STACK" in shown, "[STACK" in shown) == (is_named, stack is not None and not stack.is_required)


def test_the_overview_is_the_help_of_the_launcher(capsys):
    for words in (["help"], ["--help"], ["help", "help"], ["help", "--help"], ["-h", "-h"]):
        assert main(words) == ExitCode.DONE
        assert capsys.readouterr().out == overview()


def test_completion_has_a_help(capsys):
    for words in (["completion", "--help"], ["help", "completion"], ["completion", "zsh", "-h"]):
        assert main(words) == ExitCode.DONE
        assert capsys.readouterr().out.startswith("usage: gemma completion bash | zsh | fish\n")


def test_the_version_is_that_of_the_project(capsys):
    assert main(["--version"]) == ExitCode.DONE
    version = re.search(r'^VERSION.*"(.*)"', (ROOT / "gemma_serving/__init__.py").read_text(), flags=re.MULTILINE)[1]
    assert capsys.readouterr().out == f"gemma-serving {version}\n"


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["pl"], ["plan"]),
        (["plan", "l4"], ["l4-12b-qat", "l4-qat"]),
        (["chat", "--show"], ["--show-thinking"]),
        (["connect", "ch"], ["chat"]),
        (["completion", ""], ["bash", "fish", "zsh"]),
        (["unknown", ""], []),
        (["plan", "--model", "RedHatAI/gemma-4-12B-it-F"], ["RedHatAI/gemma-4-12B-it-FP8-Dynamic"]),
        (["init", "dev", "--model", "31"], ["31B"]),
        (["plan", "--model", "E2B", "--accelerator", "v5e"], ["v5e-1", "v5e-4", "v5e-8"]),
        (["capacity", "v6e-8"], ["v6e-8"]),
        (["plan", "l4-qat", "--set", "vllm.kv"], ["vllm.kvCacheDtype="]),
        (["plan", "--image", "vllm-tpu-w4a16-"], ["vllm-tpu-w4a16-experts"]),
        (["init", "dev", "--like", "l4-e"], ["l4-e2b-lora"]),
        (["bench", "l4-qat", "--preset", "q"], ["quick"]),
        (["up", "--stack", "l4-12"], ["l4-12b-qat"]),
        (["plan", "--finding", "FUS"], ["FUS01"]),
        (["logs", "l4-qat", "--lines", ""], []),
    ],
)
def test_completion_offers_commands_stacks_options_and_values(words, found):
    assert candidates(words) == found


def launched(path, *words, cwd):
    return subprocess.run([path, *words], capture_output=True, text=True, cwd=cwd, check=False)


def test_the_launcher_without_an_environment_names_the_command_that_makes_it(tmp_path):
    shutil.copy(ROOT / "gemma", tmp_path / "gemma")
    shown = launched(tmp_path / "gemma", "plan", cwd="/")
    assert (shown.returncode, shown.stdout) == (2, "")
    assert shown.stderr == f"gemma: the environment of {tmp_path} is missing. Run `make -C '{tmp_path}' setup`.\n"


@pytest.mark.parametrize(
    ("begins", "does", "ends"),
    [
        ("os.kill(os.getpid(), signal.SIGINT)", "print('ran')", -signal.SIGINT),
        ("", "os.kill(os.getpid(), signal.SIGINT)", 130),
    ],
    ids=["while Python imports", "later"],
)
def test_ctrl_c_at_the_start_shows_no_traceback_of_the_imports(tmp_path, begins, does, ends):
    shutil.copy(ROOT / "gemma", tmp_path / "gemma")
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").symlink_to(sys.executable)
    home = tmp_path / "gemma_serving" / "scripts" / "gemma"
    home.mkdir(parents=True)
    shutil.copy(ROOT / "gemma_serving" / "launcher.py", tmp_path / "gemma_serving")
    (home / "__main__.py").write_text(
        f"import os, signal\n{begins}\ndef main():\n  try: {does}\n  except KeyboardInterrupt: return 130\n"
    )
    shown = launched(tmp_path / "gemma", cwd="/")
    assert (shown.returncode, shown.stdout, shown.stderr) == (ends, "", "")
