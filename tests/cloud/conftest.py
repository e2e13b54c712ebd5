"""A local cloud with a bucket for weights, as the staging commands reach it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import requests

from gemma_serving.cloud.staging.bucket import WeightsBucket
from gemma_serving.cloud.staging.copying import CopyPlan, stage
from gemma_serving.cloud.staging.sources import FolderSource
from gemma_serving.contracts.proof import Asker
from gemma_serving.contracts.staged_weights import MANIFEST
from localcloud.rest.errors import CloudError
from localcloud.services import storage_objects
from localcloud.tests import idle_cloud
from localcloud.world.scenario import OperationDurations, Scenario

ROOT = Path(__file__).resolve().parents[2]
PROJECT = "local-project"
PART = 1000
"""Bytes of a part in these tests."""


@dataclass
class StagingWorld:
    """The cloud, and what a test did to a bucket."""

    cloud: idle_cloud.Started
    bucket: str
    lines: list = field(default_factory=list)
    progress: list = field(default_factory=list)

    @property
    def target(self):
        return WeightsBucket(self.bucket, PROJECT, Asker(stack="x"), is_shared=True)

    def make_bucket(self, name, **settings):
        body = {"name": name, "location": "us-east4", **settings}
        self.call("POST", f"storage/v1/b?project={PROJECT}", json=body).raise_for_status()
        return WeightsBucket(name, PROJECT)

    def call(self, verb, path, **options):
        headers = {"Authorization": f"Bearer {self.cloud.token}"}
        return requests.request(verb, f"{self.cloud.base_url}/storage/{path}", headers=headers, timeout=60, **options)

    def content(self, name, bucket=None):
        path = f"storage/v1/b/{bucket or self.bucket}/o/{name.replace('/', '%2F')}?alt=media"
        answer = self.call("GET", path)
        answer.raise_for_status()
        return answer.content

    @property
    def folder(self):
        """The folder of its own that the command staged last into: that of the newest manifest."""
        objects = self.target.objects("m-").values()
        newest = max((each for each in objects if each.name.endswith(MANIFEST)), key=lambda each: each.generation)
        return newest.name.rpartition("/")[0]

    def put(self, name, data, bucket=None):
        path = f"upload/storage/v1/b/{bucket or self.bucket}/o?uploadType=media"
        self.call("POST", path, params={"name": name}, data=data).raise_for_status()

    def lose_answers(self, monkeypatch, *names):
        """Store these objects once more than the client hears of it: the answer to the first attempt is 503."""
        store, left = storage_objects.Objects.put, list(names)

        def unheard(objects, bucket, name, *arguments, **options):
            shown = store(objects, bucket, name, *arguments, **options)
            if name in left:
                left.remove(name)
                raise CloudError(503, "UNAVAILABLE", "the answer was lost", reason="backendError")
            return shown

        monkeypatch.setattr(storage_objects.Objects, "put", unheard)
        return left

    def writes(self, bucket=None):
        """How often the server stored each object since `forget`."""
        start = f"{bucket or self.bucket}/"
        found = dict(self.cloud.cloud.written_objects)
        return {name.removeprefix(start): count for name, count in found.items() if name.startswith(start)}

    def forget(self):
        self.cloud.cloud.written_objects.clear()

    def stage(self, source, **options):
        """Stage a source, by default a folder, in small parts."""
        plan = CopyPlan(
            source=FolderSource(folder=source) if isinstance(source, Path) else source,
            target=self.target,
            prefix="m",
            **{"part_bytes": PART, "workers": 4, **options},
        )
        return stage(
            plan,
            lambda file, copied: self.lines.append((file.name, copied)),
            lambda work, done, total: self.progress.append((work, done, total)),
        )


@pytest.fixture(scope="module")
def staging_cloud() -> Iterator[idle_cloud.Started]:
    with idle_cloud.start(scenario=Scenario(operations=OperationDurations(instant=True))) as cloud:
        yield cloud


@pytest.fixture
def stack_file(tmp_path, staging_world, monkeypatch):
    """The settings of a stack whose bucket exists, so that no engine is needed. The test runs in their folder."""
    settings = (ROOT / "Pulumi.l4-qat.yaml").read_text()
    bucket = f"  gemma-serving:bucket: {{existing: {staging_world.bucket}, prefix: m}}\n"
    path = tmp_path / "Pulumi.mine.yaml"
    path.write_text(re.sub(r"(?m)^config:\n", f"config:\n  gcp:project: {PROJECT}\n{bucket}", settings))
    (tmp_path / "Pulumi.yaml").write_text((ROOT / "Pulumi.yaml").read_text())
    monkeypatch.chdir(tmp_path)
    return path


@pytest.fixture
def staging_world(staging_cloud, monkeypatch, request):
    monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", staging_cloud.token)
    monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE", f"{staging_cloud.base_url}/storage/storage/v1/")
    monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_SERVICEUSAGE", f"{staging_cloud.base_url}/serviceusage/")
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name.lower())[-50:].strip("-")
    world = StagingWorld(staging_cloud, name)
    world.make_bucket(name)
    world.forget()
    return world
