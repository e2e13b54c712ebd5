"""The start of a stack, as planned and on the simulated server: each phase within the plan's band.

The plan computes a start from constants; the simulator has boots of real servers as data (localcloud/vllm/data/boots.json).
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gemma_serving.planning.data.overheads import constant
from gemma_serving.planning.planner import plan, plan_of
from gemma_serving.planning.settings.paths import with_changes
from gemma_serving.planning.settings.vllm_args import vllm_arguments
from gemma_serving.stacks.planned import to_deployment
from localcloud.vllm import recorded
from localcloud.vllm.arguments import parse
from localcloud.vllm.memory import as_loaded, capacity
from localcloud.vllm.settings import read
from localcloud.vllm.startup import Start
from localcloud.vllm.startup import plan as start_of
from tests.agreement.simulated_stacks import BUILT_IMAGE, ROOT, STACKS, Served, hardware_of, served, settings_of
from tests.planning.corpus.measured import Boot, load, sequential_s, subject_of
from tests.records import replace

LENGTHS = (2048, 4096, None)
PROCESS = (0.6, 1.4)
"""Process, processor and HTTP server, which have no band: the plan's 70 and 53 s on a TPU are one boot's. On Cloud Run the simulated server
starts after the container, so the plan's seconds of the container are not compared."""


def simulated(one: Served, stack: str, folder: Path, **more: str) -> Start:
    """Return the start of the simulated server, with the weights where the stack has them, and with more of its variables."""
    name = one.arguments.model.rpartition("/")[2]
    files = {f"{name}/config.json": 1, f"{name}/model.safetensors": 1}
    mode = one.subject.resolved.weights_mode
    options = {"enable-buffered-read": "true"} if mode == "fuse-buffered" else {}
    listing = folder / "mounts.json"
    listing.write_text(mounted(files, options), encoding="utf-8")
    around = read(
        {
            **dict(plan_of(one.subject).environment),
            "VLLM_SIM_ACCELERATOR": hardware_of(settings_of(stack)),
            "VLLM_SIM_IMAGE": BUILT_IMAGE,
            "VLLM_SIM_PATHS": json.dumps({"/": str(folder)}),
            **({"VLLM_SIM_MOUNTS_FILE": str(listing)} if mode.startswith("fuse") else {}),
            **(
                {"VLLM_SIM_NETWORK_MB_PER_S": "75"}
                if mode.startswith("fuse") and not one.subject.resolved.service.direct_vpc
                else {}
            ),
            **more,
        }
    )
    model = f"/mnt/models/{name}" if mode.startswith("fuse") else one.arguments.model
    return start_of(replace(one.arguments, model=model), around)


def phases(one: Served, stack: str, folder: Path) -> dict[str, float]:
    """Return the simulated seconds by phase."""
    start = simulated(one, stack, folder)
    assert start.capacity is not None, start.steps[-1].error
    found: dict[str, float] = {}
    for step in start.steps:
        if step.charge is not None:
            kind = {"hub": "load", "bucket": "load"}.get(step.charge.what, step.charge.what)
            found[kind] = found.get(kind, 0.0) + step.charge.seconds
    return found


def mounted(files: dict[str, int], options: dict[str, str]) -> str:
    """Return a mount of the weights' bucket as the simulator reads it."""
    return json.dumps([{"path": "/mnt/models", "files": files, "options": options, "readable": True}])


UNMEASURED = {("tpu-v6e4-12b", "load"): 0.1}
"""Phases without a measured boot there, with the share by which they may leave the band. 12B was measured on one chip only, where it read faster
per byte than the sizes that the plan follows."""


def differences(one: Served, stack: str, folder: Path) -> Iterator[str]:
    """Yield each phase that is outside the plan's band."""
    planned, found = one.subject.startup, phases(one, stack, folder)
    warm_up_s = 0.0 if one.subject.resolved.is_tpu else recorded.constant("GPU_WARM_UP_S")
    bands = {
        "load": (planned.load_low_s, planned.load_high_s, found["load"]),
        "compile": (planned.compile_low_s, planned.compile_high_s, found["compile"] + warm_up_s),
    }
    if one.subject.resolved.is_tpu:
        process_s = sequential_s(planned) - planned.load_s - planned.compile_s - constant("VM_IMAGE_PULL_S")
        bands["process"] = (PROCESS[0] * process_s, PROCESS[1] * process_s, found["process"])
    for name, (low, high, seconds) in bands.items():
        spread = UNMEASURED.get((stack, name), 0.0)
        if not low * (1 - spread) <= seconds <= high * (1 + spread):
            yield f"{name}: planned {low:.0f} to {high:.0f} s, simulated {seconds:.0f} s"


