"""Read patterns of the loading modes on a slow network, the planner's ratios between them, and gcsfuse's memory."""

import json
import os
import re
import struct
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from judges.real.gcsfuse_program import StoreEndpoint
from judges.real.home import Need, RealHome, run
from judges.real.mount_stacks import options_of_mode, stacks
from judges.real.mount_world import BUCKET, MountWorld
from judges.real.rows import JudgeReport, NotJudgedError, require
from judges.real.throttled_store import ConnectionLimits, Reads, Store, store
from planning.data.overheads import constant
from planning.speed.startup import LOAD_RATES

NETWORK: Final = ConnectionLimits(first_byte_s=0.05, bytes_per_s=12e6)
"""One connection. The rate is a fifth of a usual one, so that the network and not this machine limits each mode."""
_TENSORS: Final = 24
_TENSOR_BYTES: Final = 12 * 2**20
_OBJECT: Final = "large/model.safetensors"
_ADAPTER: Final = "large/adapter_model.safetensors"
_ONCE: Final = 1.1
"""Bytes that were read, in sizes of the object: less than this is once."""
_BLOCK_BYTES: Final = 16 * 2**20
"""`--read-block-size-mb` of gcsfuse, its default."""
_LOST_BLOCKS: Final = 3
"""Blocks that buffered reads fetch in vain: the loader reads the header at the start of the file, then closes and maps it."""
_OVERLAP: Final = 2
"""Reads at once of a reader that sends one after the other: the next begins while the former is being closed."""
_LIMITS: Final = {
    "fuse-buffered": "gcsfuse reads 3 blocks for each CPU at once (workerpool/static_worker_pool.go), so an instance with more has more",
    "streamer": "more only if one connection of Cloud Storage is faster than a plain mount",
}
_REQUIREMENTS: Final = Path(__file__).with_name("streamer.txt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """One read of the object in a mode."""

    seconds: float
    reads: Reads

    @property
    def times(self) -> float:
        """Bytes that the store sent, in sizes of the object."""
        return self.reads.content_bytes / (_TENSORS * _TENSOR_BYTES)

    def __str__(self) -> str:
        megabytes = self.reads.content_bytes / 1e6
        return f"{self.reads.requests} requests, {megabytes:.0f} MB, {self.reads.most} at once, {self.seconds:.1f} s"


def judge_reads(report: JudgeReport, world: MountWorld) -> None:
    """Count each mode's reads of one checkpoint by vLLM's loader, and compare their rates with the planner's."""
    world.put(_OBJECT, _checkpoint())
    stack = next(iter(stacks()))
    plain, buffered = options_of_mode(stack, "fuse"), options_of_mode(stack, "fuse-buffered")
    found: dict[str, Pattern] = {}
    with report.judging(f"reads of mode fuse, {NETWORK}: one after the other") as notes:
        found["fuse"] = one = _mounted(world, plain, "safetensors")
        require(one.reads.most <= _OVERLAP and one.times < _ONCE, f"{one}")
        notes.append(str(one))
    with report.judging("the same with safetensors-load-strategy=prefetch: some or all bytes are read twice") as notes:
        planned, twice = constant("FUSE_PREFETCH_READS"), _mounted(world, plain, "prefetch")
        require(_ONCE < twice.times < planned + _ONCE - 1, f"{twice}, the planner reads {planned:g} times")
        notes.append(f"{twice}; {twice.times:.1f} times, planned {planned:g}")
    once = 1 + _LOST_BLOCKS * _BLOCK_BYTES / (_TENSORS * _TENSOR_BYTES)
    with report.judging(f"reads of mode fuse-buffered, {NETWORK}: parallel, with read-ahead, each byte once") as notes:
        found["fuse-buffered"] = several = _mounted(world, buffered, "safetensors")
        require(several.reads.most > _OVERLAP and several.times < once, f"{several}")
        notes.append(str(several))
    with report.judging(
        "the same with safetensors-load-strategy=prefetch: bytes are read twice, and not sooner"
    ) as notes:
        twice = _mounted(world, buffered, "prefetch")
        require(twice.times > once and "fuse-buffered" in found, f"{twice}")
        slower = twice.seconds / found["fuse-buffered"].seconds
        require(slower > 1, f"{twice}: faster than without, so the stacks should have it")
        notes.append(f"{twice}; {twice.times:.1f} times")
    with report.judging(f"reads of mode streamer, {NETWORK}: parallel, each byte once") as notes:
        found["streamer"] = streamed = _streamed(world)
        require(streamed.reads.most > _OVERLAP and streamed.times < _ONCE, f"{streamed}")
        notes.append(str(streamed))
    for mode in ("fuse-buffered", "streamer"):
        _judge_ratio(report, found, mode)
    _judge_memory(report, world, buffered)


def _judge_memory(report: JudgeReport, world: MountWorld, options: tuple[str, ...]) -> None:
    """Compare gcsfuse's peak memory with the planner's, with a model and an adapter that two readers each read at the same time."""
    with report.judging(
        "memory of gcsfuse with buffered reads of a model and an adapter: the planner's blocks"
    ) as notes:
        world.put(_ADAPTER, _checkpoint())
        planned_mib = constant("FUSE_BUFFERS_GIB") * 1024
        with world.gcsfuse.mounted(BUCKET, options) as folder:
            before_mib = _peak_mib(folder)
            world.loaded("prefetch", [str(folder / _OBJECT), str(folder / _ADAPTER)])
            blocks_mib = _peak_mib(folder) - before_mib
        text = f"{blocks_mib:.0f} MiB beside {before_mib:.0f} MiB of the process, planned {planned_mib:g} MiB"
        require(_BLOCK_BYTES / 2**20 < blocks_mib <= planned_mib, text)
        notes.append(text)


def _peak_mib(folder: Path) -> float:
    """Return the peak memory of the gcsfuse that is mounted on a folder."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (process / "cmdline").read_bytes().split(b"\0")[-2:-1] == [os.fsencode(folder)]:
                peak = re.search(r"^VmHWM:\s+(\d+) kB", (process / "status").read_text(), flags=re.MULTILINE)
                return int(peak[1]) / 1024 if peak else 0.0
    raise NotJudgedError(f"no gcsfuse is mounted on {folder}")


def _judge_ratio(report: JudgeReport, found: Mapping[str, Pattern], mode: str) -> None:
    """Compare a mode's rate with that of a plain mount, which has one connection: a mode cannot exceed its number of connections."""
    with report.judging(f"the planner's rate of {mode}, as a multiple of the rate of fuse") as notes:
        if not {mode, "fuse"} <= found.keys():
            raise NotJudgedError("a mode was not judged")
        planned = constant(LOAD_RATES[mode]) / constant(LOAD_RATES["fuse"])
        measured, most = found["fuse"].seconds / found[mode].seconds, found[mode].reads.most
        require(measured > 1, f"contradicted: planned {planned:.1f}, measured {measured:.1f}")
        text = f"planned {planned:.1f}, measured {measured:.1f} with {most} connections"
        if most < planned:
            raise NotJudgedError(f"does not hold here: {text}; {_LIMITS[mode]}")
        require(measured > planned / 2, f"contradicted: {text}")
        notes.append(text)


def _mounted(world: MountWorld, options: tuple[str, ...], loader: str) -> Pattern:
    with store(world.cloud, token=world.operator, network=NETWORK) as proxy:
        gcsfuse = world.gcsfuse.through(StoreEndpoint(url=proxy.json_api, credentials=None))
        with gcsfuse.mounted(BUCKET, options) as folder:
            return _pattern(world, proxy, loader, str(folder / _OBJECT), {})


def _streamed(world: MountWorld) -> Pattern:
    """Read with the real streamer, which finds the store by the variable of Google's C++ client for an emulator."""
    folder = _streamer(world.home)
    with store(world.cloud, token=world.operator, network=NETWORK) as proxy:
        variables = {"CLOUD_STORAGE_EMULATOR_ENDPOINT": f"{proxy.url}/storage", "PYTHONPATH": str(folder)}
        return _pattern(world, proxy, "streamer", f"gs://{BUCKET}/{_OBJECT}", variables)


def _pattern(world: MountWorld, proxy: Store, loader: str, file: str, variables: Mapping[str, str]) -> Pattern:
    answer = world.loaded(loader, [file], variables)
    require(answer["tensors"] == _TENSORS, f"the loader read {answer['tensors']} of {_TENSORS} tensors")
    return Pattern(seconds=float(answer["seconds"]), reads=proxy.reads)


def _streamer(home: RealHome) -> Path:
    """Return the folder of the installed streamer. Raises NotJudgedError if it cannot be installed."""
    folder = home.folder / "streamer"
    if not (folder / "runai_model_streamer_gcs").is_dir():
        home.get(Need(what="the Run:ai streamer for Cloud Storage", where=str(folder), disk_gib=0.1, takes_s=10))
        python = str(home.real_vllm.programs / "python")
        words = ["--python", python, "--target", str(folder), "--no-deps", "--require-hashes", "-r", str(_REQUIREMENTS)]
        done = run([str(Path(sys.executable).with_name("uv")), "pip", "install", "--quiet", *words], limit_s=600)
        if done.returncode:
            raise NotJudgedError(f"the streamer was not installed: {done.stderr.strip().splitlines()[-1]}")
    return folder


def _checkpoint() -> bytes:
    """Return a file of random tensors in the format of safetensors."""
    ends = [(index * _TENSOR_BYTES, (index + 1) * _TENSOR_BYTES) for index in range(_TENSORS)]
    tensors = {
        f"model.layers.{index:02d}.weight": {"dtype": "BF16", "shape": [_TENSOR_BYTES // 2], "data_offsets": offsets}
        for index, offsets in enumerate(ends)
    }
    header = json.dumps(tensors).encode()
    return struct.pack("<Q", len(header)) + header + os.urandom(_TENSOR_BYTES) * _TENSORS
