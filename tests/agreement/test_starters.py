"""A container whose command is a Python program: it runs as the instance's account, with real folders behind the volumes in memory."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gemma_serving.components.container_starter import container_command
from gemma_serving.contracts.container_start import ContainerStart
from gemma_serving.contracts.path_guard import GUARD_ARGUMENT
from localcloud.running.starters import GoogleAccess
from localcloud.tests.running.running_server import Answer, ask
from localcloud.tests.running.test_revisions import NAME, SERVICE, revisions
from localcloud.tests.running.test_revisions import template as of_revision
from localcloud.world.run_messages import LogLine
from localcloud.world.runtime import RevisionFailedError, RevisionSpec

ACCOUNT = "server@p.iam.gserviceaccount.com"
MODEL = "gemma-4-E2B-it"
PROGRAM = """
import os, pathlib, sys, urllib.request
url = f"http://{os.environ['GCE_METADATA_HOST']}/computeMetadata/v1/instance/service-accounts/default/token"
token = urllib.request.urlopen(urllib.request.Request(url, headers={"Metadata-Flavor": "Google"}), timeout=30).read().decode()
folder = pathlib.Path(sys.argv[1])
print("found", sorted(item.name for item in folder.iterdir()), flush=True)
folder = folder / "gemma-4-E2B-it"
folder.mkdir()
(folder / "config.json").write_text("{}")
(folder / "model.safetensors").write_text("x")
print("token for", token.split('"')[3], os.environ["VLLM_CACHE_ROOT"] != "/mnt/weights/cache", flush=True)
try:
    import localcloud
except ImportError:
    print("a bare interpreter", flush=True)
os.execvp(sys.argv[2], sys.argv[2:])
"""


def template(**container: Any) -> dict[str, Any]:
    own = {
        "command": ["python3", "-c", PROGRAM],
        "args": ["/mnt/weights/", "vllm", "serve", f"/mnt/weights/{MODEL}", "--port=8000", "--served-model-name=m"],
        "env": [{"name": "VLLM_CACHE_ROOT", "value": "/mnt/weights/cache"}],
        "startupProbe": {"periodSeconds": 10, "failureThreshold": 180, "httpGet": {"path": "/health", "port": 8000}},
        "volumeMounts": [{"name": "weights", "mountPath": "/mnt/weights"}],
        **container,
    }
    volume = {"name": "weights", "emptyDir": {"medium": "MEMORY", "sizeLimit": "12Gi"}}
    return of_revision(container=own, volumes=[volume])


def run(state: Path, given: dict[str, Any], *, google: bool = True) -> tuple[str, list[str]]:
    """Start one revision; return the model that it serves, and its log."""
    answers, said = asked(state, given, ("/v1/models",), google=google)
    return answers[0].json["data"][0]["id"], said


def asked(
    state: Path, given: dict[str, Any], paths: Sequence[str], *, key: str = "", google: bool = True
) -> tuple[list[Answer], list[str]]:
    """Start one revision; return its answers to GET, and its log."""
    lines: list[LogLine] = []
    headers = {"Authorization": f"Bearer {key}"} if key else {}

    access = GoogleAccess(base_url="", access_token=lambda email: f"of-{email}", id_token=lambda *_: "")

    async def serve() -> list[Answer]:
        async with revisions(state, lines=lines, google=access if google else None) as running:
            url = await running.start(RevisionSpec(name=NAME, service=SERVICE, template=given))
            return [await asyncio.to_thread(ask, url + path, headers=headers) for path in paths]

    return asyncio.run(serve()), [line.text for line in lines]


def test_the_program_runs_as_the_instances_account_and_becomes_the_server(tmp_path: Path):
    model, said = run(tmp_path, template())
    assert model == "m"
    assert [line for line in said if "token for" in line] == [f"token for of-{ACCOUNT} True"]
    assert "a bare interpreter" in said
    assert any("copying the weights into memory took" in line for line in said)
    assert any("Loading weights took" in line for line in said)


def test_the_starter_of_the_stacks_puts_the_path_guard_in_front_of_the_server(tmp_path: Path):
    """The container's own PYTHONPATH stays behind the guard's folder."""
    words = ["simulated/tiny", "--port=8000", GUARD_ARGUMENT]
    given = template(
        command=list(container_command()),
        args=[ContainerStart().text(), "vllm", "serve", *words],
        env=[{"name": "VLLM_API_KEY", "value": "sk-key"}],
    )
    paths = ("/health", "/metrics", "/v1/models", "/version")
    assert [answer.status for answer in asked(tmp_path, given, paths)[0]] == [200, 401, 401, 401]
    assert [answer.status for answer in asked(tmp_path, given, paths, key="sk-key")[0]] == [200] * 4
    without = template(command=["vllm", "serve"], args=words, env=[{"name": "VLLM_API_KEY", "value": "sk-key"}])
    with pytest.raises(RevisionFailedError):
        run(tmp_path, without)
    log = "".join(path.read_text() for path in tmp_path.glob("logs/*.log"))
    assert "ModuleNotFoundError: No module named 'gemma_serving_path_guard'" in log


def test_without_a_way_to_google_the_local_cloud_says_what_it_does_not_model(tmp_path: Path):
    with pytest.raises(RevisionFailedError, match="if instances can reach Google"):
        run(tmp_path, template(), google=False)
