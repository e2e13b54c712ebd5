"""Every remedy keeps its promise: applied, it loads, removes its finding, and adds none that blocks."""

import copy
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from gemma_serving.contracts.settings_files import shipped_files
from gemma_serving.planning.cost.subject import examine
from gemma_serving.planning.data.checkpoints import ABSENT
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.model.catalog import model_ids
from gemma_serving.planning.planner import plan
from gemma_serving.planning.question.types import Plan
from gemma_serving.planning.rules.findings import QUOTA_IDS, detected_findings
from gemma_serving.planning.settings.deployment import Deployment
from gemma_serving.planning.settings.finding import Finding, Remedy
from gemma_serving.planning.settings.paths import with_changes
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.planning.settings.vllm_args import OPTIONS
from gemma_serving.planning.solve.wording import message_of, remedy_of
from gemma_serving.stacks.loading import SettingsError, from_values
from gemma_serving.stacks.planned import to_deployment
from gemma_serving.stacks.wording import StackWording, file_changes, inline_yaml
from tests.laws import examples
from tests.records import replace

ROOT = Path(__file__).resolve().parents[2]
STACKS = {
    path.name: {
        key.partition(":")[2]: value
        for key, value in yaml.safe_load(path.read_text(encoding="utf-8"))["config"].items()
    }
    for path in shipped_files(ROOT)
}


FITTING: set[str] = set()
"""Moves of the present example that were found to fit; several findings offer the same."""


def blocking(found: Mapping[str, str]) -> set[str]:
    return {identifier for identifier, severity in found.items() if severity == "block"}


def assert_kept(before: Plan, finding: Finding, remedy: Remedy, deployment: Deployment) -> None:
    after = examine(deployment)
    found, known = detected_findings(after), {other.id: other.severity for other in before.findings}
    assert finding.id not in found, f"{remedy} leaves {finding.id}"
    assert blocking(found) <= blocking(known), f"{remedy} adds {blocking(found) - blocking(known)}"
    added = (
        {name for name, severity in found.items() if severity == "warn"} - set(known) - set(deployment.accept_findings)
    )
    assert added == set(remedy.warns), f"{remedy} does not say that it adds {added}"
    if remedy.move is not None and repr(remedy.changes) not in FITTING:
        FITTING.add(repr(remedy.changes))
        assert not stops_of(deployment), f"{remedy} ends in {stops_of(deployment)}"
        assert remedy.usd_per_hour == pytest.approx(after.cost.usd_per_hour)
    assert remedy.changes.get("model") not in ABSENT, "an id that the hub does not have is never offered"
    assert remedy.is_deployable or after.resolved.platform == "gce"


def known_hopeless(planned: Plan) -> set[str]:
    """Findings without a change that removes them: no quota that suffices, no setting that does, and the host's memory where FIT01 has the way out."""
    no_host_within_quota = {finding.id for finding in planned.findings if finding.id == "HST01" and finding.advice}
    no_setting = {finding.id for finding in planned.findings if "No setting makes" in finding.message}
    return (
        {*QUOTA_IDS}
        | no_host_within_quota
        | no_setting
        | ({"FIT03", "HST02"} if planned.verdict == "out-of-memory" else set())
    )


def stops_of(deployment: Deployment) -> set[str]:
    """Findings that block the deployment, without those that it accepts."""
    return blocking(detected_findings(examine(deployment))) - set(deployment.accept_findings)


def assert_first_is_open(before: Plan, deployment: Deployment) -> None:
    """If one finding alone blocks, nothing blocks after its first way out."""
    if len(before.stopping) == 1 and before.stopping[0].remedies:
        first = before.stopping[0].remedies[0]
        stops = stops_of(with_changes(deployment, first.changes))
        assert not stops, f"{first} ends in {stops}"


