"""The stand-ins behind the real engine, in front of the local cloud's own REST services: one resource of every type, through its whole life."""

import asyncio
import json
import os
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from localcloud.plugins import serve
from localcloud.plugins.overlay import OVERLAYS
from localcloud.plugins.rest import LocalCloudTransport, Rest
from localcloud.server.app import Options, open_cloud
from localcloud.services import networks
from localcloud.tests.idle_cloud import idle_runtimes
from localcloud.tests.plugins.harness import create_all, declared, engine, operation_of, run
from localcloud.tests.plugins.test_oracle_more import ARGS, Wire
from localcloud.tests.server.test_replay import IMAGE
from localcloud.world.scenario import Images, Scenario

PROGRAM = Path(__file__).parent / "program"
LIMIT_S = 120
# Lists that show leaked resources of the program.
LISTS = {
    "run/v2/projects/p1/locations/us-east4/services": "services",
    "secretmanager/v1/projects/p1/secrets": "secrets",
    "storage/storage/v1/b?project=p1": "items",
    "artifactregistry/v1/projects/p1/locations/us-east4/repositories": "repositories",
    "artifactregistry/v1/projects/p1/locations/us-central1/repositories": "repositories",
    "compute/compute/beta/projects/p1/global/networks": "items",
    "compute/compute/beta/projects/p1/global/firewalls": "items",
    "compute/compute/beta/projects/p1/regions/us-east4/subnetworks": "items",
    "compute/compute/beta/projects/p1/regions/us-east4/routers": "items",
    "monitoring/v3/projects/p1/notificationChannels": "notificationChannels",
    "monitoring/v3/projects/p1/alertPolicies": "alertPolicies",
    "monitoring/v1/projects/p1/dashboards": "dashboards",
}

NOT_RECORDED = {"gcp:projects/serviceIdentity:ServiceIdentity", "gcp:serviceaccount/iAMMember:IAMMember"}


