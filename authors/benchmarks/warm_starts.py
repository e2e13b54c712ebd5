"""What each way to start a TPU server again takes: planned, and measured on the local cloud with the real agent.

    python -m authors.benchmarks.warm_starts [--weights hub|bucket] [--compile-cache machine|bucket|off] [--speed N] [--json]

The agent of the TPU machine runs unchanged on a simulated machine. What is simulated (boot, image, download, load, compilation) is charged
from the local cloud's own tables, in simulated seconds; the planner has tables of its own (planning.data.overheads). What the agent does itself
(documents, docker, copies, archives) takes real seconds on this computer and is shown beside them.
"""

import argparse
import asyncio
import base64
import hashlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from secrets import token_hex
from typing import Any, Final, Literal, cast

import aiohttp

from components.startup_script import startup_script
from contracts.compile_cache import ARCHIVE_METADATA_KEY, ARCHIVE_PREFIX, ArchiveSettings, programs_key
from contracts.guest_attributes import DOCUMENT_HASH_KEY, GUEST_ATTRIBUTE_NAMESPACE, PHASE_KEY, READY
from contracts.serving_document import (
    DOCUMENT_METADATA_KEY,
    SCRIPT_METADATA_KEY,
    BucketWeights,
    ServingDocument,
    parse_document,
)
from localcloud.running.shims.machine import read_json
from localcloud.running.simulated import simulated_runtimes
from localcloud.server.app import Options, open_cloud
from localcloud.world.cloud import Cloud
from localcloud.world.downloads import SIMULATED_BYTES
from localcloud.world.runtime import MachineSpec
from planning import Deployment, TpuOptions, plan
from planning.data.images import IMAGES
from planning.data.overheads import VM_BOOT_S
from planning.question.types import CompileCache
from planning.question.vllm_args import vllm_arguments

MODEL: Final = "google/gemma-4-E2B-it"
ACCELERATOR: Final = "v6e-1"
PROJECT: Final = "local-project"
ACCOUNT: Final = f"gemma-machine@{PROJECT}.iam.gserviceaccount.com"
BUCKET: Final = "warm-starts"
NODE: Final = f"projects/{PROJECT}/locations/us-east5-a/nodes/warm"
PORT: Final = 8000
DEFAULT_SPEED: Final = 400.0
WAIT_S: Final = 300.0
"""Real seconds that one step may take on a busy computer."""
ENGINE: Final = ("process", "load", "compile", "cached")
"""What the server itself does: its own start."""
_WEIGHTS_PATH: Final = "/mnt/models/gemma-4-E2B-it"
_GB: Final = 1e9
_KEY: Final = f"projects/{PROJECT}/secrets/archive-key"

