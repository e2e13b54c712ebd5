"""Read patterns of the loading modes on a slow network, and gcsfuse's memory."""

import json
import os
import re
import struct
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from dev.judges.real.gcsfuse_program import StoreEndpoint
from dev.judges.real.home import Need, RealHome, run
from dev.judges.real.mount_world import BUCKET, MountWorld
from dev.judges.real.throttled_store import ConnectionLimits, Reads, Store, store

NETWORK: Final = ConnectionLimits(first_byte_s=0.05, bytes_per_s=12e6)
"""One connection. The rate is a fifth of a usual one, so that the network and not this machine limits each mode."""
_TENSORS: Final = 24
_TENSOR_BYTES: Final = 12 * 2**20
OBJECT_BYTES: Final = _TENSORS * _TENSOR_BYTES
_OBJECT: Final = "large/model.safetensors"
_ADAPTER: Final = "large/adapter_model.safetensors"
ONCE: Final = 1.1
"""Bytes that were read, in sizes of the object: less than this is once."""
BLOCK_BYTES: Final = 16 * 2**20
"""`--read-block-size-mb` of gcsfuse, its default."""
LOST_BLOCKS: Final = 3
"""Blocks that buffered reads fetch in vain: the loader reads the header at the start of the file, then closes and maps it."""
OVERLAP: Final = 2
"""Reads at once of a reader that sends one after the other: the next begins while the former is being closed."""
LIMITS: Final = {
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
        return self.reads.content_bytes / OBJECT_BYTES

    def __str__(self) -> str:
        megabytes = self.reads.content_bytes / 1e6
        return f"{self.reads.requests} requests, {megabytes:.0f} MB, {self.reads.most} at once, {self.seconds:.1f} s"


def stage_large(world: MountWorld) -> None:
    """Put the object that is read into the bucket."""
    world.put(_OBJECT, _checkpoint())


def blocks_mib(world: MountWorld, options: Sequence[str]) -> tuple[float, float]:
    """Return gcsfuse's peak memory before a read and what a read of a model and an adapter adds, which two readers each read at the same time."""
    world.put(_ADAPTER, _checkpoint())
    with world.gcsfuse.mounted(BUCKET, options) as folder:
        before_mib = _peak_mib(folder)
        world.loaded("prefetch", [str(folder / _OBJECT), str(folder / _ADAPTER)])
        return before_mib, _peak_mib(folder) - before_mib


def _peak_mib(folder: Path) -> float:
    """Return the peak memory of the gcsfuse that is mounted on a folder."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (process / "cmdline").read_bytes().split(b"\0")[-2:-1] == [os.fsencode(folder)]:
                peak = re.search(r"^VmHWM:\s+(\d+) kB", (process / "status").read_text(), flags=re.MULTILINE)
                return int(peak[1]) / 1024 if peak else 0.0
    pytest.skip(f"no gcsfuse is mounted on {folder}")


def mounted_pattern(world: MountWorld, options: Sequence[str], loader: str) -> Pattern:
    """Mount the bucket and read the object by a loader of vLLM."""
    with store(world.cloud, token=world.operator, network=NETWORK) as proxy:
        gcsfuse = world.gcsfuse.through(StoreEndpoint(url=proxy.json_api, credentials=None))
        with gcsfuse.mounted(BUCKET, options) as folder:
            return _pattern(world, proxy, loader, str(folder / _OBJECT), {})


def streamed_pattern(world: MountWorld) -> Pattern:
    """Read with the real streamer, which finds the store by the variable of Google's C++ client for an emulator."""
    folder = _streamer(world.home)
    with store(world.cloud, token=world.operator, network=NETWORK) as proxy:
        variables = {"CLOUD_STORAGE_EMULATOR_ENDPOINT": f"{proxy.url}/storage", "PYTHONPATH": str(folder)}
        return _pattern(world, proxy, "streamer", f"gs://{BUCKET}/{_OBJECT}", variables)


def _pattern(world: MountWorld, proxy: Store, loader: str, file: str, variables: Mapping[str, str]) -> Pattern:
    answer = world.loaded(loader, [file], variables)
    assert answer["tensors"] == _TENSORS, f"the loader read {answer['tensors']} of {_TENSORS} tensors"
    return Pattern(seconds=float(answer["seconds"]), reads=proxy.reads)


def _streamer(home: RealHome) -> Path:
    """Return the folder of the installed streamer. Skips the test if it cannot be installed."""
    folder = home.folder / "streamer"
    if not (folder / "runai_model_streamer_gcs").is_dir():
        home.get(Need(what="the Run:ai streamer for Cloud Storage", where=str(folder), disk_gib=0.1, takes_s=10))
        python = str(home.real_vllm.programs / "python")
        words = ["--python", python, "--target", str(folder), "--no-deps", "--require-hashes", "-r", str(_REQUIREMENTS)]
        done = run([str(Path(sys.executable).with_name("uv")), "pip", "install", "--quiet", *words], limit_s=600)
        if done.returncode:
            pytest.skip(f"the streamer was not installed: {done.stderr.strip().splitlines()[-1]}")
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
