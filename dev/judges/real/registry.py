"""A real registry of images on a loopback address, with an empty store of its own."""

import json
import re
import shutil
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Final

from dev.judges.real.home import Need, RealHome, debian_packages
from dev.judges.real.service import Service
from dev.judges.real_vllm.server import DIRECT, free_port

PACKAGE: Final = "docker-registry"
_MANIFESTS: Final = (
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
)
_LIMIT_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRegistry:
    """A registry that listens on `address` (HOST:PORT). The service can be stopped, killed and started again."""

    address: str
    folder: Path
    version: str
    service: Service

    def start(self) -> None:
        """Start the registry and wait until it responds."""
        self.service.start(self.responds)

    def responds(self) -> bool:
        """Return whether the registry answers requests."""
        try:
            with DIRECT.open(f"http://{self.address}/v2/", timeout=_LIMIT_S) as answer:
                return answer.status == HTTPStatus.OK
        except (OSError, urllib.error.URLError):
            return False

    def digest(self, name: str, tag: str) -> str | None:
        """Return the digest that the registry gives for NAME:TAG, or None if it has no such image."""
        request = urllib.request.Request(
            f"http://{self.address}/v2/{name}/manifests/{tag}", headers={"Accept": ", ".join(_MANIFESTS)}, method="HEAD"
        )
        try:
            with DIRECT.open(request, timeout=_LIMIT_S) as answer:
                return answer.headers["Docker-Content-Digest"]
        except urllib.error.HTTPError as error:
            if error.code == HTTPStatus.NOT_FOUND:
                return None
            raise


@contextmanager
def running_registry(home: RealHome, *, name: str, address: str = "") -> Generator[ImageRegistry]:
    """Start a registry without sign-in, and stop it and delete its store at the end. Without an address it gets a free port of 127.0.0.1.

    Docker permits plain HTTP to any address of 127.0.0.0/8, and to a name that resolves to one.
    """
    need = Need(what="Docker's registry (Debian packages)", where="the system", disk_gib=0.1, takes_s=20)
    version = debian_packages(home, need, (PACKAGE,))[PACKAGE]
    folder = home.folder / "registries" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    home.results.mkdir(parents=True, exist_ok=True)
    address = address or f"127.0.0.1:{free_port()}"
    settings = folder / "settings.json"
    settings.write_text(json.dumps(_settings(address, folder / "store")), encoding="utf-8")
    program = shutil.which(PACKAGE) or f"/usr/bin/{PACKAGE}"
    service = Service([program, "serve", str(settings)], home.results / f"registry-{name}.log")
    registry = ImageRegistry(address=address, folder=folder, version=_release(version), service=service)
    try:
        registry.start()
        yield registry
    finally:
        service.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _settings(address: str, store: Path) -> dict[str, object]:
    """Return the registry's settings. JSON is YAML too."""
    storage = {"filesystem": {"rootdirectory": str(store)}, "delete": {"enabled": True}}
    return {"version": "0.1", "log": {"level": "info"}, "storage": storage, "http": {"addr": address}}


def _release(version: str) -> str:
    """Return the upstream release of a Debian version."""
    return re.sub(r"^\d+:|[-+].*$", "", version)
