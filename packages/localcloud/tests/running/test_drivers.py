"""The scenario's drivers reach the servers of revisions, and a wrong combination fails as on Cloud Run."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from localcloud.running.simulated import simulated_runtimes
from localcloud.world.cloud import Cloud
from localcloud.world.runtime import RevisionFailedError, RevisionSpec
from localcloud.world.scenario import Run, Scenario, ScenarioError, parse
from localcloud.world.timeline import Clock

SERVICE = "projects/p/locations/us-east4/services/gemma"
NAME = f"{SERVICE}/revisions/gemma-00001-abc"


def template(compatibility: str | None) -> dict[str, object]:
    container: dict[str, object] = {
        "image": "us-docker.pkg.dev/p/r/vllm@sha256:0",
        "command": ["vllm", "serve"],
        "args": ["simulated/tiny", "--port=8000"],
        "ports": [{"containerPort": 8000}],
        "env": [] if compatibility is None else [{"name": "VLLM_ENABLE_CUDA_COMPATIBILITY", "value": compatibility}],
        "resources": {"limits": {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "1"}},
        "startupProbe": {"periodSeconds": 60, "failureThreshold": 12, "httpGet": {"path": "/health", "port": 8000}},
    }
    return {"containers": [container], "nodeSelector": {"accelerator": "nvidia-l4"}, "scaling": {"maxInstanceCount": 1}}


def start(folder: Path, run: Run, compatibility: str | None) -> str:
    """Start a revision and stop it; return the last lines of its log, empty if it started."""
    folder.mkdir()

    async def started() -> str:
        cloud = Cloud(state=folder, project="p", clock=Clock(speed=300), scenario=Scenario(run=run))
        runtime = simulated_runtimes(cloud).revisions
        try:
            await runtime.start(RevisionSpec(name=NAME, service=SERVICE, template=template(compatibility)))  # pyright: ignore[reportArgumentType] - JSON
            await runtime.stop(NAME)
        except RevisionFailedError:
            return "\n".join(path.read_text(encoding="utf-8") for path in (folder / "logs").iterdir())
        finally:
            await cloud.close()
        return ""

    return asyncio.run(started())


def test_a_secret_is_read_at_each_start_and_a_disabled_version_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    version, account = "projects/p/secrets/key/versions/1", "server@p.iam.gserviceaccount.com"
    given: dict[str, Any] = {**template("1"), "serviceAccount": account}
    reference = {"secretKeyRef": {"secret": "key", "version": "1"}}
    given["containers"][0]["env"].append({"name": "T", "valueSource": reference})
    spec = RevisionSpec(name=NAME, service=SERVICE, template=given)

    async def refused() -> str:
        cloud = Cloud(state=tmp_path, project="p", clock=Clock(speed=300), scenario=Scenario(run=Run()))
        monkeypatch.setattr(cloud.policies, "allows", lambda *_: True)
        cloud.store.put("secretmanager.secrets", version.partition("/versions/")[0], {"name": "key"})
        cloud.store.put("secretmanager.versions", version, {"state": "ENABLED", "_data": "eA=="})
        revisions = simulated_runtimes(cloud).revisions
        try:
            await revisions.start(spec)
            cloud.store.put("secretmanager.versions", version, {"state": "DISABLED", "_data": "eA=="})
            await revisions.start(spec)
        except RevisionFailedError as error:
            return str(error)
        finally:
            await revisions.stop(NAME)
            await cloud.close()
        return ""

    assert asyncio.run(refused()) == f"Secret Version [{version}] is in DISABLED state."


def test_the_scenario_decides_which_way_a_revision_starts(tmp_path: Path):
    newer = Run(gpu_drivers={"nvidia-l4": 580})
    assert start(tmp_path / "580", newer, "0") == ""
    assert "too old (found version 12020)" in start(tmp_path / "default", Run(), "0")


def test_a_driver_that_nobody_saw_is_refused():
    with pytest.raises(ScenarioError, match=r"run\.gpu_drivers\.nvidia-l4"):
        parse({"run": {"gpu_drivers": {"nvidia-l4": 550}}}, "test")
