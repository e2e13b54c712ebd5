"""Kills in the middle of staging: one more run completes it, and no part is uploaded twice but those in flight."""

import functools
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gemma_serving.contracts.staged_weights import MANIFEST, PARTS
from localcloud.services import storage_objects
from tests.cloud.conftest import PROJECT
from tests.laws import examples
from tests.safetensors_files import safetensors

pytestmark = pytest.mark.long
ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
PARTS_EACH = 40
"""Parts of each of the two large files: more than one compose joins."""
KILLS = examples(test=3, part=10, night=10)
PARALLEL = 4
LIMIT_S = 120


@pytest.fixture
def project(tmp_path, staging_world):
    """A stack whose bucket exists, so that no engine is needed."""
    settings = re.sub(r"(?m)^ .*:modelRevision:.*\n", "", (ROOT / "Pulumi.l4-qat.yaml").read_text())
    bucket = f"  gemma-serving:bucket: {{existing: {staging_world.bucket}, prefix: m}}\n"
    (tmp_path / "Pulumi.kills.yaml").write_text(
        re.sub(r"(?m)^config:\n", f"config:\n  gcp:project: {PROJECT}\n{bucket}", settings)
    )
    (tmp_path / "Pulumi.yaml").write_text((ROOT / "Pulumi.yaml").read_text())
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "config.json").write_text("{}")
    for number in (1, 2):
        (checkpoint / f"model-{number}.safetensors").write_bytes(noise(number))
    return tmp_path


@functools.cache
def noise(seed):
    """Return the content of a large file."""
    return safetensors(random.Random(seed).randbytes(PARTS_EACH * MIB - 1000))  # noqa: S311 - planted bytes, no secret


def begin(project, cloud, log, *options, origin="checkpoint"):
    command = [
        sys.executable,
        "-m",
        "scripts.stage_model",
        "--stack",
        "kills",
        "--from",
        origin,
        "--json",
        *options,
    ]
    hidden = ("PULUMI_", "GOOGLE_", "CLOUDSDK_")
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith(hidden)},
        "PYTHONPATH": str(ROOT),
        "GOOGLE_OAUTH_ACCESS_TOKEN": cloud.token,
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": f"{cloud.base_url}/storage/storage/v1/",
    }
    return subprocess.Popen(
        [*command, "--part-size", "1", "--parallel", str(PARALLEL)],
        cwd=project,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=log,
        stdin=subprocess.DEVNULL,
    )


@dataclass
class Tripwire:
    """Counts what the server stores, and stops it in the moment when it has stored `mark` objects."""

    begun: list = field(default_factory=list)
    stored: int = 0
    mark: int | None = None
    reached: threading.Event = field(default_factory=threading.Event)
    resumed: threading.Event = field(default_factory=threading.Event)

    def attach(self, monkeypatch):
        store = storage_objects.Objects.put

        def counted(objects, bucket, name, *arguments, **options):
            self.begun.append(name)
            shown = store(objects, bucket, name, *arguments, **options)
            self.stored += 1
            if self.mark is not None and self.stored >= self.mark:
                self.reached.set()
                self.resumed.wait(LIMIT_S)
            return shown

        monkeypatch.setattr(storage_objects.Objects, "put", counted)

    def signal_at(self, mark, process, number):
        """Send a signal while the server holds still, and let the server go on when the process is gone."""
        self.reached.clear()
        self.resumed.clear()
        self.mark = mark
        try:
            assert self.reached.wait(LIMIT_S), f"the server stored {self.stored} objects, not {mark}"
            process.send_signal(number)
            return process.wait(LIMIT_S)
        finally:
            self.mark = None
            self.resumed.set()


@pytest.fixture
def tripwire(monkeypatch):
    wire = Tripwire()
    wire.attach(monkeypatch)
    return wire


@pytest.mark.law
def test_kills_and_one_more_run(project, staging_world, tripwire):
    world = staging_world
    # The last object but the manifest is the 87th: 80 parts, two groups and a whole of each large file, and config.json.
    marks = sorted(random.Random(2026).sample(range(1, 87), KILLS))  # noqa: S311 - planted bytes, no secret
    with (project / "log").open("w") as log:
        for mark in marks:
            process = begin(project, world.cloud, log)
            assert tripwire.signal_at(mark, process, signal.SIGKILL) == -signal.SIGKILL
            assert not any(name.endswith(MANIFEST) for name in world.target.objects("m-"))
        last = begin(project, world.cloud, log)
        out, _ = last.communicate(timeout=LIMIT_S)
    assert last.returncode == 0, (project / "log").read_text()
    report = json.loads(out)
    assert report["copied"] + report["kept"] == 3
    for number in (1, 2):
        name = f"model-{number}.safetensors"
        assert world.content(f"{world.folder}/{name}") == (project / "checkpoint" / name).read_bytes()
    parts = {name: count for name, count in world.writes().items() if is_part(name)}
    assert len(parts) == 2 * PARTS_EACH
    # The server stored each part once, however often the command was killed ...
    assert set(parts.values()) == {1}
    # ... and what arrived a second time and was not stored is at most what was in flight at a kill.
    assert sum(is_part(name) for name in tripwire.begun) <= 2 * PARTS_EACH + KILLS * PARALLEL
    assert world.target.objects(PARTS) == {}
    # The stack's file names what was staged, and nothing else in it changed.
    settings = (project / "Pulumi.kills.yaml").read_text()
    assert f"existing: {world.bucket}, prefix: m, manifest: sha256:{report['manifest']}" in settings
    shipped = (ROOT / "Pulumi.l4-qat.yaml").read_text().partition("config:\n")[2]
    assert re.sub(r"(?m)^ .*:modelRevision:.*\n", "", shipped) in settings


def is_part(name):
    """Whether an object is one part of a file, not a group of joined parts."""
    found = re.fullmatch(rf"{PARTS}/m-[0-9a-f]{{16}}/.+/(\d+)-(\d+)", name)
    return found is not None and int(found[2]) - int(found[1]) <= MIB


def test_ctrl_c_says_that_the_same_command_goes_on(project, staging_world, tripwire):
    with (project / "log").open("w") as log:
        code = tripwire.signal_at(5, begin(project, staging_world.cloud, log), signal.SIGINT)
    said = (project / "log").read_text()
    assert code == 130, said
    assert "interrupted. Run the same command again to copy the missing parts." in said
