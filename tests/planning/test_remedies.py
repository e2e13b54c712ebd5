"""Every remedy keeps its promise: applied, it loads, removes its finding, and adds none that blocks."""

import copy
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from gemma_serving.contracts.settings_files import shipped_files
from gemma_serving.planning.cost.subject import Subject, examine
from gemma_serving.planning.data.checkpoints import ABSENT
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.model.catalog import model_ids
from gemma_serving.planning.planner import plan
from gemma_serving.planning.question.types import Plan
from gemma_serving.planning.rules.findings import QUOTA_IDS, detected_findings
from gemma_serving.planning.rules.registry import RULES
from gemma_serving.planning.settings.finding import Finding, Remedy
from gemma_serving.planning.settings.image import NO_IMAGE
from gemma_serving.planning.settings.paths import with_changes
from gemma_serving.planning.settings.question import Question
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.planning.settings.vllm_args import OPTIONS
from gemma_serving.planning.solve.plan_json import plan_json
from gemma_serving.planning.solve.remedy_wording import message_of, remedy_of
from gemma_serving.stacks.loading import SettingsError, from_values
from gemma_serving.stacks.planned import to_question
from gemma_serving.stacks.settings_wording import StackWording, file_changes
from tests.laws import examples

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


def own_fields(subject: Subject, identifier: str) -> set[str]:
    """Return the fields that the candidates of a finding's own rule change."""
    result = RULES[identifier].result(subject)
    candidates = (*result.remedies, *result.last_resorts) if result else ()
    own = {path for one in candidates for lost in (one, *one.loses) for path in lost.changes}
    return own | {"model_revision"} if "model" in own else own


