"""The checks of features against the simulated server: all pass, and each fails on the feature or the answer that is broken."""

from collections.abc import Mapping, Sequence
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
from localcloud.vllm.broken_answers import KINDS
from tests.scripts.smoke.conftest import ADAPTERS, EACH, Served
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
    adapters=ADAPTERS,
    speculation="draft-model",
    draft_tokens=3,
)
TARGET = SmokeTarget(
    model="simulated/tiny",
    thresholds=SmokeThresholds(startup_budget_s=60, max_model_len=8192),
    features=FEATURES,
)


def outcomes(
    served: Served, target: SmokeTarget = TARGET, *faults: Mapping[str, object], names: Sequence[str] = NEW
) -> dict[str, Outcome]:
    served.plant(*faults)
    checks = tuple(check for check in (*CHECKS, *AGENT_CHECKS) if check.name in {"ready", "served model", *names})
    report = run_smoke(ServerAccess(base_url=served.url, auth="none"), target, lambda _said: None, checks=checks)
    return {check.name: check.outcome for check in report.checks if check.name in names}


def test_each_check_passes_on_a_server_without_a_fault(served: Served):
    assert {name: outcome for name, outcome in outcomes(served).items() if outcome.state != "passed"} == {}


def test_a_timed_stream_knows_its_tokens_per_step(served: Served):
    checks = [check for check in CHECKS if check.name in {"ready", "served model", "single stream"}]
    report = run_smoke(ServerAccess(base_url=served.url, auth="none"), TARGET, lambda _said: None, checks=checks)
    values = {check.name: check.outcome.values for check in report.checks}
    # A quarter of three proposals is accepted, and one more token comes with each step.
    assert values["single stream"]["tokens_per_step"] == pytest.approx(1.75, rel=0.05)


def test_features_other_than_those_of_the_server_fail_and_absent_ones_are_skipped(served: Served):
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


def test_a_rejected_item_of_a_kind_that_the_settings_do_not_name_is_a_warning(served: Served):
    unset = replace(TARGET, features=replace(FEATURES, audios=999))
    outcome = outcomes(served, unset, {"status": 500}, names=["sound"])["sound"]
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


LOST = {
    "lost_media": {"image", "two images", "sound", "video", "media limits"},
    "lost_system": {"schema instructions"},
    "lost_half": {"context length"},
    "lost_model": {"adapters"},
}
"""The checks that fail, by the part of a request that the server loses. Answers break by a law (test_broken_answers.py)."""


@pytest.mark.parametrize("part", LOST)
def test_exactly_the_checks_of_a_part_that_is_lost_fail(served: Served, part: str):
    found = outcomes(served, TARGET, {"broken": part})
    assert {name for name, outcome in found.items() if outcome.state != "passed"} == LOST[part], found


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
def test_a_stream_of_an_api_for_agents_without_its_last_event_fails(served: Served, path: str):
    found = outcomes(served, TARGET, {"path": path, "cut": 3}, names=[path])
    assert "instead of" in found[path].detail


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_with_a_broken_answer_fails_the_checks_that_ask_for_it(served: Served, kind: str):
    for seed, only_stream in ((1, 0), (2, 1)):
        client = partial(Answering, kind, "stream" if only_stream else "both", seed)
        states = {
            name: {outcome_of(ALL[name], client(after_result=turn)).state for turn in (False, True)} for name in JUDGED
        }
        expected = {name for name, found in states.items() if "failed" in found}
        fault = {"broken": kind, "seed": seed, "only_stream": bool(only_stream)}
        found = outcomes(served, TARGET, fault, names=JUDGED)
        assert {name for name, outcome in found.items() if outcome.state == "failed"} == expected, found


def test_a_call_that_breaks_only_after_others_in_the_same_process_fails(served: Served):
    """vllm-project/vllm#39214 fails from the third call on. The first two calls are four requests."""
    faults = [{"broken": "call_as_text", "only_stream": True, "seed": 1, "nth": nth, "count": EACH} for nth in (5, 6)]
    found = outcomes(served, TARGET, *faults, names=["tool call"])
    assert found["tool call"].state == "failed"
    assert found["tool call"].measured.startswith("call 3: streamed: ")
    assert "Without `stream: true`, the same request passes" in found["tool call"].detail
