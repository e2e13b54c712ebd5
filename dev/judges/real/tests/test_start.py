"""Part `start`: the start of a TPU VM whose image and weights share one network and one disk: what the agent saves by fetching them side by side.

A slow registry, Cloud Storage, network or disk takes as long for each alone as planned, at 1:SCALE, and the simulated server's clock is SCALE
times as fast. Times are those of the agent's lines in Cloud Logging.
"""

import json
import shutil
import tarfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import quote

import pytest

from dev.judges.planted import refuse_planted
from dev.judges.real.docker_image import base_archive
from dev.judges.real.docker_machine import CONTAINER, RealMachines, real_machines
from dev.judges.real.home import ROOT, RealHome, wait_until
from dev.judges.real.relay import Link
from dev.judges.real.shared_disk import SharedDisk, shared_disk
from dev.judges.real.throttled_store import store
from dev.judges.real_vllm.server import DIRECT
from gemma_serving.contracts.guest_attributes import FETCHING_WEIGHTS, LOADING, PULLING_IMAGE, READY
from gemma_serving.contracts.settings_files import settings_file
from gemma_serving.planning.planner import plan
from gemma_serving.stacks.loading import from_file
from gemma_serving.stacks.planned import to_question
from localcloud.running.shims import STORAGE_ADDRESS