@pytest.mark.parametrize("stack", STACKS)
def test_every_phase_of_a_stacks_start_on_the_local_cloud_is_within_the_plans_band(stack: str, tmp_path: Path):
    found = {length: list(differences(served(stack, length), stack, tmp_path)) for length in LENGTHS}
    assert not {length: said for length, said in found.items() if said}


CLOUD_RUN = [stack for stack in STACKS if settings_of(stack).cloud_run is not None]


@pytest.mark.parametrize("stack", CLOUD_RUN)
def test_the_least_memory_that_the_plan_accepts_without_a_finding_starts(stack: str, tmp_path: Path):
    deployment = to_deployment(settings_of(stack), ROOT)
    shipped = {finding.id for finding in plan(deployment).findings}
    accepted = (
        gib
        for gib in range(1, deployment.cloud_run.memory_mib // 1024 + 1)
        if {one.id for one in plan(with_changes(deployment, {"cloud_run.memory_mib": gib * 1024})).findings} <= shipped
    )
    start = simulated(served(stack), stack, tmp_path, VLLM_SIM_MEMORY_LIMIT_MIB=str(1024 * next(accepted)))
    assert [step.error for step in start.steps if step.error is not None] == []


def test_the_local_clouds_recorded_boots_are_those_of_the_corpus():
    corpus = {(boot.id, figure.key): figure.measured for boot in load().boots for figure in boot.figures}
    rows = json.loads((Path(recorded.__file__).parent / "data" / "boots.json").read_text())["boots"]
    keys = {
        "weights_gib": "weights",
        "kv_gib": "kv",
        "compile_s": "compile",
        "load_s": "load",
        "decode": "decode",
        "decode_16": "decode_16",
    }
    stated = {(row["id"], keys[key]): (row[key], "derived" in row) for row in rows for key in keys.keys() & row.keys()}
    assert len(stated) > len(rows)
    assert {each: value for each, (value, is_derived) in stated.items() if each in corpus or not is_derived} == {
        each: corpus.get(each) for each, (_, is_derived) in stated.items() if each in corpus or not is_derived
    }


CARDS = {"L4": "nvidia-l4", "v6e-1": "v6e-1", "v6e-4": "v6e-4", "v5e-1": "v5litepod-1"}
FIGURES = {"weights": "weights_gib", "kv": "available_gib", "kv_tokens": "tokens", "kv_blocks": "num_blocks"}
UNLIKE = {
    "qat-31b-l4-offload-14": "what 14 GiB of offloaded weights leave on the device was not modeled",
    "fp8-26b-v6e-1": "three longest requests of 2.6 GiB beside 26 GiB of weights, whose repack no row has",
    "e2b-text-l4": "release 0.21.0 counts tokens of a window otherwise; its GiB agree",
}
"""Boots whose KV cache the simulator misses, with the reason."""


def recorded_boots() -> Iterator[Boot]:
    """Yield the corpus' boots of Gemma 4 checkpoints on the simulator's cards that got as far as a KV cache."""
    for boot in load().boots:
        known = boot.deployment.model.partition("/")[2].startswith("gemma-4") and boot.usable_gib is None
        if known and boot.deployment.accelerator in CARDS and any(figure.key in FIGURES for figure in boot.figures):
            yield boot


@pytest.mark.parametrize("boot", [pytest.param(boot, id=boot.id) for boot in recorded_boots()])
def test_weights_and_kv_cache_are_those_of_the_recorded_boot(boot: Boot):
    resolved = subject_of(boot).resolved
    arguments = parse(["vllm", "serve", *vllm_arguments(resolved.vllm, model_or_path=resolved.model_id)])
    model, card = recorded.find_model(arguments.model), recorded.find_card(CARDS[boot.deployment.accelerator or ""])
    assert model is not None
    assert card is not None
    found = capacity(arguments, as_loaded(model, card, BUILT_IMAGE), card)
    shares = {
        figure.key: getattr(found, FIGURES[figure.key]) / figure.measured - 1
        for figure in boot.figures
        if figure.key in FIGURES
    }
    different = {key: f"{share:+.1%}" for key, share in shares.items() if abs(share) > 0.05}
    assert bool(different) == (boot.id in UNLIKE), different