Weights = Literal["hub", "bucket"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStart:
    """One way to start, as the simulator charged it."""

    name: str
    planned_s: float | None
    charges_s: Mapping[str, float]
    """Simulated seconds by what they stand for."""
    downloaded_bytes: Mapping[str, int]
    """Bytes by where they came from: image, hub, weights and programs of the bucket."""
    real_s: float
    """Real seconds of all else: the agent, and the stand-ins of docker and systemd. They depend on this computer."""

    @property
    def charged_s(self) -> float:
        """Simulated seconds in all."""
        return sum(self.charges_s.values())

    @property
    def beyond_engine_s(self) -> float:
        """Simulated seconds that the server's own start does not explain."""
        return sum(seconds for what, seconds in self.charges_s.items() if what not in ENGINE)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m authors.benchmarks.warm_starts", description="How servers start again."
    )
    parser.add_argument("--weights", choices=("hub", "bucket"), default="hub", help="where the weights come from")
    parser.add_argument("--compile-cache", choices=("machine", "bucket", "off"), default="bucket")
    parser.add_argument("--speed", type=float, default=DEFAULT_SPEED, help="simulated seconds per real second")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    args = parser.parse_args(argv)
    steps = asyncio.run(measure(weights=args.weights, compile_cache=args.compile_cache, speed=args.speed, say=_say))
    if args.json:
        print(json.dumps({"steps": [asdict(step) for step in steps]}, indent=2))
    else:
        print("\n".join(table(steps)))
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def table(steps: Sequence[MeasuredStart]) -> list[str]:
    """Return the steps as a Markdown table."""
    head = ("start", "planned", "charged", "engine", "boot, image, downloads", "GB from hub or bucket")
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    for step in steps:
        beyond_s, gb = step.beyond_engine_s, sum(_fetched(step).values()) / _GB
        planned = "-" if step.planned_s is None else f"{step.planned_s:.0f} s"
        cells = (
            step.name,
            planned,
            f"{step.charged_s:.0f} s",
            f"{step.charged_s - beyond_s:.0f} s",
            f"{beyond_s:.0f} s",
            f"{gb:.2f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _fetched(step: MeasuredStart) -> Mapping[str, int]:
    return {name: size for name, size in step.downloaded_bytes.items() if name != "image"}


async def measure(
    *,
    weights: Weights = "hub",
    compile_cache: CompileCache = "bucket",
    speed: float = DEFAULT_SPEED,
    say: Callable[[str], None] = lambda _line: None,
) -> list[MeasuredStart]:
    """Start E2B on one v6e chip cold, change flags, crash it, reboot its machine and lose it."""
    planned = plan(_deployment(weights, compile_cache)).startup
    first = document_of(weights, compile_cache)
    renamed = document_of(weights, compile_cache, served_model_name="other")
    longer = document_of(weights, compile_cache, served_model_name="other", max_model_len=8_192)
    async with open_machine(weights, compile_cache, speed=speed) as machine:

        async def step(
            name: str, planned_s: float | None, act: Callable[[], Awaitable[None]], document: str
        ) -> MeasuredStart:
            say(f"{name} ...")
            return await machine.step(name, planned_s, act, document)

        return [
            await step(
                "cold start, from the boot of the machine",
                planned.total_s + VM_BOOT_S,
                lambda: machine.boot(first),
                first,
            ),
            await step("a flag that keeps the programs", planned.restart_s, lambda: machine.change(renamed), renamed),
            await step("a flag that compiles again", planned.recompile_s, lambda: machine.change(longer), longer),
            await step("crash of the server", planned.restart_s, machine.crash, longer),
            await step("reboot of the machine", planned.reboot_s, machine.reboot, longer),
            await step(
                "lost machine, from the boot of the next",
                planned.node_replacement_s,
                lambda: machine.lose(longer),
                longer,
            ),
        ]


def _deployment(weights: Weights, compile_cache: CompileCache) -> Deployment:
    return Deployment(
        model=MODEL,
        accelerator=ACCELERATOR,
        weights_mode="hub" if weights == "hub" else "disk",
        tpu=TpuOptions(compile_cache=compile_cache),
    )


def document_of(weights: Weights, compile_cache: CompileCache, **options: str | int) -> str:
    """Return the serving document of E2B with the planner's options, as a stack writes it; `options` change some of them."""
    answer, image = plan(_deployment(weights, compile_cache)), IMAGES["vllm-tpu"]
    model = MODEL if weights == "hub" else _WEIGHTS_PATH
    return ServingDocument(
        image=f"{image.repository}@{image.digest}",
        command=("vllm", "serve"),
        arguments=vllm_arguments(replace(answer.vllm, **options), model_or_path=model, port=PORT),
        environment=dict(answer.environment),
        secret_environment={},
        port=PORT,
        weights=None if weights == "hub" else BucketWeights(f"gs://{BUCKET}/weights", _WEIGHTS_PATH),
    ).text()


@dataclass(slots=True)
class MeasuredMachine:
    """A machine, and what the local cloud has charged and served it."""

    cloud: Cloud
    metadata: dict[str, str]
    archives: bool
    """Whether a step ends only when its programs are archived."""
    speed: float
    """The simulated seconds of a real one."""
    _seen: int = 0
    _served: dict[str, int] = field(default_factory=dict[str, int])

    async def step(
        self, name: str, planned_s: float | None, act: Callable[[], Awaitable[None]], document: str
    ) -> MeasuredStart:
        """Do something to the machine, wait until it serves the document with another container, and return what that took."""
        before, begin_s = self._container_id(), time.monotonic()
        await act()
        await self.until(
            lambda: self._is_ready(document) and self._container_id() not in {"", before}, f"{name}: ready"
        )
        elapsed_s = time.monotonic() - begin_s
        charges = self.cloud.runtimes.machines.charges(NODE)[self._seen :]
        self._seen += len(charges)
        seconds: dict[str, float] = {}
        sizes: dict[str, int] = {}
        for charge in charges:
            what = str(charge["what"])
            seconds[what] = seconds.get(what, 0.0) + cast("float", charge["seconds"])
            if charge["bytes"]:
                sizes[what] = sizes.get(what, 0) + cast("int", charge["bytes"])
        for what, size, took_s in self._downloads():
            sizes[what] = sizes.get(what, 0) + size
            seconds[what] = seconds.get(what, 0.0) + took_s
        if self.archives:
            key = programs_key(parse_document(document))
            await self.until(
                lambda: any(f"/{key}/" in name for name, _ in self._objects()), f"{name}: programs archived"
            )
        real_s = max(elapsed_s - sum(seconds.values()) / self.speed, 0.0)
        return MeasuredStart(name=name, planned_s=planned_s, charges_s=seconds, downloaded_bytes=sizes, real_s=real_s)

    def _objects(self) -> list[tuple[str, Any]]:
        return list(self.cloud.store.under("storage.objects", f"{BUCKET}/{ARCHIVE_PREFIX}/"))

    def _downloads(self) -> list[tuple[str, int, float]]:
        """Return what was read from the bucket since the last call: weights or programs, bytes, simulated seconds."""
        found: list[tuple[str, int, float]] = []
        for row in self.cloud.downloads.rows():
            name, size = str(row["object"]), int(row["bytes"])
            new = size - self._served.get(name, 0)
            self._served[name] = size
            if new:
                what = "programs" if f"/{ARCHIVE_PREFIX}/" in name else "weights"
                found.append((what, new, float(row["seconds"]) * new / size))
        return found

    def _folder(self) -> Path:
        (folder,) = (self.cloud.state / "machines").glob("*warm*")
        return folder

    def _container(self) -> Mapping[str, Any]:
        machines = self.cloud.state / "machines"
        return (
            (read_json(self._folder() / "containers" / "gemma-serving.json") or {})
            if any(machines.glob("*warm*"))
            else {}
        )

    def _container_id(self) -> str:
        return str(self._container().get("id", ""))

    def _is_ready(self, document: str) -> bool:
        now = self.cloud.runtimes.machines.guest_attributes(NODE).get(GUEST_ATTRIBUTE_NAMESPACE, {})
        wanted = hashlib.sha256(document.encode()).hexdigest()
        return (now.get(PHASE_KEY), now.get(DOCUMENT_HASH_KEY)) == (READY, wanted)

    def published(self, key: str) -> str:
        """Return a guest attribute of the machine; empty if there is none."""
        found = self.cloud.runtimes.machines.guest_attributes(NODE).get(GUEST_ATTRIBUTE_NAMESPACE, {})
        return str(found.get(key, ""))

    def agent_log(self) -> str:
        """Return what the agent has written to the journal."""
        return "".join(path.read_text(encoding="utf-8") for path in self._folder().glob("units/*.log"))

    async def put_object(self, name: str, data: bytes) -> None:
        """Store an object in the bucket, as its operator."""
        async with _operator(self.cloud) as session:
            await session.post(_upload_url(name), data=data)

    @staticmethod
    async def until(condition: Callable[[], object], what: str) -> None:
        """Wait until the condition is true. Raises TimeoutError after WAIT_S."""
        deadline = time.monotonic() + WAIT_S
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what} did not come about within {WAIT_S:g} s")
            await asyncio.sleep(0.02)

    async def boot(self, document: str) -> None:
        """Boot a new machine that serves a document."""
        self.metadata[DOCUMENT_METADATA_KEY] = document
        await self.cloud.runtimes.machines.boot(
            MachineSpec(
                name=NODE,
                project=PROJECT,
                zone="us-east5-a",
                accelerator_type=ACCELERATOR,
                metadata=self.metadata,
                service_account=ACCOUNT,
            )
        )

    async def change(self, document: str) -> None:
        """Change the document in the machine's metadata."""
        await asyncio.sleep(0)
        self.metadata[DOCUMENT_METADATA_KEY] = document
        self.cloud.runtimes.machines.set_metadata(NODE, self.metadata)

    async def crash(self) -> None:
        """End the server's process as a crash does: at once, and while its machine goes on."""
        await asyncio.sleep(0)
        os.kill(int(self._container()["pid"]), signal.SIGKILL)

    async def reboot(self) -> None:
        """Reboot the machine: it keeps its disk."""
        await self.cloud.runtimes.machines.reboot(NODE)

    async def lose(self, document: str) -> None:
        """Lose the machine with its disk, and boot another one."""
        await self.cloud.runtimes.machines.stop(NODE)
        await self.boot(document)


