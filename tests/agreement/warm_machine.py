"""A machine of the local cloud with the real agent, and the simulated seconds and bytes that each of its starts costs."""

import asyncio
import base64
import hashlib
import os
import signal
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
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
from planning.question.vllm_args import vllm_arguments

MODEL: Final = "google/gemma-4-E2B-it"
ACCELERATOR: Final = "v6e-1"
PROJECT: Final = "local-project"
ACCOUNT: Final = f"gemma-machine@{PROJECT}.iam.gserviceaccount.com"
BUCKET: Final = "warm-starts"
NODE: Final = f"projects/{PROJECT}/locations/us-east5-a/nodes/warm"
PORT: Final = 8000
SPEED: Final = 400.0
WAIT_S: Final = 300.0
"""Maximum real seconds of one step on a busy computer."""
ENGINE: Final = ("process", "load", "compile", "cached")
"""Parts of the server's own start."""
_WEIGHTS_PATH: Final = "/mnt/models/gemma-4-E2B-it"
_KEY: Final = f"projects/{PROJECT}/secrets/archive-key"

Weights = Literal["hub", "bucket"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStart:
    """One kind of start, as charged by the simulator."""

    name: str
    planned_s: float | None
    charges_s: Mapping[str, float]
    """Simulated seconds by part."""
    downloaded_bytes: Mapping[str, int]
    """Bytes by source: image, hub, weights and programs of the bucket."""

    @property
    def charged_s(self) -> float:
        """Return the total simulated seconds."""
        return sum(self.charges_s.values())

    @property
    def beyond_engine_s(self) -> float:
        """Return the simulated seconds outside the server's own start."""
        return sum(seconds for what, seconds in self.charges_s.items() if what not in ENGINE)


async def measure() -> list[MeasuredStart]:
    """Start E2B on one v6e chip cold, change flags, crash it, reboot its machine and lose it."""
    planned = plan(_deployment("hub")).startup
    first = document_of("hub")
    renamed = document_of("hub", served_model_name="other")
    longer = document_of("hub", served_model_name="other", max_model_len=8_192)
    async with open_machine("hub") as machine:
        return [
            await machine.step("cold", planned.total_s + VM_BOOT_S, lambda: machine.boot(first), first),
            await machine.step("kept programs", planned.restart_s, lambda: machine.change(renamed), renamed),
            await machine.step("other programs", planned.recompile_s, lambda: machine.change(longer), longer),
            await machine.step("crash", planned.restart_s, machine.crash, longer),
            await machine.step("reboot", planned.reboot_s, machine.reboot, longer),
            await machine.step("lost", planned.node_replacement_s, lambda: machine.lose(longer), longer),
        ]


def _deployment(weights: Weights) -> Deployment:
    return Deployment(
        model=MODEL,
        accelerator=ACCELERATOR,
        weights_mode="hub" if weights == "hub" else "disk",
        tpu=TpuOptions(compile_cache="bucket"),
    )


def document_of(weights: Weights, **options: str | int) -> str:
    """Return the serving document of E2B with the planner's options, as a stack writes it. `options` changes some of them."""
    answer, image = plan(_deployment(weights)), IMAGES["vllm-tpu"]
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
    """A machine, and the time and bytes that the local cloud charged for it."""

    cloud: Cloud
    metadata: dict[str, str]
    archives: bool = True
    """True if a step finishes only after its programs are archived."""
    _seen: int = 0
    _served: dict[str, int] = field(default_factory=dict[str, int])

    async def step(
        self, name: str, planned_s: float | None, act: Callable[[], Awaitable[None]], document: str
    ) -> MeasuredStart:
        """Act on the machine, wait until it serves the document with another container, and return the cost."""
        before = self._container_id()
        await act()
        await self.until(
            lambda: self._is_ready(document) and self._container_id() not in {"", before}, f"{name}: ready"
        )
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
        return MeasuredStart(name=name, planned_s=planned_s, charges_s=seconds, downloaded_bytes=sizes)

    def _objects(self) -> list[tuple[str, Any]]:
        return list(self.cloud.store.under("storage.objects", f"{BUCKET}/{ARCHIVE_PREFIX}/"))

    def _downloads(self) -> list[tuple[str, int, float]]:
        """Return the reads from the bucket since the last call: weights or programs, bytes, simulated seconds."""
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
        """Return a guest attribute of the machine, or an empty string."""
        found = self.cloud.runtimes.machines.guest_attributes(NODE).get(GUEST_ATTRIBUTE_NAMESPACE, {})
        return str(found.get(key, ""))

    def agent_log(self) -> str:
        """Return the agent's journal."""
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
                raise TimeoutError(f"{what} did not happen within {WAIT_S:g} s")
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
        """Kill the server's process as in a crash: immediately, while its machine keeps running."""
        await asyncio.sleep(0)
        os.kill(int(self._container()["pid"]), signal.SIGKILL)

    async def reboot(self) -> None:
        """Reboot the machine, which keeps its disk."""
        await self.cloud.runtimes.machines.reboot(NODE)

    async def lose(self, document: str) -> None:
        """Lose the machine with its disk, and boot another one."""
        await self.cloud.runtimes.machines.stop(NODE)
        await self.boot(document)


@asynccontextmanager
async def open_machine(weights: Weights, *, may_archive: bool = True) -> AsyncGenerator[MeasuredMachine]:
    """Yield a machine that is not booted yet, with a separate local cloud. `may_archive` False omits the grant for the archive."""
    with tempfile.TemporaryDirectory(prefix="warm-starts-") as folder:
        opened = await open_cloud(Path(folder), Options(project=PROJECT, speed=SPEED), simulated_runtimes)
        metadata = {SCRIPT_METADATA_KEY: startup_script(), "enable-guest-attributes": "TRUE"}
        uri = f"gs://{BUCKET}/{ARCHIVE_PREFIX}"
        settings = ArchiveSettings(uri=uri, accelerator=ACCELERATOR, key=f"{_KEY}/versions/1")
        metadata[ARCHIVE_METADATA_KEY] = settings.text()
        try:
            await _prepare(opened.cloud, weights, may_archive=may_archive)
            yield MeasuredMachine(opened.cloud, metadata)
            await opened.cloud.runtimes.machines.stop(NODE)
        finally:
            await opened.close()


async def _prepare(cloud: Cloud, weights: Weights, *, may_archive: bool) -> None:
    """Create the account, the bucket with a stack's grants, and the weights as placeholders."""
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
            size = round(plan(_deployment(weights)).memory.checkpoint_gib * 2**30)
            for name, simulated in (("config.json", 1_000), ("model.safetensors", size)):
                parts = aiohttp.MultipartWriter("related")
                parts.append_json({"name": f"weights/{name}", "metadata": {SIMULATED_BYTES: str(simulated)}})
                parts.append(b"placeholder")
                await session.post(f"/storage/upload/storage/v1/b/{BUCKET}/o?uploadType=multipart", data=parts)


async def _make_key(session: aiohttp.ClientSession, member: str) -> None:
    """Create the key that signs archives and grant the machine's account read access."""
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
