"""Containers that run a Python program before the server: `python3 -c TEXT ARGUMENT... vllm serve MODEL ...`.

The text runs unchanged, in a bare interpreter, as its instance's service account, with its own metadata server and the local cloud's
endpoints of Cloud Storage and Secret Manager. `vllm` is the simulated server. Each in-memory volume is backed by a real folder, whose path
replaces the volume's in arguments and variables because the process has no separate file system.
"""

import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from localcloud.running import interpreter
from localcloud.running.machines.metadata import IssueAccessToken, IssueIdToken, MachineData, MetadataServer
from localcloud.running.shims import install
from localcloud.world.runtime import MachineSpec, RevisionSpec

VARIABLE: Final = "LOCALCLOUD_VLLM"
"""The variable with the path of a program that runs in place of the simulated server. It gets the same words and the same environment."""
_COMMANDS: Final = {"vllm": "localcloud.vllm"}
_SYSTEM_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class GoogleAccess:
    """An instance's access to Google: the local cloud's address, and tokens for a service account's email."""

    base_url: str
    access_token: IssueAccessToken
    id_token: IssueIdToken


def is_starter(words: Sequence[str]) -> bool:
    """Return whether a container's command line is a Python program rather than the server itself."""
    return len(words) > 2 and PurePosixPath(words[0]).name in {"python", "python3"} and words[1] == "-c"  # noqa: PLR2004 - the text follows


@dataclass(frozen=True, slots=True, kw_only=True)
class Volumes:
    """The in-memory volumes of one instance: the path in the container, and its real folder with the size in MiB."""

    folders: Mapping[str, Path]
    sizes_mib: Mapping[str, int]

    def real(self, text: str) -> str:
        """Return a text with the real folders in place of the volumes' paths."""
        for path, folder in self.folders.items():
            text = text.replace(f"{path}/", f"{folder}/")
        return text

    def empty(self) -> None:
        """Empty the volumes, as for a new instance."""
        for folder in self.folders.values():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)

    def by_folder(self) -> dict[str, int]:
        """Return the size in MiB of each real folder."""
        return {str(folder): self.sizes_mib[path] for path, folder in self.folders.items()}


class Starter:
    """One instance's program, with its metadata server."""

    def __init__(self, revision: RevisionSpec, account: str, google: GoogleAccess, folder: Path) -> None:
        self._google = google
        self._folder = folder
        self._metadata = metadata_server(revision, account, google)

    async def start(self) -> None:
        """Start the metadata server and install the commands."""
        await self._metadata.start("127.0.0.1")
        _install(self._folder)

    async def stop(self) -> None:
        """Stop the metadata server."""
        await self._metadata.stop()

    def command(self, words: Sequence[str], volumes: Volumes) -> list[str]:
        """Return the command line of the process."""
        return [str(self._folder / "python3"), words[1], words[2], *map(volumes.real, words[3:])]

    def environment(self, environment: Mapping[str, str], volumes: Volumes, *, port: int) -> dict[str, str]:
        """Return the variables of the process. `port` is the server's real port."""
        google = self._google.base_url.rstrip("/")
        real = {name: volumes.real(text) for name, text in environment.items() if name != "PYTHONPATH"}
        return {
            **real,
            "PATH": f"{self._folder}:{_SYSTEM_PATH}",
            "PYTHONSAFEPATH": "1",  # nor from the folder that the local cloud was started in
            "PORT": str(port),
            "GCE_METADATA_HOST": self._metadata.address,
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": f"{google}/storage/storage/v1/",
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER": f"{google}/secretmanager/",
        }


def metadata_server(revision: RevisionSpec, account: str, google: GoogleAccess) -> MetadataServer:
    """Return the metadata server of an instance, which is not started yet."""
    _, project, _, region, *_ = revision.name.split("/")
    machine = MachineSpec(
        name=revision.name,
        project=project,
        zone=f"{region}-a",
        accelerator_type="",
        metadata={},
        service_account=account,
    )
    data = MachineData(spec=machine, metadata={})
    return MetadataServer(data, access_token=google.access_token, id_token=google.id_token)


def _install(folder: Path) -> None:
    """Install the server's command and the base interpreter, so the program cannot import this project's packages."""
    # The program's PYTHONPATH entries are for the server, which has its own here.
    python = install(folder, _COMMANDS, kept={"VLLM_SIM_PYTHONPATH": "PYTHONPATH"}) / "python3"
    if not python.is_symlink():
        python.symlink_to(Path(sys.executable).resolve())
    if named := os.environ.get(VARIABLE):
        text = f'#!/bin/sh\nVLLM_SIM_PYTHONPATH="${{PYTHONPATH-}}" exec {shlex.quote(named)} "$@"\n'
        (folder / "vllm").write_text(text, encoding="utf-8")


def server_command(words: Sequence[str]) -> list[str]:
    """Return the command line of a container that runs the server itself."""
    named = os.environ.get(VARIABLE)
    return [named, *words] if named else interpreter.command("localcloud.vllm", *words)
