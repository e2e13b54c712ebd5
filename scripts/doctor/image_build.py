"""Checks of this machine for a stack whose image `pulumi up` builds: Docker, the registry login and disk space."""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from contracts.fields import as_mapping
from planning.data.overheads import IMAGE_ON_DISK_GIB
from scripts.cli.settings import registry_host
from scripts.doctor.diagnosis import Check, Checkup, Diagnosis
from scripts.doctor.programs import answer_of

_GIB: Final = 2**30


def checks(checkup: Checkup) -> Iterator[Check]:
    """Yield the checks of a stack that builds its image; none for other stacks. The checks do not call Google."""
    settings = checkup.settings
    if settings is None or settings.image.build_context is None:
        return
    yield Check(name="Docker", run=_docker)
    yield Check(name="registry login", run=partial(_login, registry_host(settings)))
    yield Check(name="disk for the image", run=_disk_space, required=False)


def _docker() -> Sequence[Diagnosis]:
    """Check that Docker is installed and its daemon responds, because `pulumi up` builds the image with it."""
    if shutil.which("docker") is None:
        detail, fix = "not on PATH; `pulumi up` builds the image with it", "https://docs.docker.com/engine/install/"
        return (Diagnosis(check="Docker", state="missing", detail=detail, fix=fix),)
    answer = answer_of("docker", "version", "--format={{.Server.Version}}")
    if answer is None:
        return (Diagnosis(check="Docker", state="unknown", detail="`docker version` did not finish"),)
    if answer.returncode != 0:
        detail = f"the daemon does not respond: {answer.stderr.strip() or 'no reason given'}"
        return (Diagnosis(check="Docker", state="missing", detail=detail, fix="sudo systemctl start docker"),)
    return (Diagnosis(check="Docker", state="ok", detail=f"version {answer.stdout.strip()}"),)


def _login(host: str) -> Sequence[Diagnosis]:
    """Check that Docker's configuration has a login for the registry. Google checks the login only at the push."""
    check, login = "registry login", f"gcloud auth configure-docker {host}"
    path = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker") / "config.json"
    try:
        found: object = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        detail = f"cannot push the image to {host} because {path} does not exist"
        return (Diagnosis(check=check, state="missing", detail=detail, fix=login),)
    except (OSError, ValueError) as error:
        detail = f"cannot read {path}: {error}"
        return (Diagnosis(check=check, state="unknown", detail=detail, fix=login),)
    config = as_mapping(found)
    helper = as_mapping(config.get("credHelpers")).get(host)
    if helper is not None:
        return (_helper(host, f"docker-credential-{helper}"),)
    if {host, f"https://{host}"} & set(as_mapping(config.get("auths"))):
        return (Diagnosis(check=check, state="ok", detail=f"{path} has a login for {host}"),)
    store = config.get("credsStore")
    if store:
        detail = f"{path} has no login for {host}; docker-credential-{store} may have one"
        return (Diagnosis(check=check, state="unknown", detail=detail, fix=login),)
    detail = f"cannot push the image because {path} has no login for {host}"
    return (Diagnosis(check=check, state="missing", detail=detail, fix=login),)


def _helper(host: str, program: str) -> Diagnosis:
    if shutil.which(program) is not None:
        return Diagnosis(check="registry login", state="ok", detail=f"{program} signs in to {host}")
    detail = f"{program}, the credential helper for {host}, is not on PATH"
    fix = "https://cloud.google.com/sdk/docs/install"
    return Diagnosis(check="registry login", state="missing", detail=detail, fix=fix)


def _disk_space() -> Sequence[Diagnosis]:
    """Check that Docker's disk has space for the base image and its layers. Layers that exist need no more."""
    check = "disk for the image"
    minimum, recommended = IMAGE_ON_DISK_GIB
    answer = answer_of("docker", "info", "--format={{.DockerRootDir}}")
    root = (
        Path(answer.stdout.strip()) if answer is not None and answer.returncode == 0 and answer.stdout.strip() else None
    )
    try:
        free = shutil.disk_usage(root).free / _GIB if root is not None else None
    except OSError:
        free = None
    if free is None:
        detail = f"cannot read Docker's folder{f' {root}' if root else ''}; the image needs {minimum} to {recommended} GiB there"
        return (Diagnosis(check=check, state="unknown", detail=detail, required=False),)
    values = {"limit": round(free, 1), "needed": float(recommended)}
    detail = f"{root} has {free:.0f} GiB free; the image needs {minimum} to {recommended} GiB"
    state = "ok" if free >= recommended else "unknown" if free >= minimum else "missing"
    fix = "" if state == "ok" else "docker system prune"
    return (Diagnosis(check=check, state=state, detail=detail, fix=fix, values=values, required=False),)
