"""`gemma init NAME --from FILE`: the stack has the words of the file, and no secret."""

import json

import pytest

from gemma_serving.contracts.three_answers import Present
from gemma_serving.planning.planner import plan
from gemma_serving.scripts.cli.command import run_command
from gemma_serving.scripts.init.__main__ import COMMAND
from gemma_serving.scripts.plan.pasted_question import pasted
from gemma_serving.scripts.plan.plan_options import QuestionOptions
from gemma_serving.scripts.plan.question import question_from
from gemma_serving.stacks.loading import from_file
from gemma_serving.stacks.planned import to_question
from tests.scripts.test_plan_pasted import FILES, KEY, MODEL, SECRETS, TOKEN

COMMIT = "c" * 40
DEPLOYABLE = {
    "codelab-31b.md": (),
    "compose-e4b.yaml": (),
    "gke-rtx-31b.yaml": (),
    "lambda-12b.sh": (),
    "llmd-v6e-31b.yaml": ("--accelerator", "v6e-8"),
    "openshift-e4b.yaml": ("--accelerator", "L4"),
    "run-array-31b.sh": (),
}
"""Public files with a card of a stack, and further options."""


@pytest.fixture
def init(monkeypatch, tmp_path, capsys):
    """Run `gemma init` in the folder of a project; returns exit code, stdout and stderr."""
    (tmp_path / "Pulumi.yaml").write_text("name: gemma-serving\nruntime: python\n")
    (tmp_path / "__main__.py").write_text("from gemma_serving.stacks.program import main\n\nmain()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gemma_serving.scripts.plan.question.ROOT", tmp_path)
    monkeypatch.setattr("gemma_serving.scripts.plan.stack_text.ROOT", tmp_path)
    monkeypatch.setattr("gemma_serving.cloud.hub.main_commit", lambda *_: Present(COMMIT))
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT", raising=False)

    def ran(*arguments):
        capsys.readouterr()
        code = run_command(COMMAND, ["mine", *map(str, arguments)])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return ran


@pytest.mark.parametrize("name", DEPLOYABLE)
def test_the_stack_has_the_words_of_the_file(name, init, tmp_path):
    options = DEPLOYABLE[name]
    code, out, _ = init("--from", FILES / name, *options)
    written = plan(to_question(from_file(tmp_path / "Pulumi.mine.yaml", project="p-123456"), tmp_path))
    question = QuestionOptions(accelerator=written.accelerator)
    asked = plan(question_from(pasted(FILES / name, (), question).asked(question)))
    assert code == 0
    assert "Wrote Pulumi.mine.yaml." in out
    assert (written.model, written.quantization, written.vllm) == (asked.model, asked.quantization, asked.vllm)
    assert (written.memory.kv_tokens, written.memory.weights_gib) == (asked.memory.kv_tokens, asked.memory.weights_gib)
    if options:
        assert written.accelerator == options[1]


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_no_secret_is_written_or_printed(name, options, init, tmp_path):
    (tmp_path / name).write_text(SECRETS[name])
    code, out, error = init("--from", name, *options)
    text = (tmp_path / "Pulumi.mine.yaml").read_text()
    assert code == 0
    assert "--api-key" in out
    assert not [one for one in (KEY, TOKEN) if one in out + error + text]


def test_a_flag_that_vllm_does_not_have_is_left_out_and_a_commit_is_kept(init, tmp_path):
    commit = "d" * 40
    (tmp_path / "s.sh").write_text(
        f"vllm serve {MODEL} --revision {commit} --not-a-flag 1 --seed 7 --max-model-len 8192\n"
    )
    code, out, _ = init("--from", "s.sh", "--json")
    found = json.loads(out)
    text = (tmp_path / "Pulumi.mine.yaml").read_text()
    assert (code, found["fits"], found["model_revision"]) == (0, True, commit)
    assert found["pasted"]["words"]["left_out"] == ["--not-a-flag"]
    assert "not-a-flag" not in text
    assert 'extraArgs: ["--seed=7"]' in text
    assert f"# {MODEL} (bf16) on 4 v5e chips, flex-start: the server of s.sh." in text


def test_words_that_fit_nowhere_are_written_with_the_finding_that_blocks(init, tmp_path):
    (tmp_path / "s.sh").write_text("vllm serve google/gemma-4-31B-it\n")
    code, out, _ = init("--from", "s.sh", "--accelerator", "L4")
    assert code == 0
    assert "does not fit on L4" in out
    assert "FIT01: " in out


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            ("--from", "s.sh", "--model", MODEL),
            "--from takes the model and its settings from the file. Remove --model.",
        ),
        (
            ("--from", "s.sh", "--like", "l4-qat"),
            "--from takes the model and its settings from the file. Remove --like.",
        ),
        (("--from", "none.sh"), "--from none.sh cannot be read: No such file or directory."),
        (("--from", "s.sh", "--accelerator", "H100"), "This project deploys v5e-1"),
    ],
)
def test_what_cannot_be_written_is_one_sentence_and_no_file(options, sentence, init, tmp_path):
    (tmp_path / "s.sh").write_text(f"vllm serve {MODEL}\n")
    code, out, error = init(*options)
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert sentence in error
    assert not (tmp_path / "Pulumi.mine.yaml").exists()
