"""A stack with a model that the planner does not know: its config.json beside the settings is all that it needs."""

import json

import pytest

from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.planner import plan
from gemma_serving.stacks.extra_checkpoints import note_source, staging_command
from gemma_serving.stacks.loading import from_file
from gemma_serving.stacks.planned import to_question
from tests.records import replace
from tests.safetensors_files import safetensors
from tests.stacks.conftest import ROOT

FOLDER = "tests/fixtures/models/other-8b"
DRAFTER = {
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1_024,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "vocab_size": 128_256,
}
RTX_STACK = """\
config:
  gemma-serving:target: cloud-run
  gemma-serving:model: org/other-8b
  gemma-serving:image: vllm-openai
  gemma-serving:vllm:
    maxModelLen: 8192
  gemma-serving:cloudRun:
    region: us-central1
    gpu: nvidia-rtx-pro-6000
    cpu: 20
    memory: 80Gi
    concurrency: 16
    maxInstances: 1
"""


@pytest.fixture
def stack(tmp_path):
    """Write a stack's file with further lines, and the config.json beside it; return the settings' deployment."""
    folder = tmp_path / "models"
    folder.mkdir()
    for name in ("config.json", "model.safetensors.index.json"):
        (folder / name).write_text((ROOT / FOLDER / name).read_text())

    def written(*lines):
        path = tmp_path / "Pulumi.other.yaml"
        path.write_text(RTX_STACK + "".join(f"  gemma-serving:{line}\n" for line in lines))
        return to_question(from_file(path, project="my-project"), tmp_path)

    return written


def test_the_size_of_weights_without_an_index_is_that_of_their_files(stack, tmp_path):
    (tmp_path / "models" / "model.safetensors.index.json").unlink()
    (tmp_path / "models" / "model.safetensors").write_bytes(safetensors(b"\0" * 5_000, "lm_head.weight"))
    spec = stack("modelConfig: models").facts.model_spec
    assert (spec.checkpoint_bytes, spec.head_in_checkpoint) == (5_000, False)
    tied = {**json.loads((ROOT / FOLDER / "config.json").read_text()), "tie_word_embeddings": True}
    (tmp_path / "models" / "config.json").write_text(json.dumps(tied))
    assert stack("modelConfig: models").facts.model_spec.head_in_checkpoint


def test_a_placeholder_of_weights_is_refused(stack, tmp_path):
    """tests/cloud/test_stage_model.py has the other forms of damage: staging reads the same headers."""
    (tmp_path / "models" / "model.safetensors.index.json").unlink()
    (tmp_path / "models" / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1")
    with pytest.raises(PlanningError, match="is not a safetensors file"):
        stack("modelConfig: models")


@pytest.mark.usefixtures("without_collection")
@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("models/none.json", 'gemma-serving:modelConfig = "models/none.json": .* cannot be read: No such file'),
        ("models/broken.json", "is not JSON"),
        ("models/deep.json", "is not JSON: too many lists or objects inside each other"),
        ("models/list.json", "must hold one JSON object"),
        ("models/empty.json", '"num_hidden_layers" is missing'),
    ],
)
def test_a_file_that_gives_no_model_is_refused_with_its_key(stack, tmp_path, value, said):
    for name, text in {"broken": "{", "deep": "[" * 20_000, "list": "[]", "empty": "{}"}.items():
        (tmp_path / "models" / f"{name}.json").write_text(text)
    with pytest.raises(PlanningError, match=said):
        stack(f"modelConfig: {value}")


def test_an_unknown_drafter_needs_its_config_and_has_to_fit(stack, tmp_path):
    named = 'vllm: {maxModelLen: 8192, speculativeConfig: {model: "org/head", num_speculative_tokens: 3}}'
    path = tmp_path / "models" / "draft.json"

    def planned(*lines):
        text = RTX_STACK.replace("vllm:\n    maxModelLen: 8192", named)
        (tmp_path / "Pulumi.other.yaml").write_text(text + "".join(f"  gemma-serving:{line}\n" for line in lines))
        settings = from_file(tmp_path / "Pulumi.other.yaml", project="my-project")
        return plan(to_question(settings, tmp_path))

    assert "WRK06" in {finding.id for finding in planned("modelConfig: models").findings}
    path.write_text(json.dumps(DRAFTER))
    found = {finding.id for finding in planned("modelConfig: models", "draftConfig: models/draft.json").findings}
    assert not found & {"MOD03", "WRK06"}
    path.write_text(json.dumps({**DRAFTER, "vocab_size": 32_000}))
    stopped = planned("modelConfig: models", "draftConfig: models/draft.json").stopping
    assert [finding.id for finding in stopped] == ["MOD03"]
    assert "org/head cannot draft for org/other-8b" in stopped[0].message


def test_the_users_own_weights_are_staged_again_from_the_folder_of_before(tmp_path):
    settings = from_file(ROOT / "Pulumi.l4-qat.yaml", project="my-project")
    own = replace(settings, model_config="own", model_revision=None)
    assert staging_command(own, "mine", tmp_path) == "gemma stage_model mine --from FOLDER"
    note_source("mine", "/data/my model")
    assert staging_command(own, "mine", tmp_path) == "gemma stage_model mine --from '/data/my model'"
    assert staging_command(settings, "mine", tmp_path) == "gemma stage_model mine", "the hub shows the weights"
