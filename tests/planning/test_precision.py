"""A checkpoint is planned in the precision that a server loads it in."""

from pathlib import Path

import pytest
import yaml

from planning import Deployment, PlanningError, plan
from planning.data.checkpoints import stored_as
from planning.machine.hardware import ACCELERATORS
from planning.model.catalog import MODELS
from planning.solve.wording import worded
from scripts.plan.__main__ import main
from stacks.loading import from_file
from stacks.planned import to_deployment
from stacks.wording import StackWording

ROOT = Path(__file__).resolve().parents[2]
BF16 = "google/gemma-4-12B-it"


@pytest.mark.parametrize("accelerator", ["L4", "H100", "v6e-1"])
@pytest.mark.parametrize("model", MODELS)
def test_a_bf16_checkpoint_is_never_sized_in_four_bits(model: str, accelerator: str):
    with pytest.raises(PlanningError, match=f"{model} is bf16.*{stored_as(model, 'w4a16')[0]}"):
        plan(Deployment(model=model, accelerator=accelerator, quantization="w4a16"))


def test_the_command_refuses_it_in_one_sentence(capsys: pytest.CaptureFixture[str]):
    assert main(["--model", BF16, "--accelerator", "L4", "--quantization", "w4a16"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert 'quantization "w4a16" needs an already quantized checkpoint' in captured.err
    assert "google/gemma-4-12B-it-qat-w4a16-ct" in captured.err


def test_a_stack_refuses_it_with_its_settings_key(tmp_path: Path):
    document = yaml.safe_load((ROOT / "Pulumi.l4-12b-qat.yaml").read_text(encoding="utf-8"))
    document["config"] |= {"gemma-serving:model": BF16, "gemma-serving:quantization": "w4a16"}
    path = tmp_path / "Pulumi.l4-12b-qat.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    deployment = to_deployment(from_file(path, project="my-project"))
    with pytest.raises(PlanningError) as refused:
        plan(deployment)
    assert worded(str(refused.value), StackWording(deployment)).startswith('The quantization "w4a16" needs')


@pytest.mark.parametrize("accelerator", ACCELERATORS)
def test_a_quantized_checkpoint_may_say_what_it_is(accelerator: str):
    named = Deployment(model=f"{BF16}-qat-w4a16-ct", accelerator=accelerator, quantization="w4a16")
    assert plan(named).memory.checkpoint_gib == pytest.approx(9.56, rel=0.01)
