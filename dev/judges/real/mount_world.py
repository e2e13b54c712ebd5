"""The subject of the mount's judge: a bucket of the local cloud with a checkpoint, accounts with roles on it, and vLLM's loaders."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import quote

from dev.judges.real.gcsfuse_program import Gcsfuse, StoreEndpoint
from dev.judges.real.home import RealHome, run
from dev.judges.real.project import ProjectInCloud
from dev.judges.real_vllm.environment import MODEL
from dev.judges.real_vllm.server import tools_environment
from gemma_serving.contracts.fields import json_object
from localcloud.running.shims import OPERATOR_TOKEN

PROJECT: Final = "local-project"
BUCKET: Final = "judged-models"
FOLDER: Final = "gemma"
"""Folder of the checkpoint in the bucket."""
STORAGE: Final = "storage/storage/v1"
_READER: Final = Path(__file__).with_name("read_weights.py")
_LOADER_LIMIT_S: Final = 300.0


@dataclass(frozen=True, kw_only=True)
class MountWorld:
    """A bucket, the local cloud that has it, and the real gcsfuse."""

    home: RealHome
    project: ProjectInCloud
    gcsfuse: Gcsfuse

    @property
    def cloud(self) -> str:
        """Address of the local cloud."""
        return self.project.variables["LOCALCLOUD_URL"]

    @property
    def operator(self) -> str:
        """A token of the local cloud's operator."""
        return self.project.variables[OPERATOR_TOKEN]

    @cached_property
    def checkpoint(self) -> Mapping[str, Path]:
        """Files of the tiny Gemma 4, by name."""
        return {path.name: path for path in sorted((self.home.real_vllm.models / MODEL).iterdir()) if path.is_file()}

    @cached_property
    def loaded_from_disk(self) -> Mapping[str, Any]:
        """The tensors that vLLM's loader reads from the checkpoint's own files."""
        return self.loaded("safetensors", [str(self.checkpoint["model.safetensors"])])

    def stage(self) -> None:
        """Create the bucket, and put the checkpoint into it."""
        self.project.send("POST", f"{STORAGE}/b?project={PROJECT}", {"name": BUCKET, "location": "US-EAST4"})
        for name, path in self.checkpoint.items():
            self.put(f"{FOLDER}/{name}", path.read_bytes())

    def put(self, name: str, content: bytes) -> str:
        """Write an object, and return its generation."""
        path = f"upload/storage/v1/b/{BUCKET}/o?uploadType=media&name={quote(name, safe='')}"
        return str(self.project.send("POST", path, content)["generation"])

    def account(self, name: str, role: str) -> str:
        """Create a service account that has only this role on the bucket, and return a token of it."""
        email = self.project.send("POST", f"iam/v1/projects/{PROJECT}/serviceAccounts", {"accountId": name})["email"]
        bindings = [{"role": role, "members": [f"serviceAccount:{email}"]}] if role else []
        self.project.send("PUT", f"{STORAGE}/b/{BUCKET}/iam", {"bindings": bindings})
        return str(self.project.send("POST", "admin/tokens", {"email": email})["accessToken"])

    def loaded(
        self, loader: str, files: Sequence[str], variables: Mapping[str, str] | None = None
    ) -> Mapping[str, Any]:
        """Return what vLLM's loader read: seconds, tensors, bytes, sha256. Fails if it fails."""
        environment = {**tools_environment(self.home.real_vllm, {}), "VLLM_LOGGING_LEVEL": "ERROR", **(variables or {})}
        command = [str(self.home.real_vllm.programs / "python"), str(_READER), loader, *files]
        done = run(command, limit_s=_LOADER_LIMIT_S, environment=environment)
        lines = (done.stderr.strip().splitlines() or ["no output"]) if done.returncode else done.stdout.splitlines()
        if done.returncode:
            raise AssertionError(f"vLLM's loader {loader} ended with {done.returncode}: {lines[-1]}")
        return cast("Mapping[str, Any]", json_object(lines[-1]))


def gcsfuse_of(program: Path, home: RealHome, project: ProjectInCloud) -> Gcsfuse:
    """Return the program for the operator of a local cloud."""
    url = f"{project.variables['LOCALCLOUD_URL']}/{STORAGE}/"
    credentials = Path(project.variables["GOOGLE_APPLICATION_CREDENTIALS"])
    return Gcsfuse(
        program=program, endpoint=StoreEndpoint(url=url, credentials=credentials), log=home.results / "gcsfuse.log"
    )


def sha256(content: bytes) -> str:
    """Return the digest of content in hexadecimal."""
    return hashlib.sha256(content).hexdigest()