def assert_pasteable(changes: Mapping[str, Any]) -> None:
    """Each value is printed as YAML that reads as the value."""
    for value in changes.values():
        if isinstance(value, list | dict):
            assert yaml.safe_load(inline_yaml(value)) == value


EDITS: Mapping[str, st.SearchStrategy[Any]] = {
    "model": st.sampled_from(model_ids()),
    "weights": st.sampled_from(["hub", "bucket", "prefetched-image"]),
    "quantization": st.sampled_from(["bf16", "fp8", "w4a16"]),
    "endpointUrl": st.sampled_from(["http://localhost:8000", "https://models.example.com"]),
    "acceptFindings": st.sampled_from([["TPU04"], ["SCL03", "PRB01"]]),
    "measuredTokPerS": st.just(100.0),
    "workload": st.sampled_from(
        [
            {"inputTokens": 40, "outputTokens": 20, "users": 500},
            {"inputTokens": 40, "ratePerS": 900.0},
            {"inputTokens": 300_000},
            {"inputTokens": 40, "images": 9, "audioS": 3.0, "adapters": 2},
        ]
    ),
    "vllm.maxModelLen": st.sampled_from([512, 65_536, 131_072, 262_144, 300_000]),
    "vllm.gpuMemoryUtilization": st.sampled_from([0.1, 0.4, 0.95, 1.0]),
    "vllm.maxNumBatchedTokens": st.sampled_from([16, 512, 2_048, 16_384]),
    "vllm.maxNumSeqs": st.sampled_from([1, 16, 256, 1_024]),
    "vllm.tensorParallelSize": st.sampled_from([None, 1, 2, 3, 4, 8]),
    "vllm.kvCacheDtype": st.sampled_from([None, "auto", "fp8"]),
    "vllm.cpuOffloadGib": st.sampled_from([5, 14, 50]),
    "vllm.limitMmPerPrompt": st.sampled_from([None, {"image": 0}, {"image": 4, "video": 0}]),
    "vllm.toolCallParser": st.sampled_from(["gemma4", "hermes"]),
    "vllm.speculativeConfig": st.just({"model": "google/gemma-4-E2B-it-assistant", "num_speculative_tokens": 3}),
    "vllm.extraArgs": st.sampled_from(
        [
            ['--mm-processor-kwargs={"max_soft_tokens":100}', "--lora-modules=a=org/adapter"],
            ["--api-key=canary"],
            ["--max-num-seqs=8", "--hf-token", "canary"],
            ["--max-num-seqs=8"],
            ["--grpc", '--allowed-origins=["*"]'],
        ]
    ),
    "vllm.allowedMediaDomains": st.sampled_from([["a.example"], ["a.example", "10.0.0.5"], []]),
    "apiKeySecret": st.just("projects/p/secrets/key/versions/1"),
    "maxUsd": st.sampled_from([1, 5_000]),
    "tpu.acceleratorType": st.sampled_from(["v5e-1", "v5e-8", "v6e-1", "v6e-4", "v6e-8"]),
    "tpu.zones": st.sampled_from([["us-west1-a"], ["us-east5-a", "us-west1-a"], ["us-central1-a"]]),
    "tpu.provisioning": st.sampled_from(["spot", "standard"]),
    "tpu.maxRunDuration": st.sampled_from([None, "5m", "8d"]),
    "tpu.compileCache": st.just("off"),
    "tpu.existingNetwork": st.builds(
        lambda access: {"network": "net", "subnetwork": "sub", "privateGoogleAccess": access}, st.booleans()
    ),
    "cloudRun.region": st.sampled_from(["us-central1", "europe-west3", "southamerica-east1"]),
    "cloudRun.gpu": st.sampled_from(["nvidia-l4", "nvidia-rtx-pro-6000"]),
    "cloudRun.cpu": st.sampled_from([4, 8, 20]),
    "cloudRun.memory": st.sampled_from(["8Gi", "16Gi", "32Gi", "100Gi"]),
    "cloudRun.concurrency": st.sampled_from([1, 4, 1_000]),
    "cloudRun.requestTimeout": st.sampled_from(["1m", "1h"]),
    "cloudRun.minInstances": st.sampled_from([0, 1, 2]),
    "cloudRun.maxInstances": st.sampled_from([1, 2, 5]),
    "cloudRun.gpuQuota": st.sampled_from([1, 2]),
    "cloudRun.cpuQuota": st.sampled_from([8, 20]),
    "cloudRun.memoryQuota": st.sampled_from(["40Gi", "64Gi"]),
    "cloudRun.public": st.just(True),
    "cloudRun.startupProbe": st.sampled_from(
        [
            None,
            {"initialDelay": "0s", "period": "10s", "failureThreshold": 6, "timeout": "5s"},
            {"initialDelay": "300s", "period": "60s", "failureThreshold": 40, "timeout": "90s"},
        ]
    ),
    "cloudRun.mount": st.sampled_from(
        [
            {"mode": "fuse"},
            {"mode": "fuse-cached", "cacheSize": "8Gi"},
            {"mode": "fuse-buffered", "uid": 2_000, "gid": 2_000},
        ]
    ),
    "image": st.just(
        {"repository": "my/image", "digest": f"sha256:{'0' * 64}", "uid": 1_000, "gid": 1_000},
    ),
}


