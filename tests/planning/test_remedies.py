"""Every remedy keeps its promise: applied, it loads, removes its finding, and adds none that blocks."""

import copy
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

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
from gemma_serving.stacks.wording import StackWording, file_changes
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


def blocking(found: Mapping[str, str]) -> set[str]:
    return {identifier for identifier, severity in found.items() if severity == "block"}


def broken_alone(before: Plan, finding: Finding, remedy: Remedy, after: Deployment) -> Iterator[str]:
    """Yield each promise that a remedy breaks, applied alone."""
    subject = examine(after)
    found, known = detected_findings(subject), {other.id: other.severity for other in before.findings}
    new = {name for name, severity in found.items() if known.get(name) != severity} - set(after.accept_findings)
    warned = {name for name in new if found[name] == "warn"}
    stops = blocking(found) - set(after.accept_findings)
    is_whole = finding.severity == "block" or remedy.move
    broken = {
        f"leaves {finding.id}": found.get(finding.id, "info") != "info" or found.get(finding.id) == finding.severity,
        f"adds {blocking(found) - blocking(known)}": blocking(found) - blocking(known),
        f"does not say that it adds {warned}": warned != set(remedy.warns),
        f"ends in {stops}": is_whole and stops,
        "has another price": remedy.move and remedy.usd_per_hour != pytest.approx(subject.cost.usd_per_hour),
        "offers a model that the hub does not have": remedy.changes.get("model") in ABSENT,
    }
    yield from (f"{finding.id}: {remedy.changes} {what}" for what, is_broken in broken.items() if is_broken)


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


EDITS: Mapping[str, Sequence[Any]] = {
    **{f"vllm.{key}": [list(value) if isinstance(value, tuple) else value] for key, value in VALUES.items()},
    "model": [*model_ids(), "google/gemma-4-E2B-it-fp8", "google/gemma-4-12b"],
    "weights": ["hub", "bucket", "prefetched-image"],
    "quantization": ["bf16", "fp8", "w4a16"],
    "endpointUrl": ["http://localhost:8000", "https://models.example.com"],
    "acceptFindings": [["TPU04"], ["SCL03", "PRB01"]],
    "measuredTokPerS": [100.0],
    "workload": [
        {"inputTokens": 40, "outputTokens": 20, "users": 500},
        {"inputTokens": 40, "ratePerS": 900.0},
        {"inputTokens": 300_000},
        {"inputTokens": 40, "images": 9, "audioS": 3.0, "adapters": 2},
    ],
    "vllm.maxModelLen": [512, 65_536, 131_072, 262_144, 300_000],
    "vllm.gpuMemoryUtilization": [0.1, 0.4, 0.95, 1.0],
    "vllm.maxNumBatchedTokens": [16, 512, 2_048, 16_384],
    "vllm.maxNumSeqs": [1, 16, 256, 1_024],
    "vllm.tensorParallelSize": [None, 1, 2, 3, 4, 8],
    "vllm.kvCacheDtype": [None, "auto", "fp8"],
    "vllm.cpuOffloadGib": [5, 14, 50],
    "vllm.dataParallelSize": [1, 2, 4],
    "vllm.limitMmPerPrompt": [None, {"image": 0}, {"image": 4, "video": 0}, {"audio": 1}],
    "vllm.toolCallParser": ["gemma4", "hermes"],
    "vllm.speculativeConfig": [
        {"model": "google/gemma-4-E2B-it-assistant", "num_speculative_tokens": 3},
        {"model": "someone/gemma-4-drafter", "num_speculative_tokens": 3},
        {"method": "mtp", "num_speculative_tokens": 1},
        {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4},
    ],
    "vllm.lora.adapters": [{"sql": "org/sql"}, {"sql": "gs://bucket/adapters/sql"}],
    "vllm.loadFormat": ["auto", "pt", "npcache", "runai_streamer", "runai_streamer_sharded"],
    "vllm.extraArgs": [
        ['--mm-processor-kwargs={"max_soft_tokens":100}', "--lora-modules=a=org/adapter"],
        ["--api-key=canary"],
        ["--max-num-seqs=8", "--hf-token", "canary"],
        ["--max-num-seqs=8"],
        ["--grpc", '--allowed-origins=["*"]'],
        ["--disable-log-requests", "--max-num-partial-prefills=2", "--seed=1"],
    ],
    "vllm.allowedMediaDomains": [["a.example"], ["a.example", "10.0.0.5"], []],
    "apiKeySecret": ["projects/p/secrets/key/versions/1"],
    "maxUsd": [1, 5_000],
    "bucket.existing": ["my-bucket"],
    "metrics.enabled": [False, True],
    "alerts.email": ["a@example.com"],
    "tpu.acceleratorType": ["v5e-1", "v5e-8", "v6e-1", "v6e-4", "v6e-8"],
    "tpu.zones": [["us-west1-a"], ["us-east5-a", "us-west1-a"], ["us-central1-a"], ["europe-west99-a"]],
    "tpu.runtimeVersion": ["v2-alpha-tpuv5"],
    "tpu.ssh": ["metadata-key"],
    "tpu.tunnelMembers": [["user:a@example.com"]],
    "tpu.maxUsdPerHour": [0.1],
    "tpu.provisioning": ["spot", "standard"],
    "tpu.maxRunDuration": [None, "5m", "8d"],
    "tpu.compileCache": ["off", "bucket"],
    "tpu.existingNetwork": [
        {"network": "net", "subnetwork": "sub", "privateGoogleAccess": access} for access in (False, True)
    ],
    "cloudRun.region": ["us-central1", "europe-west3", "southamerica-east1", "europe-west99"],
    "cloudRun.compileCache": ["bucket"],
    "cloudRun.gpu": ["nvidia-l4", "nvidia-rtx-pro-6000"],
    "cloudRun.cpu": [4, 8, 20],
    "cloudRun.memory": ["8Gi", "16Gi", "32Gi", "100Gi"],
    "cloudRun.concurrency": [1, 4, 1_000],
    "cloudRun.requestTimeout": ["1m", "1h"],
    "cloudRun.minInstances": [0, 1, 2],
    "cloudRun.maxInstances": [1, 2, 5],
    "cloudRun.gpuQuota": [1, 2],
    "cloudRun.cpuQuota": [8, 20],
    "cloudRun.memoryQuota": ["40Gi", "64Gi"],
    "cloudRun.public": [True],
    "cloudRun.startupProbe": [
        None,
        {"initialDelay": "0s", "period": "10s", "failureThreshold": 6, "timeout": "5s"},
        {"initialDelay": "300s", "period": "60s", "failureThreshold": 40, "timeout": "90s"},
    ],
    "cloudRun.mount": [
        {"mode": "fuse"},
        {"mode": "fuse-cached", "cacheSize": "8Gi"},
        {"mode": "fuse-buffered", "uid": 2_000, "gid": 2_000},
    ],
    "image": [
        {"repository": "my/image", "digest": f"sha256:{'0' * 64}", "uid": 1_000, "gid": 1_000},
        {"repository": "my/image", "digest": f"sha256:{'0' * 64}", "version": "0.22.0", "audio": False},
    ],
}


