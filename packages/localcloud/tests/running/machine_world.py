"""A machine under test: a cloud with a few fixed answers, a serving document, and waits for the machine's guest attributes."""

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from localcloud.hub.api import HubApi
from localcloud.hub.content import HubFile
from localcloud.hub.repositories import Repository
from localcloud.running.machines import SimulatedMachines
from localcloud.server.hub import answered, asked
from localcloud.tests.google_bodies import google_body
from localcloud.world.runtime import MachineSpec
from localcloud.world.timeline import Clock

NODE = "projects/p/locations/us-east5-a/nodes/n1"
CANARY = "hf_canary0123456789"
OBJECTS = {"gemma/config.json": b"{}", "gemma/model.safetensors": b"weights"}
IMAGE = "us-docker.pkg.dev/p/repo/vllm/vllm-tpu@sha256:" + "a" * 64


def spec(script: str, *, name: str = NODE, **metadata: str) -> MachineSpec:
    return MachineSpec(
        name=name,
        project="p",
        zone="us-east5-a",
        accelerator_type="v6e-4",
        metadata={"startup-script": script, "enable-guest-attributes": "TRUE", **metadata},
        service_account="vm@p.iam.gserviceaccount.com",
    )


def document(*args: str, **changes: Any) -> str:
    return json.dumps(
        {
            "schema": 1,
            "image": IMAGE,
            "command": ["vllm", "serve"],
            "args": [
                "google/gemma-4-E2B-it",
                "--host=0.0.0.0",
                "--port=8000",
                "--tensor-parallel-size=4",
                "--enforce-eager",
                *args,
            ],
            "env": {"VLLM_XLA_CACHE_PATH": "/dev/shm/vllm_cache"},
            "secretEnv": {"HF_TOKEN": "projects/p/secrets/s/versions/3"},
            "port": 8000,
            "shmSizeGib": 10,
            "weights": {"mode": "hub"},
            **changes,
        }
    )


HUB = {("vllm/vllm-tpu", "1"), ("library/img", "latest"), ("o/otelcol-google", "0.135.0")}
"""Images of Docker Hub that exist."""
REPOSITORY = 'on resource "projects/p/locations/us/repositories/repo" (or it may not exist)'


class TinyHub(HubApi):
    """The hub with one small file in each repository."""

    def files(self, repository: Repository) -> dict[str, HubFile]:
        del repository
        return {"config.json": HubFile(name="config.json", content=b"{}", real_bytes=0, is_stated=False)}


def _manifest(request: web.Request, host: str, path: str) -> web.Response:
    name, _, version = path.partition("/manifests/")
    if host == "docker.io":
        known = (name, version) in HUB
        return web.json_response({}) if known else refusal(404, "MANIFEST_UNKNOWN", "manifest unknown")
    if "Authorization" not in request.headers:
        need = 'do not have permission "artifactregistry.repositories.downloadArtifacts"'
        return refusal(401, "DENIED", f"Unauthenticated request. Unauthenticated requests {need} {REPOSITORY}")
    if name.startswith("p/repo/broken"):
        return refusal(502, "UNKNOWN", "Received invalid http status code 429 from external repository")
    if not name.startswith("p/repo/"):
        return refusal(404, "NAME_UNKNOWN", f'Repository "{name.split("/")[1]}" not found')
    return web.json_response({})


def refusal(status: int, code: str, message: str) -> web.Response:
    return web.json_response({"errors": [{"code": code, "message": message}]}, status=status)


async def _cloud(request: web.Request) -> web.Response:  # noqa: PLR0911 - one return for each kind of path
    if request.path.startswith("/registry/"):
        host, _, path = request.path.removeprefix("/registry/").partition("/v2/")
        return _manifest(request, host, path)
    if request.path.startswith("/hub/"):
        return answered(TinyHub(), asked(request))
    if request.headers.get("Authorization") != "Bearer token-of-vm@p.iam.gserviceaccount.com":
        return web.json_response({"error": {"code": 401, "message": "no token"}}, status=401)
    if "/secrets/s/versions/3:access" in request.path:
        payload = {"payload": {"data": base64.b64encode(CANARY.encode()).decode()}}
        return web.json_response(google_body("secretmanager.v1", "AccessSecretVersionResponse", payload))
    if request.path == "/storage/storage/v1/b/models/o":
        listed = [{"name": name, "size": str(len(data)), "generation": "1"} for name, data in OBJECTS.items()]
        return web.json_response(google_body("storage.v1", "Objects", {"items": listed}))
    name = request.path.removeprefix("/storage/storage/v1/b/models/o/")
    if name in OBJECTS:
        begin, end = (int(text) for text in request.headers["Range"].removeprefix("bytes=").split("-"))
        return web.Response(body=OBJECTS[name][begin : end + 1], status=206)
    return web.json_response({"error": {"code": 404, "message": "not found"}}, status=404)


@contextlib.asynccontextmanager
async def machines(state: Path, *, speed: float = 1000, faults: str = "") -> AsyncIterator[SimulatedMachines]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", _cloud)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    running = SimulatedMachines(
        clock=Clock(speed=speed),
        state=state,
        base_url=f"http://127.0.0.1:{runner.addresses[0][1]}",
        access_token=lambda email: f"token-of-{email}",
        id_token=lambda email, audience: f"id-of-{email}-for-{audience}",
        faults=lambda: faults,
    )
    try:
        yield running
    finally:
        await asyncio.gather(*(running.stop(name) for name in list(running._machines)))
        await runner.cleanup()


async def until(condition: Callable[[], object], what: str, limit_s: float = 300) -> None:
    deadline = asyncio.get_running_loop().time() + limit_s
    while not condition():
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError(f"{what} did not happen within {limit_s} s")
        await asyncio.sleep(0.02)