def broken_alone(before: Plan, finding: Finding, remedy: Remedy, given: Subject, after: Question) -> Iterator[str]:
    """Yield each promise that a remedy breaks, applied alone."""
    subject = examine(after)
    found, known = detected_findings(subject), {other.id: other.severity for other in before.findings}
    new = {name for name, severity in found.items() if known.get(name) != severity} - set(
        after.settings.accept_findings
    )
    warned = {name for name in new if found[name] == "warn"}
    stops = blocking(found) - set(after.settings.accept_findings)
    broken = {
        f"leaves {finding.id}": found.get(finding.id, "info") != "info" or found.get(finding.id) == finding.severity,
        f"adds {blocking(found) - blocking(known)}": blocking(found) - blocking(known),
        f"does not say that it adds {warned}": warned != set(remedy.warns),
        f"ends in {stops}": remedy.move and stops,
        "has another price": remedy.move and remedy.usd_per_hour != pytest.approx(subject.cost.usd_per_hour),
        "offers a model that the hub does not have": remedy.changes.get("model") in ABSENT,
        "changes keys of others": remedy.move is None and remedy.changes.keys() - own_fields(given, finding.id),
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
    "tpuQuantization": "qwix-fp8",
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
    """Yield each promise that the remedies of a settings file break: each alone, and those together."""
    question = to_question(load(file))
    wording, given = StackWording(question), examine(question)
    for finding in before.findings:
        if "canary" in f"{message_of(finding, wording)} {remedy_of(finding, wording)}":
            yield f"{finding.id} shows a secret"
        has_way = finding.remedies or finding.advice or finding.id in known_hopeless(before)
        if finding.severity == "block" and not has_way:
            yield f"{finding.id} has no way out"
        for remedy in (one for one in finding.remedies if one.is_deployable):
            yield from broken_remedy(file, before, finding, remedy, given)
    yield from broken_together(file, before)


def broken_remedy(file: Values, before: Plan, finding: Finding, remedy: Remedy, given: Subject) -> Iterator[str]:
    """Yield each promise that a remedy breaks as a change of the file."""
    question = to_question(load(file))
    changes = file_changes(question, remedy.changes)
    after = to_question(load(apply(file, changes)))
    yield from broken_alone(before, finding, remedy, given, after)
    same: Values = {"accelerator": "", "vllm_in_blocks": ()}  # a block that a remedy removes
    same |= {"image": NO_IMAGE} if remedy.changes.get("image", 0) is None else {}  # the default one
    same |= {"weights": "hub"}  # the mode is compared
    planned = with_changes(question, remedy.changes)
    is_other = after.settings.model != question.settings.model or changes.get("modelRevision")
    text = StackWording(question).change(remedy.changes) or ""
    if is_other and load(apply(file, changes)).weights == "bucket" and "gemma stage_model" not in text:
        yield f"{finding.id}: {text} does not name the command for other weights"
    if "platform" not in remedy.changes and after.changed(**same) != planned.changed(**same):
        yield f"{finding.id}: {changes} is planned as other changes"


def broken_together(file: Values, before: Plan) -> Iterator[str]:
    """Yield what the remedies of several findings leave or add. Without such a set, one finding's remedy removes all."""
    accepted = to_question(load(file)).settings.accept_findings
    fixable = [
        one for one in before.findings if one.id not in accepted and any(way.is_deployable for way in one.remedies)
    ]
    for severities, sets in ((("block",), before.together_to_start), (("block", "warn"), before.together)):
        mine = [one for one in fixable if one.severity in severities]
        ways = [sets[-1].remedy] if sets else [way for one in mine for way in one.remedies if way.is_deployable]
        left = [left_by(file, before, mine, way.changes) for way in ways]
        left = [one and one - unjoined(file, before, mine, way.changes) for one, way in zip(left, ways, strict=True)]
        if left and all(left):
            yield f"{min(left, key=len)} after all: {[(one.ids, one.remedy.changes) for one in sets]}"


def unjoined(file: Values, before: Plan, fixed: Sequence[Finding], changes: Mapping[str, Any]) -> set[str]:
    """Return the warnings of which each remedy brings back another finding after these changes."""
    left = left_by(file, before, fixed, changes)
    rest = [one for one in fixed if one.id not in left]
    return {
        one.id
        for one in fixed
        if one.id in left and one.severity == "warn"
        if all(
            left_by(file, before, [*rest, one], {**changes, **way.changes}) for way in one.remedies if way.is_deployable
        )
    }


def left_by(file: Values, before: Plan, fixed: Sequence[Finding], changes: Mapping[str, Any]) -> set[str]:
    """Return the findings that are left or new after changes of a file, and the error if they do not load."""
    question = to_question(load(file))
    try:
        after = detected_findings(examine(to_question(load(apply(file, file_changes(question, changes))))))
    except (SettingsError, PlanningError) as error:
        return {str(error)}
    left = {one.id for one in fixed if after.get(one.id, "info") != "info"}
    known = {one.id: one.severity for one in before.findings}
    return left | (blocking(after) - blocking(known) - {*question.settings.accept_findings})


def drawn_edits(name: str, random: Random, most: int, *, without: Sequence[str] = ()) -> Values:
    """Return up to `most` edits of a stack, with no setting of the other platform and none of the blocks in `without`."""
    foreign = {*without, *({"tpu", "cloudRun"} - STACKS[name].keys())}
    keys = [key for key in EDITS if key.partition(".")[0] not in foreign]
    return {key: random.choice(EDITS[key]) for key in random.sample(keys, random.randint(0, most))}


def drawn_files(count: int) -> Iterator[tuple[str, Values, Values, Plan]]:
    """Yield stacks with up to six edited settings that can be planned: the name, the edits, the whole file and its plan."""
    random = Random(20261129)  # noqa: S311 - a draw of cases
    for _ in range(count):
        name = random.choice(sorted(STACKS))
        edits = drawn_edits(name, random, 6)
        file = apply(STACKS[name], edits)
        try:
            planned = plan(to_question(load(file)))
        except (SettingsError, PlanningError):
            continue
        yield name, edits, file, planned


@pytest.mark.law
def test_the_remedies_of_an_edited_stack_keep_their_promises_alone_and_together():
    drawn = list(drawn_files(examples(test=25, part=2_000, night=20_000)))
    broken = [(name, edits, *problems) for name, edits, *one in drawn if (problems := list(broken_promises(*one)))]
    assert not broken, f"{len(broken)} of {len(drawn)}: {broken[:5]}"


def test_the_first_remedy_of_a_model_that_does_not_fit_ends_in_no_warning():
    question = Question().changed(model="google/gemma-4-12B-it", accelerator="L4")
    (finding,) = [one for one in plan(question).findings if one.id == "FIT01"]
    after = plan(with_changes(question, finding.remedies[0].changes))
    assert finding.remedies[0].warns == ()
    assert after.fits
    assert after.margin is None


DRAFTER = "google/gemma-4-12B-it-assistant"
LOST = "lost"
FORMS: Mapping[tuple[str, ...], Mapping[str, Any]] = {
    ("--spec-method=mtp", f"--spec-model={DRAFTER}", "--spec-tokens=2"): {
        "speculativeConfig": {"method": "mtp", "model": DRAFTER, "num_speculative_tokens": 2}
    },
    ('--speculative-config={"method":"mtp","num_speculative_tokens":1}', f"--spec-model={DRAFTER}"): {
        "speculativeConfig": {"method": "mtp", "model": DRAFTER, "num_speculative_tokens": 1}
    },
    ("-tp", "1"): {"tensorParallelSize": 1},
    ("--max-model=4096",): {"maxModelLen": 4_096},
    ("--max-model-len=4k",): {"maxModelLen": 4_000},
    ("--max-model-len", "2.5k"): {"maxModelLen": 2_500},
    ("--max-model-len=4K",): {"maxModelLen": 4_096},
    ("--max-model-len=auto",): {"maxModelLen": LOST},
    ("--max-num-seqs=1_6",): {"maxNumSeqs": 16},
    ("--gpu-memory-utilization=.85",): {"gpuMemoryUtilization": 0.85},
    ("--load-format=runai_streamer",): {"loadFormat": "runai_streamer"},
    ("--served-model-name", "a", "b"): {"servedModelName": LOST},
    ("--served-model-name", "a b"): {"servedModelName": "a b"},
    ("--served-model-name=on",): {"servedModelName": "on"},
    ("--chat-template={{ a }}\n{{ b }}",): {"chatTemplate": "{{ a }}\n{{ b }}"},
    ("--tool-call-parser=mine", "--tool-parser-plugin=/mine.py"): {"toolCallParser": "mine"},
    ("--lora-modules", "sql=org/sql", '{"name": "b", "path": "org/b"}'): {
        "lora.adapters": {"sql": "org/sql", "b": "org/b"}
    },
    ("--limit-mm-per-prompt", "image=4,video=0"): {"limitMmPerPrompt": {"image": 4, "video": 0}},
    ("--language-model-only",): {"limitMmPerPrompt": {"image": 0, "audio": 0, "video": 0}},
    ("--mm-processor-kwargs.max_soft_tokens=560",): {"multimodal.imageTokens": 560},
    ("--default-chat-template-kwargs.enable_thinking=true",): {"thinking.default": True},
    ("--data-parallel-size-local=1",): {"": LOST},
    (f"--revision={'a' * 40}",): {"modelRevision": "a" * 40},
    (f"--tokenizer-revision={'a' * 40}",): {"modelRevision": "a" * 40},
}
"""Other forms of flags, and the values that they give; LOST if no setting has the value."""
BLOCKS: Mapping[str, Values] = {
    "multimodal": {"vllm.multimodal.imageTokens": 280, "vllm.multimodal.maxImageTokens": 280},
    "thinking": {"vllm.thinking.default": False},
    "lora": {"vllm.lora.adapters": {"own": "org/own"}},
}
"""Keys of blocks, without which flags for the others are free."""
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


Case = tuple[str, Values, tuple[str, ...], tuple[Given, ...]]
"""A stack, edited settings, arguments that no key has, and those that one has."""


def blocks_of(given: Sequence[Given]) -> Iterator[Values]:
    """Yield the keys of each block that has a key for one of the arguments."""
    for name in dict.fromkeys(key.partition(".")[0] for _, values in given for key in values):
        if name in BLOCKS:
            yield BLOCKS[name]


def argument_cases() -> list[Case]:
    """Return stacks with arguments: each owned flag in each spelling, alone, beside others and beside a block, in pairs, and many at once."""
    assert VALUES.keys() == {option.key for option in OPTIONS.values() if option.flag}
    owned: list[Given] = [(OPTIONS[key].spell(value), {key: value}) for key, value in VALUES.items()]
    owned += list(FORMS.items())
    single = [(written, values) for words, values in owned for written in spellings(words, *values.values())]
    beside = [(more, (one,)) for one in single for more in BESIDE]
    pairs = [((), pair) for pair in itertools.combinations(owned, 2)]
    random = Random(20261130)  # noqa: S311 - a draw of cases
    many = [((), tuple(random.sample(owned, random.randint(3, 6)))) for _ in range(300)]
    return [
        (name, edits, more, given)
        for more, given in (*beside, *pairs, *many)
        for name in sorted(STACKS)
        for edits in ({}, *blocks_of(given))
    ]


def value_in_use(given: Sequence[Given], question: Question) -> dict[str, Any]:
    """Return the value of each option that vLLM reads from all arguments: the last one, of maps with parts and of adapters the union."""
    found: dict[str, Any] = {}
    named = [(words[0].replace("_", "-"), values) for words, values in given]
    for flag, values in sorted(
        named, key=lambda one: (one[0] == "--language-model-only", one[0].startswith("--spec-"))
    ):
        for key, value in values.items():
            base: Mapping[str, str] = {}
            if flag.startswith("--spec-"):
                base = found.get(key) or question.settings.vllm.speculative_config or {}
            if key == "lora.adapters":
                base = question.settings.vllm.lora_adapters or {}
            found[key] = {**base, **value} if isinstance(value, dict) else value
    if any("--spec-model" in word.replace("_", "-") for words, _ in given for word in words):
        found["speculativeConfig"] |= {"model": DRAFTER}
    return found


def ways_to_set(key: str, value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the changes of a deployment after which the stack's own words have a value."""
    yield {"model_revision" if key == "modelRevision" else f"vllm.{OPTIONS[key].name}": value}
    if (key, value) == ("loadFormat", "runai_streamer"):
        yield {"weights_mode": "streamer", "vllm.load_format": None}


def has_value(after: Subject, key: str, value: Any) -> bool:
    """Return whether a server has the value of an option, or its stack the commit."""
    revision, options = after.resolved.question.settings.model_revision, after.resolved.vllm
    return (revision if key == "modelRevision" else getattr(options, OPTIONS[key].name)) == value


def can_keep(before: Plan, question: Question, values: Mapping[str, Any], remedy: Remedy) -> bool:
    """Return whether changes with these values are a fix of ARG01, too."""
    known = {one.id: one.severity for one in before.findings}
    for ways in itertools.product(*(ways_to_set(*one) for one in values.items())):
        changes = {path: value for one in ways for path, value in one.items()}
        try:
            found = detected_findings(
                examine(with_changes(question, {**changes, "vllm.extra_args": remedy.changes["vllm.extra_args"]}))
            )
        except PlanningError:
            continue
        if "ARG01" not in found and not blocking(found) - blocking(known):
            return True
    return False


def lost_values(file: Values, before: Plan, given: Sequence[Given]) -> Iterator[str]:
    """Yield each value of arguments that a fix of ARG01 loses without its reason, that a setting has although none is said to, or that could be kept too."""
    question = to_question(load(file))
    for finding in (one for one in before.findings if one.id == "ARG01"):
        text = remedy_of(finding, StackWording(question))
        for remedy in (one for one in finding.remedies if one.is_deployable and not one.move):
            after = examine(to_question(load(apply(file, file_changes(question, remedy.changes)))))
            moved = [one for one in given if not {*one[0]} <= {*after.resolved.question.settings.vllm.extra_args}]
            values = value_in_use(moved, question)
            lost = {key: value for key, value in values.items() if value == LOST or not has_value(after, key, value)}
            for key, value in lost.items():
                flags = {word.partition("=")[0] for words, one in moved if key in one for word in words}
                told = [one for one in remedy.loses if flags.intersection(one.flags)]
                if not any(one.reason and one.reason in text for one in told):
                    yield f"{remedy.changes} loses {key} without a reason"
                if value != LOST and not any(one.changes for one in told):
                    yield f"a setting has {key}: {told}"
            spelled = {key: value for key, value in values.items() if value != LOST}
            for size in range(len(values.keys() - lost.keys()) + 1, len(spelled) + 1):
                for keys in itertools.combinations(spelled, size):
                    if can_keep(before, question, {key: spelled[key] for key in keys}, remedy):
                        yield f"{remedy.changes} could keep {keys}"


def file_of(name: str, edits: Values, more: tuple[str, ...], given: tuple[Given, ...]) -> Values:
    """Return the settings of a case."""
    words = [*more, *(word for one, _ in given for word in one)]
    return apply(STACKS[name], {**edits, "vllm.extraArgs": [*STACKS[name]["vllm"].get("extraArgs", ()), *words]})


def check_arguments(*case: Any) -> Iterator[str]:
    """Yield each promise that the remedies of a stack with arguments break."""
    file, given = file_of(*case), case[-1]
    before = plan(to_question(load(file)))
    yield from broken_promises(file, before)
    yield from lost_values(file, before, given)


@pytest.mark.law
def test_the_remedies_of_arguments_keep_their_promises_and_lose_no_value():
    cases = argument_cases()
    drawn = cases[:: max(1, len(cases) // examples(test=80, part=1_000, night=10**6))]
    broken = [(*case, *problems) for case in drawn if (problems := list(check_arguments(*case)))]
    assert not broken, f"{len(broken)} of {len(drawn)}: {broken[:5]}"


def fixes(count: int) -> list[object]:
    """Return what the plans of some stacks with arguments print and give to programs."""
    cases = argument_cases()
    files = [file_of(*case) for case in cases[-len(cases) // 20 :: len(cases) // 20 // count]]
    questions = [to_question(load(file)) for file in files]
    return [plan_json(plan(one), StackWording(one))[key] for one in questions for key in ("findings", "together")]


def test_the_order_of_fixes_does_not_depend_on_the_seed_of_hashes():
    words = [sys.executable, "-c", "import json, tests.planning.test_remedies as t; print(json.dumps(t.fixes(8)))"]
    other = {**os.environ, "PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"}
    done = subprocess.run(words, cwd=ROOT, env=other, check=True, capture_output=True, text=True)
    assert json.loads(done.stdout) == json.loads(json.dumps(fixes(8)))
    assert "without the value of" in done.stdout