@asynccontextmanager
async def open_machine(
    weights: Weights, compile_cache: CompileCache, *, speed: float = DEFAULT_SPEED, may_archive: bool = True
) -> AsyncGenerator[MeasuredMachine]:
    """Yield a machine that is not booted yet, beside a local cloud of its own. `may_archive` False leaves out the grant of the archive."""
    with tempfile.TemporaryDirectory(prefix="warm-starts-") as folder:
        opened = await open_cloud(Path(folder), Options(project=PROJECT, speed=speed), simulated_runtimes)
        archives = compile_cache == "bucket"
        metadata = {SCRIPT_METADATA_KEY: startup_script(), "enable-guest-attributes": "TRUE"}
        if archives:
            uri = f"gs://{BUCKET}/{ARCHIVE_PREFIX}"
            settings = ArchiveSettings(uri=uri, accelerator=ACCELERATOR, key=f"{_KEY}/versions/1")
            metadata[ARCHIVE_METADATA_KEY] = settings.text()
        try:
            await _prepare(opened.cloud, weights, may_archive=may_archive)
            yield MeasuredMachine(opened.cloud, metadata, archives, speed)
            await opened.cloud.runtimes.machines.stop(NODE)
        finally:
            await opened.close()


async def _prepare(cloud: Cloud, weights: Weights, *, may_archive: bool) -> None:
    """Make the account, the bucket with its grants as a stack makes them, and the weights as placeholders."""
    async with _operator(cloud) as session:
        await session.post("/admin/projects", json={"projectId": PROJECT})
        for api in ("iam", "storage", "secretmanager"):
            await session.post(f"/serviceusage/v1/projects/{PROJECT}/services/{api}.googleapis.com:enable", json={})
        account = {"accountId": ACCOUNT.partition("@")[0]}
        await session.post(f"/iam/v1/projects/{PROJECT}/serviceAccounts", json=account)
        await session.post(f"/storage/storage/v1/b?project={PROJECT}", json={"name": BUCKET, "location": "US-EAST5"})
        member = f"serviceAccount:{ACCOUNT}"
        prefix = f"projects/_/buckets/{BUCKET}/objects/{ARCHIVE_PREFIX}/"
        condition = {"title": "archive", "expression": f'resource.name.startsWith("{prefix}")'}
        bindings = [
            {"role": "roles/storage.objectViewer", "members": [member]},
            {"role": "roles/storage.objectUser", "members": [member], "condition": condition},
        ]
        await session.put(
            f"/storage/storage/v1/b/{BUCKET}/iam", json={"version": 3, "bindings": bindings[: 2 if may_archive else 1]}
        )
        await _make_key(session, member)
        if weights == "bucket":
            size = round(plan(_deployment(weights, "machine")).memory.checkpoint_gib * 2**30)
            for name, simulated in (("config.json", 1_000), ("model.safetensors", size)):
                await session.post(_upload_url(f"weights/{name}"), data=b"placeholder")
                described = {"metadata": {SIMULATED_BYTES: str(simulated)}}
                await session.patch(f"/storage/storage/v1/b/{BUCKET}/o/weights%2F{name}", json=described)


async def _make_key(session: aiohttp.ClientSession, member: str) -> None:
    """Make the key that signs archives, which the machine's account may read."""
    parent, _, secret = _KEY.rpartition("/secrets/")
    await session.post(f"/secretmanager/v1/{parent}/secrets?secretId={secret}", json={"replication": {"automatic": {}}})
    payload = {"payload": {"data": base64.b64encode(token_hex(32).encode()).decode()}}
    await session.post(f"/secretmanager/v1/{_KEY}:addVersion", json=payload)
    binding = {"role": "roles/secretmanager.secretAccessor", "members": [member]}
    await session.post(f"/secretmanager/v1/{_KEY}:setIamPolicy", json={"policy": {"bindings": [binding]}})


def _operator(cloud: Cloud) -> aiohttp.ClientSession:
    token = cloud.tokens.issue_access_token(cloud.operator)
    headers = {"Authorization": f"Bearer {token}"}
    return aiohttp.ClientSession(base_url=cloud.base_url, headers=headers, raise_for_status=True)


def _upload_url(name: str) -> str:
    return f"/storage/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name={name}"


if __name__ == "__main__":
    sys.exit(main())
