"""A simulated server that downloads from the hub gets the hub's answers, in the words that a real one prints."""

import pytest

from localcloud.vllm import boot as startup
from localcloud.vllm import places
from localcloud.vllm.arguments import parse
from localcloud.vllm.settings import read
from localcloud.world.scenario import Fault, Hub

EXISTS, ABSENT = "google/gemma-4-E2B-it", "google/gemma-4-26B-A4B-it-qat-w4a16-ct"
GATED, PRIVATE = "google/gemma-3-4b-it", "org/gemma-4-E2B-it"
NOT_FOUND = "RepositoryNotFoundError: 404 Client Error"
DOWN = (Fault(method="hub.*", action="reset", count=1000),)
CASES = {
    "absent": (ABSENT, "hf_x", {}, NOT_FOUND, f"Error: Model '{ABSENT}' not found."),
    "absent without a token": (
        ABSENT,
        "",
        {},
        "RepositoryNotFoundError: 401 Client",
        f"Error: Model '{ABSENT}' not found.",
    ),
    "private": (PRIVATE, "hf_x", {}, NOT_FOUND, f"Error: Model '{PRIVATE}' not found."),
    "gated": (GATED, "hf_x", {}, "GatedRepoError: 403", f"Access denied. Model '{GATED}' requires approval."),
    "expired": (
        EXISTS,
        "hf_old",
        {},
        "401 Client Error: Unauthorized for url: https://huggingface.co/api",
        "Unauthorized",
    ),
    "down": (
        EXISTS,
        "hf_x",
        {"faults": DOWN},
        "We couldn't connect to 'https://huggingface.co'",
        "couldn't connect to",
    ),
}


@pytest.fixture
def served(shared_cloud):
    """A function that returns the environment of a server in a scenario of the hub."""
    before = shared_cloud.cloud.scenario

    def environment(token, **changes):
        hub = Hub(repositories={PRIVATE: "private"}, expired_tokens=("hf_old",))
        shared_cloud.cloud.scenario = before.model_copy(update={"hub": hub, **changes})
        return read({"VLLM_SIM_HUB": f"{shared_cloud.base_url}/hub", "HF_TOKEN": token, "VLLM_SIM_CLOCK_SPEED": "1e6"})

    yield environment
    shared_cloud.cloud.scenario = before


@pytest.mark.parametrize("case", CASES)
def test_a_server_ends_in_the_words_of_the_hub_s_client(served, capsys, case):
    model, token, scenario, said, printed = CASES[case]
    start = startup.plan(parse(["vllm", "serve", model]), served(token, **scenario))
    assert said in str(start.steps[-1].error)
    assert places.download([model], served(token, **scenario)) == 1
    assert printed in capsys.readouterr().err


def test_a_server_starts_with_a_model_that_exists(served, capsys):
    assert startup.plan(parse(["vllm", "serve", EXISTS]), served("")).capacity is not None
    assert places.download([EXISTS, "--dry-run"], served("")) == 0
    assert "totalling 10.2G" in capsys.readouterr().out
    assert places.download([EXISTS, "--revision", "none"], served("")) == 1
    assert f"Error: Revision not found in model '{EXISTS}'." in capsys.readouterr().err


def test_a_server_and_a_download_are_refused_a_commit_that_the_hub_does_not_have(served, capsys):
    unknown = "0" * 40
    start = startup.plan(parse(["vllm", "serve", EXISTS, f"--revision={unknown}"]), served(""))
    assert "RevisionNotFoundError: 404 Client Error" in str(start.steps[-1].error)
    assert f"/revision/{unknown}." in str(start.steps[-1].error)
    for known in ("3e22461f65e89153144f8adb70e3b8c2cc9845a7", "905e84b50c4d2a365ebde34e685027578e6728db", "main"):
        words = ["vllm", "serve", EXISTS, f"--revision={known}", f"--tokenizer-revision={known}"]
        assert startup.plan(parse(words), served("")).capacity is not None
        assert places.download([EXISTS, f"--revision={known}", "--dry-run"], served("")) == 0
    capsys.readouterr()


def test_another_commit_is_not_what_the_cache_has(served, tmp_path):
    home = {"HF_HOME": "/c", "VLLM_SIM_PATHS": f'{{"/c": "{tmp_path}"}}'}
    cached = read({"VLLM_SIM_HUB": served("").hub, **home})
    kept = places._cache_file(EXISTS, cached)
    kept.parent.mkdir(parents=True)
    kept.write_text("")
    other = startup.plan(parse(["vllm", "serve", EXISTS, f"--revision={'0' * 40}"]), cached)
    assert "RevisionNotFoundError" in str(other.steps[-1].error)
