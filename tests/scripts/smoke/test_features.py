"""The checks of features against the simulated server: all pass, and each fails on the feature or the answer that is broken."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import pytest

from gemma_serving.contracts.features import ServedFeatures
from gemma_serving.contracts.outputs import SmokeThresholds
from gemma_serving.scripts.smoke.checks import AGENT_CHECKS, CHECKS, run_smoke
from gemma_serving.scripts.smoke.checks_server import judged_drafts
from gemma_serving.scripts.smoke.context import SmokeTarget
from gemma_serving.scripts.smoke.results import Outcome
from gemma_serving.scripts.stack.access import ServerAccess
from localcloud.tests.running.running_server import ask, server
from localcloud.vllm.broken_answers import KINDS
from localcloud.vllm.faults import BROKEN_FEATURES
from tests.scripts.smoke.test_broken_answers import ALL, JUDGED, Answering, outcome_of

NEW = (
    "reasoning",
    "tool call",
    "forced tool call",
    "structured output",
    "tool result",
    "tools with thinking",
    "schema with thinking",
    "schema instructions",
    "image",
    "two images",
    "sound",
    "video",
    "media limits",
    "context length",
    "adapters",
    "speculation",
    *(check.name for check in AGENT_CHECKS),
)
FEATURES = ServedFeatures(
    images=2,
    videos=1,
    audios=1,
    thinking=True,
    tools=True,
    adapters=("sql", "poems"),
    speculation="draft-model",
    draft_tokens=3,
)
TARGET = SmokeTarget(
    model="simulated/tiny",
    thresholds=SmokeThresholds(startup_budget_s=60, max_model_len=8192),
    features=FEATURES,
)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("machine")
    for name in FEATURES.adapters:
        adapter = folder / "adapters" / name
        adapter.mkdir(parents=True)
        (adapter / "adapter_config.json").write_text(json.dumps({"r": 16, "lora_alpha": 32}))
    words = ["vllm", "serve", "simulated/tiny", "--max-model-len", "8192", "--enable-auto-tool-choice"]
    words += ["--tool-call-parser", "gemma4", "--reasoning-parser", "gemma4"]
    words += ['--limit-mm-per-prompt={"image": 2, "video": 1, "audio": 1}']
    words += ["--enable-lora", "--lora-modules", *(f"{name}=/adapters/{name}" for name in FEATURES.adapters)]
    words += ['--speculative-config={"method": "ngram", "num_speculative_tokens": 3}']
    around = {"VLLM_SIM_TTFT_S": "0", "VLLM_SIM_TPOT_S": "0.0004", "VLLM_SIM_PATHS": json.dumps({"/": str(folder)})}
    with server(words, **around) as url:
        yield url


def outcomes(
    url: str, target: SmokeTarget = TARGET, *broken: str, names: Sequence[str] = NEW, **options: int
) -> dict[str, Outcome]:
    faults = [{"kind": kind, **options} for kind in broken]
    assert ask(f"{url}/_sim/faults", {"faults": faults}).status == 200
    checks = tuple(check for check in (*CHECKS, *AGENT_CHECKS) if check.name in {"ready", "served model", *names})
    report = run_smoke(ServerAccess(base_url=url, auth="none"), target, lambda _said: None, checks=checks)
    return {check.name: check.outcome for check in report.checks if check.name in names}


def verdicts(url: str, *broken: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name, outcome in outcomes(url, TARGET, *broken).items():
        found.setdefault(outcome.state, set()).add(name)
    return found


def test_a_timed_stream_knows_its_tokens_per_step(served: str):
    checks = [check for check in CHECKS if check.name in {"ready", "served model", "single stream"}]
    report = run_smoke(ServerAccess(base_url=served, auth="none"), TARGET, lambda _said: None, checks=checks)
    values = {check.name: check.outcome.values for check in report.checks}
    # A quarter of three proposals is accepted, and one more token comes with each step.
    assert values["single stream"]["tokens_per_step"] == pytest.approx(1.75, rel=0.05)


def test_features_other_than_those_of_the_server_fail_and_absent_ones_are_skipped(served: str):
    for tokens in (140, 560):
        found = outcomes(served, replace(TARGET, features=replace(FEATURES, image_tokens=tokens)))
        assert (found["image"].state, found["two images"].state) == ("failed", "failed")
        assert "Check `vllm.multimodal.imageTokens`" in found["image"].detail
    unlimited = outcomes(served, replace(TARGET, features=ServedFeatures(images=1, videos=999)))
    assert unlimited["media limits"].measured == "2 images: 200"
    assert unlimited["two images"].detail == "one image per request in the settings"
    for name in ("tool result", "sound", "adapters", "speculation"):
        assert unlimited[name].state == "skipped"
    assert outcomes(served, replace(TARGET, features=replace(FEATURES, images=999, videos=999)))[
        "media limits"
    ].state == ("skipped")


def test_a_rejected_item_of_a_kind_that_the_settings_do_not_name_is_a_warning(served: str):
    unset = replace(TARGET, features=replace(FEATURES, audios=999))
    outcome = outcomes(served, unset, "no_audio_extra")["sound"]
    assert (outcome.state, outcome.measured) == ("warned", "status 500")
    assert "Set `vllm.multimodal.audios` to 0" in outcome.detail


def test_the_share_of_accepted_tokens_is_judged_only_from_enough_proposals(subtests: pytest.Subtests):
    table = (
        ("draft-model", None, None, "failed", "not in effect"),
        ("n-gram", None, None, "failed", "not in effect"),
        ("draft-model", 0.0, 0.0, "failed", "not in effect"),
        ("n-gram", 0.0, 0.0, "warned", "too few tokens"),
        ("n-gram", 19.0, 19.0, "warned", "too few tokens"),
        ("n-gram", 100.0, 9.0, "warned", "make responses slower"),
        ("n-gram", 100.0, 10.0, "passed", ""),
    )
    for method, drafted, accepted, verdict, words in table:
        with subtests.test(f"{method} {drafted}"):
            outcome = judged_drafts(method, drafted, accepted)
            assert (outcome.state, words in outcome.detail) == (verdict, True)


BROKEN = {
    "ignores_media": ({"image", "two images", "sound", "video", "media limits"}, set[str]()),
    "no_audio_extra": ({"sound"}, set[str]()),
    "no_media_limits": ({"media limits"}, set[str]()),
    "breaks_responses": ({"/v1/responses"}, set[str]()),
    "breaks_messages": ({"/v1/messages"}, set[str]()),
    "ignores_system": ({"schema instructions"}, set[str]()),
    "cuts_prompts": ({"context length"}, set[str]()),
    "answers_as_base": ({"adapters"}, set[str]()),
    "ignores_adapters": (set[str](), {"adapters"}),
    "serves_any_model": ({"adapters"}, set[str]()),
    "proposes_nothing": ({"speculation"}, set[str]()),
}
"""The checks that fail and those that only warn, by the feature that is broken. Answers break by a law (test_broken_answers.py)."""


@pytest.mark.parametrize("kind", BROKEN_FEATURES)
def test_exactly_the_checks_of_a_broken_feature_fail(served: str, kind: str):
    failed, warned = BROKEN[kind]
    found = verdicts(served, kind)
    assert (found.get("failed", set()), found.get("warned", set())) == (failed, warned), found


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_with_a_broken_answer_fails_the_checks_that_ask_for_it(served: str, kind: str):
    for seed, only_stream in ((1, 0), (2, 1)):
        client = partial(Answering, kind, "stream" if only_stream else "both", seed)
        states = {
            name: {outcome_of(ALL[name], client(after_result=turn)).state for turn in (False, True)} for name in JUDGED
        }
        expected = {name for name, found in states.items() if "failed" in found}
        found = outcomes(served, TARGET, kind, names=JUDGED, seed=seed, only_stream=only_stream)
        assert {name for name, outcome in found.items() if outcome.state == "failed"} == expected, found


def test_a_call_that_breaks_only_after_others_in_the_same_process_fails(served: str):
    """vllm-project/vllm#39214 fails from the third call on. The check of reasoning sends the first two requests."""
    found = outcomes(served, TARGET, "call_as_text", only_stream=1, seed=1, after=6)
    assert found["tool call"].state == "failed"
    assert found["tool call"].measured.startswith("call 3: streamed: ")
    assert "Without `stream: true`, the same request passes" in found["tool call"].detail
