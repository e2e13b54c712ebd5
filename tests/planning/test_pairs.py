"""Two settings about one thing: one is the default of the other, a rule compares them, or a reason says why they are independent."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.planner import plan
from gemma_serving.planning.question.types import Plan
from gemma_serving.planning.settings.fields import own_fields
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.stacks.loading import SettingsError
from gemma_serving.stacks.planned import to_question
from tests.planning.test_remedies import STACKS, Values, apply, load

DURATIONS, SIZES, COUNTS = ("20m", "1h", "5h", "2d"), ("8Gi", "16Gi", "24Gi"), (1, 2, 8, 64)
IMAGES, TOKENS, RATES, USERS = (70, 280, 1_120), (16, 600, 20_000), (0.5, 40.0, 900.0), (1_000, 2_000)
SUBJECTS: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "tokens of an image": dict.fromkeys(
        ("vllm.multimodal.imageTokens", "vllm.multimodal.maxImageTokens", "workload.imageTokens"), IMAGES
    ),
    "images": dict.fromkeys(("vllm.multimodal.images", "workload.images"), COUNTS),
    "videos": dict.fromkeys(("vllm.multimodal.videos", "workload.videos"), COUNTS),
    "audio": {"vllm.multimodal.audios": (0, 1), "workload.audioS": (0.0, 20.0)},
    "tokens of a request": dict.fromkeys(("vllm.maxModelLen", "workload.inputTokens", "workload.outputTokens"), TOKENS),
    "requests at once": dict.fromkeys(("vllm.maxNumSeqs", "cloudRun.concurrency", "workload.users"), COUNTS),
    "instances": dict.fromkeys(("cloudRun.minInstances", "cloudRun.maxInstances", "cloudRun.gpuQuota"), (1, 2, 3)),
    "vCPU": {"cloudRun.cpu": (4, 8), "cloudRun.cpuQuota": COUNTS},
    "quota of memory": {"cloudRun.memory": SIZES, "cloudRun.memoryQuota": ("8Gi", "40Gi")},
    "host memory": {
        "cloudRun.memory": SIZES,
        "cloudRun.mount.cacheSize": ("1Gi", "12Gi"),
        "vllm.cpuOffloadGib": (0.5, 5),
    },
    "adapters": {"vllm.lora.atOnce": (1, 2, 8), "vllm.lora.adapters": ({"a": "o/a"},), "workload.adapters": (1, 2, 8)},
    "end of a run": dict.fromkeys(("tpu.maxRunDuration", "tpu.idleAfter", "maxAge"), DURATIONS),
    "idle time": dict.fromkeys(("tpu.idleAfter", "alerts.idle"), DURATIONS),
    "wait for capacity": dict.fromkeys(("tpu.waitPerZone", "tpu.waitTotal"), DURATIONS),
    "time of all probes": {
        "cloudRun.startupProbe.initialDelay": ("0s", "60s", "240s"),
        "cloudRun.startupProbe.period": ("10s", "60s", "240s"),
        "cloudRun.startupProbe.failureThreshold": (1, 10, 60),
    },
    "time of a probe": dict.fromkeys(("cloudRun.startupProbe.period", "cloudRun.startupProbe.timeout"), ("1s", "60s")),
    "USD": {"tpu.maxUsdPerHour": (0.1, 50.0), "maxUsd": (1, 5_000), "alerts.dailyCost": (1.0, 900.0)},
    "tokens per second": dict.fromkeys(("smoke.minDecodeTokPerS", "measuredTokPerS"), RATES),
    "user": {"image.uid": USERS, "cloudRun.mount.uid": USERS},
    "group": {"image.gid": USERS, "cloudRun.mount.gid": USERS},
}
"""Keys with a number, with values to draw, by unit and subject; what vLLM compares is in tests/planning/test_configurations.py."""
ALONE = frozenset(
    {
        *(
            f"vllm.{key}"
            for key in (
                "maxNumBatchedTokens",
                "blockSize",
                "tensorParallelSize",
                "dataParallelSize",
                "gpuMemoryUtilization",
                "lora.rank",
            )
        ),
        *(f"workload.{key}" for key in ("ratePerS", "prefixShare", "acceptedShare")),
        *("tpu.bootDiskSizeGb", "tpu.readyTimeout", "alerts.ttftGoal", "cloudRun.requestTimeout"),
    }
)
"""Keys that only vLLM compares with another one, or that are the only one of their subject."""
INDEPENDENT: Mapping[tuple[str, str], str] = {
    ("cloudRun.minInstances", "cloudRun.gpuQuota"): "at most maxInstances, which is compared (SCL02)",
    (
        "cloudRun.mount.cacheSize",
        "vllm.cpuOffloadGib",
    ): "pages and pinned memory evict each other (memory/host_memory.py)",
    (
        "vllm.lora.atOnce",
        "vllm.lora.adapters",
    ): "vLLM swaps the others in (--max-loras, docs.vllm.ai/en/latest/features/lora)",
    ("vllm.lora.atOnce", "workload.adapters"): "the same; the time of a swap is not planned (docs/features.md)",
    (
        "vllm.lora.adapters",
        "workload.adapters",
    ): "names on one side, a count in turn on the other (settings/workload.py)",
    ("tpu.maxRunDuration", "maxAge"): "Google ends the VM, a guard the stack; the first counts (docs/costs.md)",
    ("tpu.idleAfter", "alerts.idle"): "one tells, one ends (docs/observability.md)",
    ("tpu.waitPerZone", "tpu.waitTotal"): "the first to end counts (gcp_tpu_provider/capacity.py)",
    (
        "tpu.maxUsdPerHour",
        "alerts.dailyCost",
    ): "one limits what is requested, one tells what a day cost (docs/costs.md)",
    ("maxUsd", "alerts.dailyCost"): "one ends the stack, one tells (docs/costs.md)",
    (
        "smoke.minDecodeTokPerS",
        "measuredTokPerS",
    ): "smoke measures the server, the other sets the plan's rate (docs/smoke.md)",
}
"""Why two keys of a subject need no comparison, with the source."""


def numeric_keys(block: type = Settings, before: str = "") -> Iterator[str]:
    """Yield the keys of all settings with a number, with or without a unit."""
    for field in own_fields(block):
        if field.block is not None:
            yield from numeric_keys(field.block, f"{before}{field.file_key}.")
        elif field.hint in (int, float) or field.quantity is not None:
            yield f"{before}{field.key}"


STACK_OF = {
    "tpu.": "Pulumi.tpu-v6e4.yaml",
    "ParallelSize": "Pulumi.tpu-v6e4.yaml",
    "adapters": "Pulumi.l4-e2b-lora.yaml",
}
"""Example of a stack for keys with a part; the others have an L4."""
OWN_IMAGE = {"repository": "my/image", "digest": f"sha256:{'0' * 64}", "uid": 1_000, "gid": 1_000}
PREPARED: Mapping[str, Values] = {
    "vllm.cpuOffloadGib": {"cloudRun.mount": {"mode": "memory"}, "weights": "bucket", "cloudRun.cpu": 8},
    "cloudRun.mount.cacheSize": {"cloudRun.mount": {"mode": "fuse-cached"}, "weights": "bucket"},
    "image.uid": {"image": OWN_IMAGE, "cloudRun.mount.gid": 1_000},
    "image.gid": {"image": OWN_IMAGE, "cloudRun.mount.uid": 1_000},
    "workload.imageTokens": {"workload.images": 2},
}
"""Settings without which a key has no effect."""


def planned(stack: str, edits: tuple[tuple[str, Any], ...]) -> Plan | str:
    """Return the plan of an edited stack; the error of one that cannot be read."""
    requests = {"workload": {"inputTokens": 200, "outputTokens": 20}} if "workload." in str(edits) else {}
    prepared = {key: value for name, _ in edits for key, value in PREPARED.get(name, {}).items()}
    try:
        return plan(to_question(load(apply(STACKS[stack], {**requests, **prepared, **dict(edits)}))))
    except (SettingsError, PlanningError) as error:
        return str(error)


def ids_of(found: Plan | str) -> frozenset[str]:
    return frozenset({"an error"} if isinstance(found, str) else {one.id for one in found.findings})


def compares(grid: Sequence[Sequence[Plan | str]]) -> bool:
    """Return whether a finding or an error depends on both keys: in a cell, but not in all of its row, nor in all of its column.

    A cell that cannot be read has no findings, so only another error is compared with it.
    """
    lines = [
        (cells, [other[column] for other in grid], cells[column]) for cells in grid for column in range(len(cells))
    ]
    return any(_misses(row, cell) & _misses(column, cell) for row, column, cell in lines)


def _misses(line: Sequence[Plan | str], cell: Plan | str) -> set[str]:
    """Return the ids of a cell that some cell of a line does not have."""
    others = line if isinstance(cell, str) else [one for one in line if not isinstance(one, str)]
    return {name for name in ids_of(cell) if any(name not in ids_of(one) for one in others)}


def unanswered() -> Iterator[tuple[str, str]]:
    """Yield the pairs of keys of a subject that are not compared and have no reason, and the reasons of pairs that are."""
    for keys in SUBJECTS.values():
        for first, second in itertools.combinations(keys, 2):
            name = next((STACK_OF[part] for part in STACK_OF if part in first + second), "Pulumi.l4-12b-qat.yaml")
            grid = [[planned(name, ((first, x), (second, y))) for y in keys[second]] for x in keys[first]]
            if compares(grid) is ((first, second) in INDEPENDENT):
                yield first, second


def test_each_key_with_a_number_has_a_subject():
    listed = {key for keys in SUBJECTS.values() for key in keys}
    assert set(numeric_keys()) <= listed | ALONE
    assert not listed & ALONE


def test_two_keys_about_one_thing_are_compared_or_have_a_reason():
    assert len(INDEPENDENT) <= 15
    assert not list(unanswered())
