"""`gemma plan --compile`: what is asked, what is said about the answer, and with which exit code."""

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dev.judges.plan import COMMAND
from dev.judges.tests.tpu_compiler.judge import BUILT, PROGRAMS, REFUSED, STAGES, answered, given, interpreter
from dev.judges.tpu_compiler import environment
from dev.judges.tpu_compiler import judged_plan as compiling
from dev.judges.tpu_compiler.judged_plan import compile_question
from dev.judges.tpu_compiler.question import topologies
from gemma_serving.contracts.settings_files import shipped_files
from gemma_serving.planning.cost.subject import examine
from gemma_serving.planning.planner import plan_of
from gemma_serving.scripts.cli.command import run_command
from gemma_serving.scripts.plan.plan_options import QuestionOptions
from gemma_serving.scripts.plan.question import question_from
from tests.polling import until
from tests.stacks.failed_start import context_of

ROOT = Path(__file__).resolve().parents[3]
E2B = ("--stack", "tpu-v6e1", "--compile")
TPU_STACKS = [path.name.split(".")[1] for path in shipped_files(ROOT) if path.name.startswith("Pulumi.tpu-")]


@pytest.fixture(autouse=True)
def _cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def judge(monkeypatch, tmp_path):
    """Install an interpreter that prints these events. Returns the folder with what it was given."""

    def prepare(events, end=""):
        python = interpreter(tmp_path, events, end)
        monkeypatch.setattr(environment, "installed", lambda wheels: python)
        return tmp_path

    return prepare


@pytest.fixture
def run(capsys):
    """Run `gemma plan`; returns exit code, stdout and stderr."""

    def ran(*arguments):
        code = run_command(COMMAND, [*arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return ran


def asked(**words):
    question = QuestionOptions(**words)
    subject = examine(question_from(question))
    return compile_question(question, subject, plan_of(subject), "default")


@pytest.mark.parametrize("stack", TPU_STACKS)
def test_the_judge_gets_the_words_that_the_stack_sends(stack: str):
    question = asked(stack=stack)
    context = context_of(compiling.settings_of(QuestionOptions(stack=stack)))
    assert question.arguments == tuple(context.arguments)
    assert question.environment == dict(context.plan.environment)


def test_without_a_stack_the_judge_gets_the_planned_options():
    question = asked(model="google/gemma-4-31B-it", accelerator="v6e-4", set=("vllm.maxModelLen=8192",))
    assert question.arguments[0] == "google/gemma-4-31B-it"
    assert "--max-model-len=8192" in question.arguments
    assert "--tensor-parallel-size=4" in question.arguments
    assert (question.devices, question.usable_gib, question.topology) == (4, 31.24, topologies()["v6e-4"])


def test_of_several_copies_the_first_is_judged_on_its_own_chips(tmp_path):
    question = asked(stack="tpu-v6e4", set=("vllm.dataParallelSize=2", "vllm.tensorParallelSize=2"))
    request = json.loads(question.write(tmp_path).read_text())
    assert (request["topology"], request["chips_per_host"], request["devices"]) == ("v6e:1x2", [1, 2, 1], 2)
    assert request["environment"]["TPU_MULTIPROCESS_DP"] == "1"
    assert request["accelerator_type"] == "v6e-4"


def test_a_config_of_the_users_is_used_as_it_is(tmp_path):
    folder = ROOT / "tests" / "fixtures" / "models" / "other-8b"
    question = asked(model="org/other", config=folder, accelerator="v6e-4")
    assert question.config == json.loads((folder / "config.json").read_text())


def test_a_four_bit_checkpoint_says_so_in_its_config():
    assert "quantization_config" in asked(stack="tpu-v6e1-31b-w4a16").config
    assert "quantization_config" not in asked(stack="tpu-v6e1").config


def test_a_draft_model_is_a_folder_of_the_request(tmp_path):
    name = "google/gemma-4-31B-it-assistant"
    spec = f'vllm.speculativeConfig={{"model":"{name}","num_speculative_tokens":3}}'
    question = asked(model="google/gemma-4-31B-it", accelerator="v6e-4", set=(spec,))
    request = json.loads(question.write(tmp_path).read_text())
    assert str(tmp_path / "drafter") in next(word for word in request["arguments"] if "speculative" in word)
    assert not any(name in word for word in request["arguments"])
    assert json.loads((tmp_path / "drafter" / "config.json").read_text())["model_type"] == "gemma4_assistant"


def test_without_a_terminal_the_command_to_type_is_named_and_nothing_is_installed(run, monkeypatch):
    monkeypatch.setattr(environment, "install", lambda *_, **__: pytest.fail("installed"))
    code, out, err = run(*E2B)
    assert code == 2
    assert "`gemma plan tpu-v6e1 --compile --yes`" in err
    assert "GB to download" in err
    assert "fits" in out


def test_with_yes_it_is_installed_without_a_question(run, judge, monkeypatch, tmp_path):
    python = interpreter(tmp_path, answered())
    monkeypatch.setattr(environment, "install", lambda wheels, *, report: report("downloading") or python)
    code, out, err = run(*E2B, "--yes")
    assert code == 0
    assert "plan: downloading" in err
    assert "The plan agrees" in out


def test_on_a_terminal_it_is_asked_once(tmp_path):
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "dev.judges.plan", *E2B],
        stdin=follower,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")},
    )
    shown = b""
    while b"(yes/no)" not in shown:  # what is typed before the question is dropped
        shown += os.read(process.stderr.fileno(), 4096)
    os.write(leader, b"n\n")
    _, rest = process.communicate()
    shown += rest
    assert process.returncode == 2
    assert shown.decode().count("(yes/no)") == 1
    assert "Nothing was installed, and the plan was not judged." in shown.decode()


