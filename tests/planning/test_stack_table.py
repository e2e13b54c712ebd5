"""`gemma plan` without a stack, and `gemma plan --compare STACK STACK`: one line for each."""

import json

import pytest

from gemma_serving.contracts.settings_files import stacks_in
from gemma_serving.scripts.plan.__main__ import main
from gemma_serving.scripts.plan.question import ROOT


def test_every_stack_of_the_folder_has_one_line_with_the_verdict_of_its_plan(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    fitting = [line.split()[0] for line in lines if "fits" in line]
    assert fitting == list(stacks_in(ROOT))


def test_compared_stacks_have_the_figures_of_their_own_plans(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--compare", "l4-12b-qat", "tpu-v6e1", "--json"]) == 0
    rows = {row.pop("stack"): row for row in json.loads(capsys.readouterr().out)["stacks"]}
    assert list(rows) == ["l4-12b-qat", "tpu-v6e1"]
    for stack, row in rows.items():
        assert main(["--stack", stack, "--json"]) == 0
        whole = json.loads(capsys.readouterr().out)
        assert {key: whole[key] for key in row} == row
