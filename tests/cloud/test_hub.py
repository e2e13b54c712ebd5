"""The commit that the hub states for a model, and responses that state none."""

import pytest

from gemma_serving.cloud.hub import main_commit
from gemma_serving.contracts.three_answers import Present, Unknown
from gemma_serving.planning.data.checkpoints import CHECKPOINTS
from tests.cloud.test_staging_from_local_hub import at_hub

EXISTS, ABSENT = "google/gemma-4-E2B-it", "google/gemma-4-26B-A4B-it-qat-w4a16-ct"


def test_the_hub_states_the_commit_of_its_main_branch(staging_world, monkeypatch):
    at_hub(monkeypatch, f"{staging_world.cloud.base_url}/hub")
    assert main_commit(EXISTS) == Present(CHECKPOINTS[EXISTS].commit)


@pytest.mark.parametrize("token", ["hf_test", ""])
def test_a_model_that_the_hub_does_not_show_is_unknown_and_never_absent(staging_world, monkeypatch, token):
    at_hub(monkeypatch, f"{staging_world.cloud.base_url}/hub")
    monkeypatch.setenv("HF_TOKEN", token)
    answer = main_commit(ABSENT)
    assert isinstance(answer, Unknown)
    assert answer.cause == "denied"
    assert "it does not exist or is private; check the name" in answer.why