def apply(values: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a settings file with some keys set, or removed where the value is None."""
    values = copy.deepcopy(values)
    for key, value in changes.items():
        place: Any = values
        *parents, last = key.split(".")
        for parent in parents:
            place = place.setdefault(parent, {})
        if value is None:
            place.pop(last, None)
        else:
            place[last] = value
    return values


def load(values: Mapping[str, Any]) -> Settings:
    return from_values(values, project="my-project", origin="Pulumi.x.yaml")


@pytest.mark.law
@settings(
    max_examples=examples(test=20, part=300, night=10_000),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    derandomize=True,
)
@given(st.sampled_from(sorted(STACKS)), st.data())
def test_every_remedy_of_an_edited_stack_loads_and_keeps_its_promise(name: str, data: st.DataObject):
    own_block = "tpu" if "tpu" in STACKS[name] else "cloudRun"
    keys = [key for key in EDITS if key.partition(".")[0] not in {"tpu", "cloudRun"} - {own_block}]
    chosen = data.draw(st.lists(st.sampled_from(keys), max_size=6, unique=True))
    values = apply(STACKS[name], {key: data.draw(EDITS[key]) for key in chosen})
    try:
        deployment = to_deployment(load(values))
        before = plan(deployment)
    except (SettingsError, PlanningError):
        assume(condition=False)
        return
    wording = StackWording(deployment)
    assert_first_is_open(before, deployment)
    FITTING.clear()
    for finding in before.findings:
        assert finding.remedies or finding.severity != "block" or finding.id in known_hopeless(before)
        assert "canary" not in f"{message_of(finding, wording)} {remedy_of(finding, wording)}"
        for remedy in finding.remedies:
            if not remedy.is_deployable:
                continue
            assert wording.change(remedy.changes), f"{remedy} has no words in a settings file"
            assert_pasteable(file_changes(deployment, remedy.changes))
            after = to_deployment(load(apply(values, file_changes(deployment, remedy.changes))))
            assert_kept(before, finding, remedy, after)
            assert finding.severity != "block" or not stops_of(after), f"{remedy} leaves {stops_of(after)}"
            if "platform" not in remedy.changes:
                wanted = with_changes(deployment, remedy.changes)
                same = {"accelerator": "", "vllm_in_blocks": ()}  # a block that a remedy removes
                assert replace(after, **same) == replace(wanted, **same)


def test_the_first_remedy_of_a_model_that_does_not_fit_ends_in_no_warning():
    deployment = Deployment(model="google/gemma-4-12B-it", accelerator="L4")
    (finding,) = [one for one in plan(deployment).findings if one.id == "FIT01"]
    after = plan(with_changes(deployment, finding.remedies[0].changes))
    assert finding.remedies[0].warns == ()
    assert after.fits
    assert after.margin is None


VALUES: Mapping[str, Any] = {
    "tensorParallelSize": 2,
    "dataParallelSize": 1,
    "dtype": "float16",
    "quantization": "fp8",
    "kvCacheDtype": "fp8",
    "gpuMemoryUtilization": 0.85,
    "maxModelLen": 4_096,
    "maxNumSeqs": 4,
    "maxNumBatchedTokens": 2_560,
    "blockSize": 32,
    "enforceEager": True,
    "cpuOffloadGib": 1.0,
    "enablePrefixCaching": False,
    "asyncScheduling": False,
    "disableChunkedMmInput": True,
    "limitMmPerPrompt": {"image": 1, "video": 0},
    "multimodal.imageTokens": 560,
    "multimodal.maxImageTokens": 1_120,
    "enableAutoToolChoice": False,
    "toolCallParser": "hermes",
    "reasoningParser": "gemma4",
    "chatTemplate": "examples/tool_chat_template_gemma4.jinja",
    "thinking.default": True,
    "loadFormat": "auto",
    "safetensorsLoadStrategy": "eager",
    "speculativeConfig": {"method": "ngram", "num_speculative_tokens": 3},
    "lora.adapters": {"sql": "org/sql"},
    "lora.rank": 32,
    "lora.atOnce": 2,
    "trustRemoteCode": True,
    "servedModelName": "mine",
    "allowedMediaDomains": ("a.example", "b.example"),
}
"""A value of each option, which its flag repeats."""
DRAFTER = "google/gemma-4-12B-it-assistant"
PARTS: Mapping[tuple[str, ...], Mapping[str, Any]] = {
    ("--spec-method=mtp", f"--spec-model={DRAFTER}", "--spec-tokens=2"): {
        "speculativeConfig": {"method": "mtp", "model": DRAFTER, "num_speculative_tokens": 2}
    },
    ('--speculative-config={"method":"mtp","num_speculative_tokens":1}', f"--spec-model={DRAFTER}"): {
        "speculativeConfig": {"method": "mtp", "model": DRAFTER, "num_speculative_tokens": 1}
    },
    ("-tp", "1"): {"tensorParallelSize": 1},
    ("--max-model=4096",): {"maxModelLen": 4_096},
    ("--limit-mm-per-prompt", "image=4,video=0"): {"limitMmPerPrompt": {"image": 4, "video": 0}},
    ("--language-model-only",): {"limitMmPerPrompt": {"image": 0, "audio": 0, "video": 0}},
    ("--data-parallel-size-local=1",): {"dataParallelSize": "lost"},
    (f"--revision={'a' * 40}",): {"": "lost"},
    (f"--tokenizer-revision={'a' * 40}",): {"": "lost"},
}
"""Flags for a part of an option, and the values that they give; "lost" if no setting has the value."""
BESIDE = (
    (),
    ("--disable-log-requests",),
    ("--enable-log-requests", "--max-logprobs", "-1"),
    ("--max-num-partial-prefills=2", "--seed=1"),
    ("--enable-chunked-prefill", "--enable-log-requests", "--max-num-partial-prefills=2", "--nothing"),
)
"""Arguments beside: rejected, opening, harmless, and ignored by the plan."""


def spellings(words: tuple[str, ...], value: object) -> Iterator[tuple[str, ...]]:
    """Yield the ways to write a flag with its value that vLLM reads alike."""
    yield words
    yield tuple(
        "=".join((one.partition("=")[0].replace("-", "_").replace("__", "--", 1), *one.split("=", 1)[1:]))
        for one in words
    )
    if len(words) == 1 and "=" in words[0]:
        flag, _, text = words[0].partition("=")
        yield flag, text
        if isinstance(value, dict):
            yield tuple(f"{flag}.{name}={one}" for name, one in value.items())


Given = tuple[tuple[str, ...], Mapping[str, Any]]
"""Arguments, and the values that they give by option."""


def argument_cases() -> list[tuple[str, tuple[str, ...], tuple[Given, ...]]]:
    """Return stacks with arguments: each owned flag in each spelling, alone and beside others, and in pairs."""
    assert VALUES.keys() == {option.key for option in OPTIONS.values() if option.flag}
    owned: list[Given] = [(OPTIONS[key].spell(value), {key: value}) for key, value in VALUES.items()]
    owned += list(PARTS.items())
    single = [(written, values) for words, values in owned for written in spellings(words, *values.values())]
    beside = [(more, (one,)) for one in single for more in BESIDE]
    pairs = [((), pair) for pair in itertools.combinations(owned, 2)]
    return [(name, more, given) for more, given in (*beside, *pairs) for name in sorted(STACKS)]


def is_kept(given: Given, after: Deployment, said: str) -> bool:
    """Return whether a deployment has the values that arguments gave, or the arguments, or another finding or the fix says that they go."""
    words, values = given
    names = {word.partition("=")[0].partition(".")[0] for word in words if word.startswith("-")}
    is_there = all(key and getattr(after.vllm, OPTIONS[key].name) == value for key, value in values.items())
    stay = set(words) <= set(after.vllm.extra_args)
    has_no_adapters = "--enable-lora" in words and "which loads no LoRA adapters" in said
    return is_there or stay or has_no_adapters or any(one.replace("_", "-") in said.replace("_", "-") for one in names)


def check_arguments(name: str, more: tuple[str, ...], given: tuple[Given, ...]) -> Iterator[str]:
    """Yield each promise that the fixes of a stack with arguments break."""
    words = [*more, *(word for one, _ in given for word in one)]
    file = apply(STACKS[name], {"vllm.extraArgs": [*STACKS[name]["vllm"].get("extraArgs", ()), *words]})
    deployment = to_deployment(load(file))
    before, wording, together = plan(deployment), StackWording(deployment), dict[str, Any]()
    known = {one.id: one.severity for one in before.findings}
    for finding in before.findings:
        lost = remedy_of(finding, wording).partition("o fix keeps the value of")[2]
        said = " ".join((lost, *(one.message for one in before.findings if one.id != "ARG01")))
        for remedy in (one for one in finding.remedies if one.is_deployable and not one.move):
            after = to_deployment(load(apply(file, file_changes(deployment, remedy.changes))))
            found = detected_findings(examine(after))
            if found.get(finding.id, "info") != "info":
                yield f"{finding.id} stays"
            if blocking(found) - blocking(known):
                yield f"{finding.id} adds {blocking(found) - blocking(known)}"
            if finding.id == "ARG01" and not all(is_kept(one, after, said) for one in given):
                yield "ARG01 loses a value"
        changes = file_changes(deployment, finding.remedies[0].changes) if finding.remedies else {}
        if "vllm.extraArgs" in changes:
            if any(together.get(key, value) != value for key, value in changes.items()):
                yield f"{finding.id} has another value"
            together |= changes
    after = detected_findings(examine(to_deployment(load(apply(file, together)))))
    fixed = {one.id for one in before.findings if one.remedies and "vllm.extra_args" in one.remedies[0].changes}
    if left := fixed & after.keys():
        yield f"{sorted(left)} left after all"


@pytest.mark.law
def test_the_fixes_for_arguments_are_one_set_that_loses_no_value():
    cases = argument_cases()
    drawn = cases[:: max(1, len(cases) // examples(test=200, part=1_000, night=10**6))]
    broken = [(*case, *problems) for case in drawn if (problems := list(check_arguments(*case)))]
    assert not broken, f"{len(broken)} of {len(drawn)}: {broken[:5]}"