Values = dict[str, Any]
"""Values of a settings file."""


def apply(values: Values, changes: Mapping[str, Any]) -> Values:
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
            place[last] = copy.deepcopy(value)
    return values


def load(values: Mapping[str, Any]) -> Settings:
    return from_values(values, project="my-project", origin="Pulumi.x.yaml")


def broken_promises(file: Values, before: Plan) -> Iterator[str]:
    """Yield each promise that the remedies of a settings file break: each alone, and the first ones together."""
    deployment = to_deployment(load(file))
    wording, together = StackWording(deployment), dict[str, Any]()
    for finding in before.findings:
        if "canary" in f"{message_of(finding, wording)} {remedy_of(finding, wording)}":
            yield f"{finding.id} shows a secret"
        has_way = finding.remedies or finding.advice or finding.id in known_hopeless(before)
        if finding.severity == "block" and not has_way:
            yield f"{finding.id} has no way out"
        ways = [one for one in finding.remedies if one.is_deployable]
        for remedy in ways:
            yield from broken_remedy(file, before, finding, remedy)
        if ways and finding.id not in deployment.accept_findings:
            first = file_changes(deployment, ways[0].changes)
            others = {key: value for key, value in first.items() if together.get(key, value) != value}
            yield from (f"{finding.id} has another value of {key}" for key in others)
            together |= first
    yield from broken_together(file, before.findings, together)


def broken_remedy(file: Values, before: Plan, finding: Finding, remedy: Remedy) -> Iterator[str]:
    """Yield each promise that a remedy breaks as a change of the file."""
    deployment = to_deployment(load(file))
    changes = file_changes(deployment, remedy.changes)
    after = to_deployment(load(apply(file, changes)))
    yield from broken_alone(before, finding, remedy, after)
    same: Values = {"accelerator": "", "vllm_in_blocks": ()}  # a block that a remedy removes
    same |= {"image": None} if remedy.changes.get("image", 0) is None else {}  # the default one
    planned = with_changes(deployment, remedy.changes)
    is_other = after.model != deployment.model or changes.get("modelRevision")
    text = StackWording(deployment).change(remedy.changes) or ""
    if is_other and load(apply(file, changes)).weights == "bucket" and "gemma stage_model" not in text:
        yield f"{finding.id}: {text} does not name the command for other weights"
    if "platform" not in remedy.changes and replace(after, **same) != replace(planned, **same):
        yield f"{finding.id}: {changes} is planned as other changes"


