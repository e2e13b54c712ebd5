"""`gemma plan` without a stack, and `gemma plan --compare STACK STACK`: one line for each."""

import json
from pathlib import Path

import pytest

from gemma_serving.contracts.settings_files import shipped_files, stack_of_file
from gemma_serving.scripts.plan.__main__ import main
from gemma_serving.scripts.plan.question import ROOT


def test_every_stack_of_the_folder_has_one_line_with_the_verdict_of_its_plan(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    fitting = [line.split()[0] for line in lines if "fits" in line]
    shipped = sorted(stack_of_file(path.name) for path in shipped_files(ROOT) if path.parent == ROOT)
    assert [stack for stack in fitting if stack in shipped] == shipped


def test_compared_stacks_have_the_figures_of_their_own_plans(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--compare", "l4-12b-qat", "tpu-v6e1", "--json"]) == 0
    rows = {row.pop("stack"): row for row in json.loads(capsys.readouterr().out)["stacks"]}
    assert list(rows) == ["l4-12b-qat", "tpu-v6e1"]
    for stack, row in rows.items():
        assert main(["--stack", stack, "--json"]) == 0
        whole = json.loads(capsys.readouterr().out)
        assert {key: whole[key] for key in row} == row


def test_a_stack_that_may_fail_and_one_with_an_error_say_so_in_their_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gemma_serving.scripts.plan.stacks.ROOT", tmp_path)
    good = (ROOT / "examples" / "stacks" / "Pulumi.tpu-v6e4-turbo.yaml").read_text()
    for name, text in {
        "edge": good.replace("gpuMemoryUtilization: 0.9", "gpuMemoryUtilization: 0.96"),
        "wrong": "config: {gemma-serving:target: x}",
    }.items():
        (tmp_path / f"Pulumi.{name}.yaml").write_text(text)
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line for line in lines if "│" in line}
    assert "│ may fail │" in rows["edge"]
    assert "│ invalid" in rows["wrong"]
    assert any(line.startswith('wrong: Pulumi.wrong.yaml: gemma-serving:target = "x"') for line in lines)