@dataclass
class Workspace:
    """The program with a state of its own, and the cloud that it runs against."""

    folder: Path
    environment: dict[str, str]
    rest: Rest
    output: str = field(default="")

    async def pulumi(self, *arguments: str, code: int = 0) -> str:
        command = [str(Path(sys.executable).parent / "pulumi"), *arguments, "--non-interactive"]
        child = await asyncio.create_subprocess_exec(
            *command,
            cwd=self.folder,
            env=self.environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        written, _ = await asyncio.wait_for(child.communicate(), timeout=LIMIT_S)
        text = written.decode()
        self.output += text
        assert child.returncode == code, f"{arguments}: {child.returncode}\n{text[-6000:]}"
        return text

    async def up(self, *options: str) -> str:
        return await self.pulumi("up", "--yes", "--skip-preview", *options)

    def state(self) -> dict[str, Any]:
        """The checkpoint as the engine wrote it."""
        file = next((self.folder.parent / "backend").glob(".pulumi/stacks/*/dev.json"))
        return json.loads(file.read_text(encoding="utf-8"))["checkpoint"]["latest"]

    def outputs(self) -> dict[str, Any]:
        return next(each for each in self.state()["resources"] if each["type"] == "pulumi:pulumi:Stack")["outputs"]

    async def left(self) -> list[str]:
        return await left(self.rest)


async def left(rest: Rest) -> list[str]:
    found = []
    for path, key in LISTS.items():
        where, _, query = path.partition("?")
        page = await rest.get(where, dict(part.split("=") for part in query.split("&") if part))
        found += [f"{where}: {each.get('name')}" for each in page.get(key) or []]
    return found


async def in_workspace(tmp_path: Path, scenario: Any) -> None:
    (tmp_path / "cloud").mkdir()
    (tmp_path / "backend").mkdir()
    folder = tmp_path / "program"
    shutil.copytree(PROGRAM, folder, ignore=shutil.ignore_patterns("__pycache__"))
    cloud = await open_cloud(tmp_path / "cloud", Options(project="p1"), idle_runtimes)
    try:
        token = cloud.cloud.tokens.issue_access_token(cloud.cloud.operator, lifetime_s=3600)
        # docker searches for build contexts relative to its working directory, the program's folder when the local cloud starts the command there.
        os.chdir(folder)
        async with (
            serve(cloud.base_url, token=token, environment={"GOOGLE_PROJECT": "p1"}) as ports,
            Rest(LocalCloudTransport(cloud.base_url), token=token) as rest,
        ):
            environment = {
                **os.environ,
                "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
                "PULUMI_BACKEND_URL": f"file://{tmp_path / 'backend'}",
                "PULUMI_CONFIG_PASSPHRASE": "local",
                "PULUMI_SKIP_UPDATE_CHECK": "true",
                "PULUMI_DEBUG_PROVIDERS": ports.debug_providers,
                "GOOGLE_CLOUD_PROJECT": "p1",
            }
            workspace = Workspace(folder, environment, rest)
            await workspace.pulumi("stack", "init", "dev")
            await scenario(workspace)
    finally:
        await cloud.close()


@pytest.fixture(autouse=True)
def free_addresses(monkeypatch):
    """Let a destroy finish at once. Google keeps the subnetwork of a service for up to two hours."""
    monkeypatch.setattr(networks, "HELD_S", 0.0)


def test_every_recorded_type_lives_its_whole_life_and_leaves_nothing_without_the_engine(tmp_path):
    async def life() -> set[str]:
        options = Options(project="p1", scenario=Scenario(images=Images(existing=(IMAGE,))))
        cloud = await open_cloud(tmp_path, options, idle_runtimes)
        try:
            token = cloud.cloud.tokens.issue_access_token(cloud.cloud.operator, lifetime_s=3600)
            wire = Wire(LocalCloudTransport(cloud.base_url))
            async with (
                engine(wire, token=token, project="p1", region="us-east4") as attached,
                Rest(LocalCloudTransport(cloud.base_url), token=token) as rest,
            ):
                before = await left(rest)
                made = await create_all(attached, args=ARGS)
                assert len(await left(rest)) > len(before)
                for name, resource in made.items():
                    again = await attached.read(resource)
                    assert again is not None, name
                    news = await attached.check(resource.type, name, declared(args=ARGS)[name]["inputs"], again.inputs)
                    assert operation_of(await attached.diff(again, news)) == "same", name
                for resource in reversed(made.values()):
                    await attached.delete(resource)
                    assert await attached.read(resource) is None, resource.type
                assert await left(rest) == before
                return {resource.type for resource in made.values()}
        finally:
            await cloud.close()

    assert set(OVERLAYS) - run(life(), limit_s=LIMIT_S) == NOT_RECORDED


@pytest.mark.long
@pytest.mark.engine
def test_every_type_lives_its_whole_life_under_the_real_engine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # puts the working directory back at the end

    async def life(workspace: Workspace) -> None:
        before = await workspace.left()
        await workspace.pulumi("preview", "--config", "gcp:region=us-central1")
        assert await workspace.left() == before

        await workspace.up()
        assert {*OVERLAYS, "docker:index/image:Image"} <= {each["type"] for each in workspace.state()["resources"]}
        first = workspace.outputs()
        assert first["elsewhere"] == "projects/p1/locations/us-central1/repositories/elsewhere"
        made = {each.partition(": ")[0] for each in set(await workspace.left()) - set(before)}
        assert made == {path.partition("?")[0] for path in LISTS}
        await workspace.pulumi("preview", "--refresh", "--expect-no-changes")

        changed = await workspace.up("--config", "changed=true")
        assert "replaced" in changed
        assert workspace.outputs()["repoDigest"] != first["repoDigest"]
        await workspace.pulumi("preview", "--refresh", "--expect-no-changes")
        shown = workspace.output + json.dumps(workspace.state())
        assert "hf_canary" not in shown
        assert "registry_canary" not in shown

        await workspace.pulumi("destroy", "--yes", "--skip-preview")
        assert workspace.state().get("resources", []) == []
        assert await workspace.left() == before

    asyncio.run(in_workspace(tmp_path, life))


@pytest.mark.long
@pytest.mark.engine
def test_what_is_changed_and_deleted_behind_the_programs_back_is_drift_that_the_next_up_takes_back(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    program = (
        "import pulumi_gcp as gcp\n"
        "bucket = gcp.storage.Bucket('bucket', name='b-1', location='US-EAST4', labels={'a': 'b'})\n"
        "secret = gcp.secretmanager.Secret('secret', secret_id='token', replication={'auto': {}})\n"
    )

    async def drift(workspace: Workspace) -> None:
        (workspace.folder / "__main__.py").write_text(program)
        await workspace.up()
        behind = {"labels": {"a": "other"}, "defaultEventBasedHold": True, "versioning": {"enabled": True}}
        await workspace.rest.call("PATCH", "storage/storage/v1/b/b-1", body=behind)
        await workspace.rest.call("DELETE", "secretmanager/v1/projects/p1/secrets/token")
        found = json.loads(await workspace.pulumi("preview", "--refresh", "--json"))
        assert (found["changeSummary"]["update"], found["changeSummary"]["create"]) == (1, 1)
        step = next(each for each in found["steps"] if each["op"] == "update")
        assert {"labels.a", "defaultEventBasedHold"} <= set(step["detailedDiff"])
        # Values that the program does not set are the service's choice, according to the real provider's schema.
        assert not {path for path in step["detailedDiff"] if path.startswith("versioning")}
        await workspace.up("--refresh")
        bucket = await workspace.rest.get("storage/storage/v1/b/b-1")
        assert (bucket["labels"]["a"], bucket["defaultEventBasedHold"]) == ("b", False)
        assert (await workspace.rest.get("secretmanager/v1/projects/p1/secrets/token"))["name"].endswith("/token")

    asyncio.run(in_workspace(tmp_path, drift))