def broken_together(file: Values, findings: Sequence[Finding], together: Values) -> Iterator[str]:
    """Yield the findings that are left or new after the first remedies of all, and the error if they do not load together."""
    try:
        deployment = to_deployment(load(apply(file, together)))
    except (SettingsError, PlanningError) as error:
        yield f"all together: {error}"
        return
    after = detected_findings(examine(deployment))
    was = {one.id: one.severity for one in findings}
    with_ways = {one.id for one in findings if any(way.is_deployable for way in one.remedies)}
    fixed = with_ways - {*deployment.accept_findings}
    left = {one for one in fixed & after.keys() if after[one] != "info" or was[one] == "info"}
    new = blocking(after) - blocking(was) - {*deployment.accept_findings}
    yield from (f"{name} is left after all" for name in sorted(left))
    yield from (f"{name} blocks after all" for name in sorted(new))


def drawn_files(count: int) -> Iterator[tuple[str, Values, Values, Plan]]:
    """Yield stacks with up to six edited settings that can be planned: the name, the edits, the whole file and its plan."""
    random = Random(20261129)  # noqa: S311 - a draw of cases
    for _ in range(count):
        name = random.choice(sorted(STACKS))
        foreign = {"tpu", "cloudRun"} - STACKS[name].keys()
        keys = [key for key in EDITS if key.partition(".")[0] not in foreign]
        edits = {key: random.choice(EDITS[key]) for key in random.sample(keys, random.randint(0, 6))}
        file = apply(STACKS[name], edits)
        try:
            planned = plan(to_deployment(load(file)))
        except (SettingsError, PlanningError):
            continue
        yield name, edits, file, planned


@pytest.mark.law
def test_the_remedies_of_an_edited_stack_keep_their_promises_alone_and_together():
    drawn = list(drawn_files(examples(test=30, part=2_000, night=20_000)))
    broken = [(name, edits, *problems) for name, edits, *one in drawn if (problems := list(broken_promises(*one)))]
    assert not broken, f"{len(broken)} of {len(drawn)}: {broken[:5]}"


def test_the_first_remedy_of_a_model_that_does_not_fit_ends_in_no_warning():
    deployment = Deployment(model="google/gemma-4-12B-it", accelerator="L4")
    (finding,) = [one for one in plan(deployment).findings if one.id == "FIT01"]
    after = plan(with_changes(deployment, finding.remedies[0].changes))
    assert finding.remedies[0].warns == ()
    assert after.fits
    assert after.margin is None


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


def lost_values(file: Values, before: Plan, given: tuple[Given, ...]) -> Iterator[str]:
    """Yield each remedy of ARG01 that loses a value of the arguments without a word."""
    deployment = to_deployment(load(file))
    wording = StackWording(deployment)
    for finding in (one for one in before.findings if one.id == "ARG01"):
        lost = remedy_of(finding, wording).partition("o fix keeps the value of")[2]
        said = " ".join((lost, *(one.message for one in before.findings if one.id != "ARG01")))
        for remedy in (one for one in finding.remedies if one.is_deployable and not one.move):
            after = to_deployment(load(apply(file, file_changes(deployment, remedy.changes))))
            if not all(is_kept(one, after, said) for one in given):
                yield f"{remedy.changes} loses a value"


def check_arguments(name: str, more: tuple[str, ...], given: tuple[Given, ...]) -> Iterator[str]:
    """Yield each promise that the remedies of a stack with arguments break."""
    words = [*more, *(word for one, _ in given for word in one)]
    file = apply(STACKS[name], {"vllm.extraArgs": [*STACKS[name]["vllm"].get("extraArgs", ()), *words]})
    before = plan(to_deployment(load(file)))
    yield from broken_promises(file, before)
    yield from lost_values(file, before, given)


@pytest.mark.law
def test_the_remedies_of_arguments_keep_their_promises_and_lose_no_value():
    cases = argument_cases()
    drawn = cases[:: max(1, len(cases) // examples(test=200, part=1_000, night=10**6))]
    broken = [(*case, *problems) for case in drawn if (problems := list(check_arguments(*case)))]
    assert not broken, f"{len(broken)} of {len(drawn)}: {broken[:5]}"