STACK = "tpu-v6e4-31b"
SCALE = 20.0
"""Planned seconds per second of this machine."""
SOONER = 0.2
"""Share of the sequential time that must be saved where no shared resource is used up."""
NOTHING = 0.12
"""Share that may be saved where one is: the server's image is unpacked by a processor, in 1 of 14 s."""
SPREAD = 0.1
"""Share by which a stage alone may miss its planned seconds. A machine that is too busy for that judges nothing."""
BUCKET = f"local-project-gemma-{STACK}-models"
SIZE = 32 * 2**20
"""Staged weights of the first case: at the plan's rate, the image needs a larger share of the network than on a machine."""
PADDING = "padding.bin"
DONE = "Done after "
"""Start of the agent's line about the seconds of a part (vm_agent.together)."""
FETCHES = (PULLING_IMAGE, FETCHING_WEIGHTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedStart:
    """The machines, and everything that can slow them down. `unpack_s`: of a pull that nothing slows down. `image_bytes`: compressed.

    `image_on_disk_bytes`: what a pull writes.
    """

    machines: RealMachines
    disk: SharedDisk
    registry: Link
    bucket: Link
    network: Link
    unpack_s: float
    image_bytes: int
    image_on_disk_bytes: int

    def limit(self, *, registry: float = 0.0, bucket: float = 0.0, network: float = 0.0, disk: float = 0.0) -> None:
        """Limit each in bytes per second. The registry and the bucket each limit only their own stream; 0 is no limit."""
        self.registry.bytes_per_s, self.bucket.bytes_per_s, self.network.bytes_per_s = registry, bucket, network
        self.disk.limit(disk)

    def image_rate(self, takes_s: float) -> float:
        """Return the bytes per second at which a pull takes this long."""
        return self.image_bytes / (takes_s - self.unpack_s)

    def pad(self, size: int) -> None:
        """Make the staged weights as large as this."""
        stored = self.machines.project.get(f"storage/storage/v1/b/{BUCKET}/o")["items"]
        config = next(str(one["name"]) for one in stored if str(one["name"]).endswith("/config.json"))
        name = quote(f"{config.rpartition('/')[0]}/{PADDING}", safe="")
        self.machines.project.send("POST", f"upload/storage/v1/b/{BUCKET}/o?uploadType=media&name={name}", bytes(size))

    def used_bytes(self, resource: str) -> int:
        """Return the bytes that a resource has carried."""
        return self.disk.written() if resource == "disk" else self.network.sent_bytes

    def remove(self, *, image: bool, weights: bool) -> None:
        """Remove the server, its image and its weights. The agent then starts the server again."""
        daemon = self.machines.daemon
        daemon.docker("rm", "--force", CONTAINER)
        if image:
            daemon.docker("rmi", self.machines.image)
        if weights:
            for folder in self.machines.project.state.glob("machines/*/mnt/models"):
                shutil.rmtree(folder)

    def phases(self, since: datetime, until: str) -> Mapping[str, float]:
        """Wait for the agent's line of a phase. Return the phases and parts since a time, each with the seconds from the first fetch."""
        found = dict[str, float]()

        def is_logged() -> bool:
            lines = self.machines.project.gemma_json("logs", STACK, "--lines", "2000")["lines"]
            first = None
            for one in (one for one in lines if one["source"] == "agent"):
                at, text = datetime.fromisoformat(str(one["time"])), str(one["text"])
                phase = text if text.startswith(DONE) else text.partition(": ")[2].partition(".")[0]
                if at >= since and (first is not None or phase in FETCHES):
                    first = first or at
                    found.setdefault(phase, (at - first).total_seconds())
            return until in found

        wait_until(is_logged, f"the agent's line {until}")
        return found

    def alone_s(self, *, image: bool) -> float:
        """Remove the image or the weights, and return the seconds until the agent starts the server again."""
        daemon, since = self.machines.daemon, datetime.now(UTC)
        self.remove(image=image, weights=not image)
        wait_until(lambda: daemon.docker("inspect", CONTAINER).returncode == 0, "a server that starts again")
        return self.phases(since, LOADING)[LOADING]

    def together(self) -> Mapping[str, float]:
        """Remove image and weights, and return when each phase began, in seconds after the first byte, to a server that is ready."""
        since = datetime.now(UTC)
        self.remove(image=True, weights=True)
        self.machines.project.gemma(
            "up", STACK, "--restart", "--yes"
        )  # the agent would wait before a third restart of its own
        return self.phases(since, READY)

    def compare(
        self, planned: Sequence[float], notes: list[str], *, least: float = -1.0, most: float = 1.0, shared: str = ""
    ) -> None:
        """Judge the share that is saved. `planned`: of image and weights. `shared`: the resource that is used up, network or disk."""
        weights_s = self.alone_s(image=False)  # first, because the staged weights have changed since the last start
        image_s = self.alone_s(image=True)
        before = self.used_bytes(shared)
        phases = self.together()
        used = (self.used_bytes(shared) - before) / phases[LOADING]
        if phases[LOADING] > (1 - least) * (image_s + weights_s):  # a machine that is busy for a moment slows one start
            phases = min(phases, self.together(), key=lambda one: one[LOADING])
        for name, took_s in (("image alone", image_s), ("weights alone", weights_s), ("together", phases[LOADING])):
            notes.append(f"{name} {took_s:.1f} s, scaled {took_s * SCALE:.0f} s")
        notes += [line.rstrip(".") for line in phases if line.startswith(DONE)]
        share = 1 - phases[LOADING] / (image_s + weights_s)
        ready_s, in_turn_s = phases[READY] * SCALE, (phases[READY] - phases[LOADING] + image_s + weights_s) * SCALE
        notes.append(f"{share:.0%} sooner; ready after {ready_s:.0f} s, in turn {in_turn_s:.0f} s")
        for took_s, stage_s in zip((image_s, weights_s), planned, strict=True):
            if abs(took_s - stage_s) > SPREAD * stage_s:
                pytest.skip(f"{'; '.join(notes)}; a stage alone takes {stage_s:.1f} s as planned, but not here")
        if shared:
            limit = self.network.bytes_per_s if shared == "network" else self.disk.bytes_per_s()
            notes.append(f"the {shared} carried {used / 1e6:.2f} of {limit / 1e6:.2f} MB/s until both were there")
        assert least <= share <= most, f"{'; '.join(notes)}, which is not between {least:.0%} and {most:.0%}"


def planted_lie():
    """Refuse a start that takes as long as its stages one after the other."""
    start = SimpleNamespace(
        alone_s=lambda *, image: 10.0, used_bytes=lambda _: 0, together=lambda: {LOADING: 20.0, READY: 21.0}
    )
    refuse_planted("stages in turn are side by side", lambda: SharedStart.compare(start, (10, 10), [], least=SOONER))


def pulled_s(machines: RealMachines) -> float:
    """Pull the image without the agent, remove it, and return the seconds."""
    machines.daemon.docker("rm", "--force", CONTAINER)
    machines.daemon.docker("rmi", machines.image)
    began_s = time.monotonic()
    done = machines.daemon.docker("pull", machines.image)
    took_s = time.monotonic() - began_s
    assert done.returncode == 0, f"`docker pull`: {done.stderr.strip()}"
    machines.daemon.docker("rmi", machines.image)
    return took_s


def own_archive(home: RealHome) -> Path:
    """Return the archive of the server's image, whose only layer is in no other image, so its pull downloads all of it."""
    archive = home.folder / "start.tar"
    shutil.copyfile(base_archive(home), archive)
    with tarfile.open(archive, "a") as tar:
        tar.addfile(tarfile.TarInfo("own"), BytesIO())
    return archive


def image_bytes(machines: RealMachines) -> int:
    """Return the compressed size of the image's layers."""
    name, _, digest = machines.image.partition("/")[2].partition("@")
    kind = {"Accept": "application/vnd.docker.distribution.manifest.v2+json"}
    asked = urllib.request.Request(f"http://{machines.registry.address}/v2/{name}/manifests/{digest}", headers=kind)
    with DIRECT.open(asked, timeout=10) as answer:
        manifest = cast("Mapping[str, Any]", json.loads(answer.read()))
    return sum(int(layer["size"]) for layer in manifest["layers"])


@pytest.fixture(scope="module")
def planned():
    """The planned start."""
    return plan(to_question(from_file(settings_file(STACK, ROOT), project="local-project"), ROOT)).startup


@pytest.fixture(scope="module")
def shared(home, judge):
    """The cloud, the daemon and the disk, with staged weights and a server that was deployed."""
    registry, bucket, network = Link(), Link(), Link()
    with (
        store("") as proxy,
        shared_disk(home, "start") as disk,
        real_machines(
            home,
            name="start",
            stack=STACK,
            speed=SCALE,
            of_cloud={STORAGE_ADDRESS: proxy.url},
            archive=own_archive(home),
        ) as machines,
    ):
        judge(f"Docker {machines.daemon.version}")
        project = machines.project
        proxy.cloud = project.variables["LOCALCLOUD_URL"]
        proxy.links, machines.relay.links = (bucket, network), (registry, network)
        disk.hold(machines.daemon, project.state / "machines")
        project.pulumi("stack", "init", STACK)
        project.configure(STACK, weights="bucket", tpu__compileCache="off")  # each start compiles, as a first one
        project.gemma("stage_model", STACK, "--yes")
        pulled_s(machines)
        before = disk.written()
        unpack_s = pulled_s(machines)
        image_on_disk_bytes = disk.written() - before
        unpack_s = min(unpack_s, pulled_s(machines))
        project.gemma("up", STACK, "--yes")
        yield SharedStart(
            machines=machines,
            disk=disk,
            registry=registry,
            bucket=bucket,
            network=network,
            unpack_s=unpack_s,
            image_bytes=image_bytes(machines),
            image_on_disk_bytes=image_on_disk_bytes,
        )
        project.gemma("teardown", STACK, "--yes")


@pytest.fixture
def start(shared):
    """Everything that can slow the start down. The next test finds no limit."""
    yield shared
    shared.limit()


def test_as_planned(start, planned, notes):
    """Image and weights side by side: as planned, on a network that the weights alone use up."""
    image_s, weights_s = (stage.takes_s / SCALE for stage in planned.stages[:2])
    start.pad(SIZE)
    start.limit(registry=start.image_rate(image_s), network=SIZE / weights_s)
    # The image needs 60 % of this network, and 6 % of a machine's as planned, so the weights' streams delay it here: 19 to 28 % were saved.
    start.compare((image_s, weights_s), notes, least=SOONER / 2)


# The plan's image and process (273 s for 31B) and all of its seconds of weights (271 s), most of which are the server's and never run beside a pull:
# the most that fetching side by side could save.
def test_own_limits(start, planned, notes):
    """Image and weights side by side: as if no part of either stage needed the server, each limited by its source."""
    image_s, weights_s = planned.pull_s / SCALE, planned.load_s / SCALE
    rate = start.image_rate(image_s)
    start.pad(int(rate * weights_s))
    start.limit(registry=rate, bucket=rate)
    start.compare((image_s, weights_s), notes, least=SOONER)


def test_one_network(start, planned, notes):
    """Image and weights side by side: as if no part of either stage needed the server, both limited by one network."""
    image_s, weights_s = planned.pull_s / SCALE, planned.load_s / SCALE
    rate = start.image_rate(image_s)
    start.pad(int(rate * weights_s))
    start.limit(network=rate)
    start.compare((image_s, weights_s), notes, most=NOTHING, shared="network")


def test_one_disk(start, planned, notes):
    """Image and weights side by side: as if no part of either stage needed the server, both limited by one disk."""
    image_s, weights_s = planned.pull_s / SCALE, planned.load_s / SCALE
    rate = start.image_on_disk_bytes / image_s
    start.limit(disk=rate)
    start.pad(int(rate * weights_s))
    start.compare((image_s, weights_s), notes, most=NOTHING, shared="disk")
