"""Crashes on public record against every boot of the corpus, and the releases, models and images of each row."""

import re
from typing import Any

import pytest

from gemma_serving.planning.cost.subject import examine
from gemma_serving.planning.planner import plan
from gemma_serving.planning.rules.crashes import CRASHES
from gemma_serving.planning.rules.findings import detected_findings
from gemma_serving.planning.settings.deployment import Deployment
from gemma_serving.planning.settings.finding import Finding
from gemma_serving.planning.settings.image import image_of_version
from gemma_serving.planning.settings.vllm_args import VllmOptions
from tests.planning.corpus.measured import Boot, load, subject_of
from tests.records import replace

BOOTS = load().boots
RAN = [boot for boot in BOOTS if not boot.died]
BASE, SISTER = "google/gemma-4-12B-it-assistant", "google/gemma-4-12B-it-qat-q4_0-unquantized-assistant"
EXPERTS = "google/gemma-4-26B-A4B-it"
QAT_EXPERTS = "google/gemma-4-26B-A4B-it-qat-q4_0-unquantized-assistant"


def found(release: str, model: str, drafter: str | None = None, **options: object) -> str | None:
    """Return the severity of REL01 on an RTX PRO 6000; None without it."""
    drafts = {"speculative_config": {"model": drafter, "num_speculative_tokens": 3}} if drafter else {}
    vllm = VllmOptions(**drafts, **options)  # pyright: ignore[reportArgumentType] - options by name
    return detected_findings(
        examine(Deployment(model=model, accelerator="RTX PRO 6000", image=image_of_version(release), vllm=vllm))
    ).get("REL01")


@pytest.mark.parametrize("boot", RAN, ids=lambda boot: boot.id)
def test_nothing_that_ran_is_blocked(boot: Boot):
    assert detected_findings(subject_of(boot)).get("REL01") != "block"


def test_the_corpus_has_boots_that_a_wider_row_would_block():
    """With 12B's draft model before 0.25.0, and with Gemma 4 on 0.27: both ran."""
    drafted = [boot for boot in RAN if (boot.deployment.vllm.speculative_config or {}).get("model") == BASE]
    assert [boot.deployment.image_version for boot in drafted] == ["0.22.0"]
    assert {detected_findings(subject_of(boot)).get("REL01") for boot in RAN} >= {"warn", None}


@pytest.mark.parametrize(
    ("release", "model", "drafter", "severity"),
    [
        ("0.24.0", "12B", BASE, "warn"),  # one request may stop every release before 0.26.0
        ("0.25.0", "12B", BASE, "block"),
        ("0.28.0", "12B", BASE, "block"),
        ("0.29.0", "12B", BASE, None),
        ("0.31.0", "12B", BASE, None),
        ("0.28.0", "google/gemma-4-12B-it-qat-w4a16-ct", SISTER, "warn"),
        ("0.31.0", "google/gemma-4-12B-it-qat-w4a16-ct", SISTER, None),
        ("0.28.0", "google/gemma-4-31B-it", "google/gemma-4-31B-it-assistant", None),
        ("0.28.0", "12B", None, None),
        ("0.24.0", EXPERTS, f"{EXPERTS}-assistant", "warn"),
        ("0.25.1", "31B", None, "warn"),
        ("0.26.0", "31B", None, None),
        ("0.25.0", EXPERTS, f"{EXPERTS}-assistant", "block"),
        ("0.26.0", EXPERTS, QAT_EXPERTS, "block"),
        ("0.28.0", EXPERTS, f"{EXPERTS}-assistant", None),
        ("0.26.0", EXPERTS, None, None),
        ("0.27.0", "E2B", None, "warn"),
        ("0.27.1", "E2B", None, "warn"),
        ("0.28.0", "E2B", None, None),
        ("", "12B", BASE, None),
    ],
)
def test_a_row_is_for_its_releases_and_models_only(release: str, model: str, drafter: str | None, severity: str | None):
    assert found(release, model if "/" in model else f"google/gemma-4-{model}-it", drafter) == severity


def findings_of_release(release: str, **fields: Any) -> Finding | None:
    deployment = Deployment(model="google/gemma-4-31B-it", image=image_of_version(release), **fields)
    return next((one for one in plan(deployment).findings if one.id == "REL01"), None)


@pytest.mark.parametrize(
    ("release", "fields", "says"),
    [
        (
            "0.19.1",
            {"quantization": "fp8"},
            ("Its answers may be wrong", "gibberish", "One request may stop the engine"),
        ),
        (
            "0.22.0",
            {"quantization": "fp8"},
            ("Its answers may be wrong", "gibberish", "One request may stop the engine"),
        ),
        ("0.22.1", {"quantization": "fp8"}, ("One request may stop the engine",)),
        (
            "0.31.0",
            {"vllm": VllmOptions(kv_cache_dtype="int8_per_token_head")},
            ("Its answers may be wrong", "32,000 tokens"),
        ),
        ("0.31.0", {"quantization": "fp8"}, ()),
    ],
)
def test_wrong_answers_and_requests_that_stop_the_engine_are_warnings(
    release: str, fields: dict[str, Any], says: tuple[str, ...]
):
    found = findings_of_release(release, accelerator="H100", **fields)
    assert (found is None) is (not says)
    assert found is None or found.severity == "warn"
    assert all(words in (found.message if found else "") for words in says)
    assert found is None or [one.changes for one in found.remedies].count({"image": None}) <= 1


def test_a_tpu_has_the_record_of_both_platforms():
    assert findings_of_release("0.25.0", accelerator="v6e-8") is not None
    assert findings_of_release("0.26.0", accelerator="v6e-8") is None


def test_without_cuda_graphs_nothing_is_copied_while_they_are_captured():
    assert found("0.28.0", "google/gemma-4-12B-it", BASE, enforce_eager=True) is None


def test_the_image_that_the_record_names_dies_and_another_of_its_release_may():
    (digest, *_) = CRASHES["vllm-project/vllm#51744"].images
    known = Deployment(
        model=EXPERTS, accelerator="RTX PRO 6000", image=replace(image_of_version("0.27.0"), digest=digest)
    )
    assert plan(known).verdict == "blocked"
    assert found("0.27.0", EXPERTS) == "warn"


def test_every_row_can_be_found_read_and_recognized():
    for crash in CRASHES.values():
        assert crash.dies or crash.likely, crash.id
        assert bool(crash.likely) is bool(crash.sisters or crash.images or not crash.dies), crash.id
        repository, _, number = crash.id.partition("#")
        # What the project found itself, by building upstream's server, stands on a page of its own.
        of_thread = rf"https://github\.com/{repository}/(issues|pull)/{number}"
        assert re.fullmatch(of_thread if number else r"docs/authors/compiled\.md", crash.source)
        assert re.compile(crash.pattern).groups == 0
        assert crash.pattern or crash.kind != "start"
        assert not crash.dies or crash.kind == "start"
        assert crash.basis
        assert not crash.way_out.startswith(" ")