def test_an_answer_that_agrees_is_shown_next_to_the_plan(run, judge):
    judge(answered())
    code, out, _ = run(*E2B)
    assert code == 0
    words = " ".join(out.split())
    assert "weights, GiB │ 8.970 │ 8.970 │" in words
    assert "4,356 │ 4,356 │ +0" in words
    assert "step (4,096 tokens) │ 0.586 │ 55.0 │ 175" in words
    assert "sampler (256 sequences) │" in words
    assert (
        "(3 of 199) need 0.75 GiB: 0.59 for the largest one while it runs and 0.16 for code, within the planned minimum"
        in words
    )
    assert "The plan agrees: weights and KV cache within 0.2%, blocks equal." in words
    assert "0.30.0" in words


def test_a_stored_answer_starts_no_child_and_needs_no_installation(run, judge, monkeypatch):
    folder = judge(answered())
    run(*E2B)
    (folder / "given.json").unlink()
    with monkeypatch.context() as absent:
        absent.setattr(environment, "installed", lambda wheels: None)
        code, out, _ = run(*E2B, "--json")
    compiled = json.loads(out)["compiled"]
    assert (code, compiled["is_stored"], given(folder)) == (0, True, None)
    assert run(*E2B[:2], "--compile", "all", "--json")[0] == 0
    assert given(folder)["request"]["programs"] == "all"


def test_a_child_without_an_answer_is_not_judged_and_nothing_is_stored(run, judge):
    folder = judge(answered()[:3], "os.kill(os.getpid(), signal.SIGKILL)")
    code, out, _ = run(*E2B, "--json")
    compiled = json.loads(out)["compiled"]
    assert (code, compiled["verdict"], compiled["is_stored"]) == (1, "not judged", False)
    assert "killed (exit -9)" in compiled["sentence"]
    judge(answered())
    (folder / "given.json").unlink()
    assert run(*E2B, "--json")[0] == 0
    assert given(folder) is not None, "an answer that is none was stored"


def test_the_answer_in_json(run, judge):
    judge(answered(weights_gib=4.485))
    code, out, _ = run(*E2B, "--json", "--explain")
    compiled = json.loads(out)["compiled"]
    assert code == 0
    keys = "verdict sentence gap versions planned built programs all_programs refusal is_stored seconds replaced"
    assert list(compiled) == keys.split()
    assert compiled["verdict"] == "differs"
    assert compiled["built"] == {key: value for key, value in BUILT.items() if key != "event"} | {"weights_gib": 4.485}
    assert compiled["programs"] == [{key: one[key] for key in one if key != "event"} for one in PROGRAMS]
    assert (compiled["refusal"], compiled["seconds"], compiled["all_programs"]) == (None, 214.5, 199)
    assert all(one["could_hide"] for one in compiled["replaced"])


def test_explained_it_lists_what_the_judge_replaces_and_the_versions(run, judge):
    judge(answered())
    out = " ".join(run(*E2B, "--explain")[1].split())
    assert "jax.device_put: the shape" in out
    assert "tpu-inference 0.29.0.dev20260924" in out


def test_no_secret_is_in_the_request_or_the_childs_environment(run, judge, monkeypatch):
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "GOOGLE_APPLICATION_CREDENTIALS", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "canary-secret")
    folder = judge(answered())
    run(*E2B)
    assert "canary" not in (folder / "given.json").read_text()


def test_an_interrupt_ends_the_child(tmp_path):
    python = interpreter(
        tmp_path, STAGES[:1], f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    )
    program = (
        "import sys; from pathlib import Path; from dev.judges.tpu_compiler import environment;"
        f"environment.installed = lambda wheels: Path({str(python)!r});"
        "from dev.judges.plan import COMMAND; from gemma_serving.scripts.cli.command import run_command; sys.exit(run_command(COMMAND, sys.argv[1:]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, *E2B],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "TMPDIR": str(tmp_path)},
    )
    until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "the child starts", process=process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    child = int((tmp_path / "pid").read_text())
    assert process.returncode == 130
    assert "plan: interrupted." in err
    assert not Path(f"/proc/{child}").exists()
    assert list(tmp_path.glob("gemma-compile-*")) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--stack", "l4-qat", "--compile"), "--compile judges servers on TPU, and L4 is a GPU. Remove --compile."),
        (("--compile", "tpu-v6e1"), "A stack comes first: gemma plan STACK --compile."),
    ],
)
def test_a_wrong_question_is_one_sentence(run, words, said: str):
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert said in err


def test_the_options_may_have_the_value_before_or_after_the_stack(run, judge):
    folder = judge(answered())
    for words in (("--compile", "all", "--stack", "tpu-v6e1"), ("--compile=all", "--stack", "tpu-v6e1")):
        assert run(*words)[0] == 0
    assert given(folder)["request"]["programs"] == "all"


def test_a_refusal_of_what_only_the_image_has_judges_nothing(run, judge):
    refusal = {**REFUSED, "stage": "weights", "program": ""}
    judge(
        [
            *STAGES,
            {**refusal, "words": "compressed-tensors scheme for MoE layer 'x' is not yet supported in the JAX path"},
        ]
    )
    code, out, _ = run("--stack", "tpu-v6e1-26b-w4a16", "--compile")
    assert code == 1
    assert "Not judged: the wheels lack 4-bit experts, which the image has" in " ".join(out.split())
    judge([*STAGES, {**refusal, "words": "another refusal"}])
    assert run("--stack", "tpu-v6e1-26b-w4a16", "--compile", "--set", "vllm.maxNumSeqs=16")[0] == 2
