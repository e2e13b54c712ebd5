"""Files that a server loads from the hub have a commit and are not pickled: settings, arguments, rules, shipped stacks."""

import re
import tomllib
from pathlib import Path

import pytest

from gemma_serving.planning.data.checkpoints import CHECKPOINTS
from gemma_serving.planning.planner import plan
from gemma_serving.planning.rules.security.pinned import COMMIT
from gemma_serving.planning.settings.finding import Finding
from gemma_serving.planning.settings.paths import with_changes
from gemma_serving.planning.settings.question import Question, WeightsMode
from gemma_serving.planning.settings.vllm_args import VllmOptions, vllm_arguments
from gemma_serving.stacks.settings_wording import file_changes

ROOT = Path(__file__).resolve().parents[2]
A, B = "a" * 40, "b" * 40


def floating(question: Question) -> Finding | None:
    return next((one for one in plan(question).findings if one.id == "SEC07"), None)


def on_tpu(**options: object) -> Question:
    vllm = VllmOptions(**options)  # pyright: ignore[reportArgumentType] - a test's shorthand
    return Question().changed(
        model="google/gemma-4-E2B-it", accelerator="v6e-4", platform="tpu-vm", project="p", model_revision=A, vllm=vllm
    )


def test_the_local_hub_has_every_commit_of_the_catalog_as_its_head_and_says_who_states_it():
    rows = tomllib.loads((ROOT / "packages" / "localcloud" / "hub" / "data" / "repositories.toml").read_text())[
        "repository"
    ]
    listed = {row["id"]: row for row in rows}
    stated = {one.id: one.commit for one in CHECKPOINTS.values() if one.commit}
    assert {name: listed[name].get("commit") for name in stated} == stated
    assert all(listed[name].get("commit_source") or listed[name].get("sizes_source") for name in stated)
    assert all(COMMIT.fullmatch(commit) for commit in stated.values())


def test_the_server_is_told_the_commit_before_the_options_and_the_tokenizers_too():
    given = vllm_arguments(VllmOptions(max_num_seqs=1), model_or_path="m", revision=A)
    assert given[3:5] == (f"--revision={A}", f"--tokenizer-revision={A}")
    assert "--max-num-seqs=1" in given[5:]
    own = VllmOptions(extra_args=("--tokenizer=other/one", f"--tokenizer-revision={B}"))
    assert f"--tokenizer-revision={A}" not in vllm_arguments(own, model_or_path="m", revision=A)
    assert [word for word in vllm_arguments(VllmOptions(), model_or_path="m") if "revision" in word] == []


def test_weights_are_safetensors_whatever_the_way():
    modes: tuple[WeightsMode, ...] = ("hub", "fuse", "memory", "disk", "image", "streamer")
    model = "google/gemma-4-12B-it-qat-w4a16-ct"
    asked = {
        mode: Question().changed(model=model, accelerator="L4", weights_mode=mode, platform="cloud-run")
        for mode in modes
    }
    loads = {mode: plan(one).vllm.load_format for mode, one in asked.items()}
    assert loads == {**dict.fromkeys(modes, "safetensors"), "streamer": "runai_streamer"}


FLOATS: dict[str, tuple[Question, str, set[str]]] = {
    "the model": (
        on_tpu().changed(model_revision=None),
        r"The model google/gemma-4-E2B-it has no commit",
        {"model_revision"},
    ),
    "a model that nobody states a commit of": (
        on_tpu().changed(model="google/gemma-4-E2B", model_revision=None),
        r"The model google/gemma-4-E2B has no commit",
        set(),
    ),
    "a drafter": (
        on_tpu(speculative_config={"model": "google/gemma-4-E2B-it-assistant", "num_speculative_tokens": 3}),
        r"The drafter google/gemma-4-E2B-it-assistant has no commit",
        {"vllm.speculative_config"},
    ),
    "a drafter at a branch": (
        on_tpu(
            speculative_config={
                "model": "google/gemma-4-E2B-it-assistant",
                "num_speculative_tokens": 3,
                "revision": "main",
            }
        ),
        r"The drafter",
        {"vllm.speculative_config"},
    ),
    "a tokenizer": (on_tpu(extra_args=("--tokenizer", "some/one")), r"The tokenizer some/one has no commit", set()),
    "adapters": (
        on_tpu(extra_args=("--lora-modules", "a=some/adapter", '{"name": "b", "path": "other/adapter"}')),
        r"The adapter some/adapter and the adapter other/adapter have no commit",
        set(),
    ),
}
PINNED = {
    "all": on_tpu(
        speculative_config={"model": "google/gemma-4-E2B-it-assistant", "num_speculative_tokens": 3, "revision": B},
        extra_args=("--tokenizer=some/one", f"--tokenizer-revision={B}", "--lora-modules", "a=/models/adapter"),
    ),
    "n-gram": on_tpu(speculative_config={"method": "ngram", "num_speculative_tokens": 3}),
    "weights of the bucket": on_tpu().changed(weights_mode="disk", model_revision=None),
    "a question without a stack": on_tpu().changed(project="", model_revision=None),
}


def test_each_repository_without_a_commit_is_named_and_its_remedy_pins_it(subtests: pytest.Subtests):
    for name, (asked, words, paths) in FLOATS.items():
        with subtests.test(name):
            finding = floating(asked)
            assert finding is not None
            assert re.search(words, finding.message)
            assert {path for remedy in finding.remedies for path in remedy.changes} == paths
            assert finding.remedies or finding.advice
            for remedy in finding.remedies:
                assert floating(with_changes(asked, remedy.changes)) is None
    for name, asked in PINNED.items():
        with subtests.test(name):
            assert floating(asked) is None


def test_a_flag_that_carries_the_commit_has_a_key_of_its_own():
    def own_key(*words: str) -> Finding | None:
        return next((one for one in plan(on_tpu(extra_args=words)).findings if one.id == "ARG01"), None)

    for word in (f"--revision={A}", f"--tokenizer-revision={A}"):
        finding = own_key(word)
        assert finding is not None
        assert "modelRevision" in finding.message
    assert own_key("--tokenizer=some/one", f"--tokenizer-revision={B}") is None


def test_another_model_has_no_commit_of_the_one_before():
    before = on_tpu()
    changes = {"model": "google/gemma-4-E4B-it"}
    assert with_changes(before, changes).settings.model_revision is None
    assert file_changes(before, changes) == {"model": "google/gemma-4-E4B-it", "modelRevision": None}
    pinned = {**changes, "model_revision": B}
    assert with_changes(before, pinned).settings.model_revision == B
