"""Checks of this machine: gcloud and its login, Pulumi's backend."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from typing import Final
from urllib.parse import urlsplit

from gemma_serving.cloud.google_api import GoogleListError
from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.installation import INSTALL_PULUMI, NEW_FOLDER
from gemma_serving.contracts.masking import masked
from gemma_serving.engine import backend, runner
from gemma_serving.engine.children import ended
from gemma_serving.scripts.doctor.diagnosis import Checkup, Diagnosis, DoctorCheck, missing, ok, unknown

LOGIN: Final = "gcloud login"
"""Name of the check that gcloud has a working login."""
_INSTALL_GCLOUD: Final = "https://cloud.google.com/sdk/docs/install"
_NOT_FOUND: Final = 404
_ANSWER_LIMIT_S: Final = 20.0
_NO_NETWORK: Final = "Max retries exceeded"
"""gcloud's words without a network (openshift/release#68528), beside which it advises a login."""


def checks(checkup: Checkup) -> Iterator[DoctorCheck]:
    """Yield the checks of this machine. They call Google only if the engine cannot read a `gs://` backend."""
    yield checkup.calling("Pulumi backend", "storage", "roles/storage.bucketViewer", partial(_pulumi, checkup))
    purpose = _gcloud_purpose(checkup)
    if purpose:
        yield DoctorCheck(name="gcloud", run=partial(_gcloud, checkup, purpose))
        yield DoctorCheck(name=LOGIN, run=partial(_gcloud_login, purpose))


def _gcloud_purpose(checkup: Checkup) -> str:
    """Return the purpose of gcloud: a tunnel, or a user's identity tokens, which Application Default Credentials lack; empty if none."""
    settings = checkup.settings
    if settings is not None and settings.tpu is not None:
        return "the tunnel to the server"
    run = settings.cloud_run if settings is not None else None
    return "a user's identity token" if run and not run.public and not checkup.is_service_account else ""


def _gcloud_login(purpose: str) -> Iterator[Diagnosis]:
    """Check that gcloud has a working login; the token is discarded. Without gcloud, `_gcloud` reports the problem."""
    path = shutil.which("gcloud")
    if path is None:
        return
    answer = _answer_of(path, "auth", "print-access-token")
    if answer is None:
        yield unknown("`gcloud auth print-access-token` did not finish")
    elif answer.returncode != 0:
        said = masked(answer.stderr).splitlines()
        reason = next((line for line in said if line.startswith("ERROR")), "no reason given")
        if _NO_NETWORK in reason:
            yield unknown("gcloud has no connection to Google")
            return
        detail = f"no working gcloud login, which {purpose} needs ({reason.removeprefix('ERROR: ')})"
        yield missing(detail, "gcloud auth login")
    else:
        account = _answer_of(path, "config", "get", "account")
        yield ok((account.stdout.strip() if account else "") or "access token returned")


def _gcloud(checkup: Checkup, purpose: str) -> Iterator[Diagnosis]:
    path = shutil.which("gcloud")
    if path is None:
        yield missing(f"not on PATH; {purpose} needs it", _INSTALL_GCLOUD)
        return
    answer = _answer_of(path, "version", "--format=json")
    if answer is None or answer.returncode != 0:
        yield unknown("`gcloud version --format=json` did not finish")
        return
    components: dict[str, str] = json.loads(answer.stdout)
    yield ok(f"version {components.get('Google Cloud SDK', 'unknown')}")
    tpu = checkup.settings.tpu if checkup.settings else None
    if tpu is None or tpu.api == "compute-engine":
        return
    if "alpha" in components:
        yield ok("installed", check="gcloud alpha")
    else:
        detail = "not installed; tunnels to TPU nodes need the alpha track"
        yield missing(detail, "gcloud components install alpha", check="gcloud alpha")


def _pulumi(checkup: Checkup) -> Iterator[Diagnosis]:
    fix = INSTALL_PULUMI
    try:
        runner.pulumi()
        fix = NEW_FOLDER
        answer = runner.run("whoami", "--verbose", "--json")
    except CommandRefusedError as error:
        yield missing(str(error), fix, check="Pulumi")
        return
    if answer.returncode != 0:
        yield _no_backend(checkup, runner.error_of(answer))
        return
    yield ok(masked(str(json.loads(answer.stdout).get("url", ""))))


def _no_backend(checkup: Checkup, detail: str) -> Diagnosis:
    """Return why the engine cannot read its backend: no login, or a bucket that does not exist yet."""
    url = backend.chosen_url(runner.project_folder())
    bucket = urlsplit(url).netloc if url.startswith("gs://") else ""
    if not bucket:
        return missing(detail, "pulumi login")
    try:
        checkup.google.get("storage", f"storage/v1/b/{bucket}?fields=name")
    except GoogleListError as error:
        if error.status != _NOT_FOUND:
            raise
        # As in docs/ci.md. Old versions restore a damaged state.
        create = f"gcloud storage buckets create gs://{bucket} --project={checkup.project} --location=us --uniform-bucket-level-access"
        fix = f"{create} && gcloud storage buckets update gs://{bucket} --versioning --public-access-prevention"
        return missing(f"gs://{bucket} does not exist; it stores the state of all stacks", fix)
    return missing(detail, f"pulumi login {url}")


def _answer_of(program: str, *words: str) -> subprocess.CompletedProcess[str] | None:
    """Run a command and return its result; None if it could not start or did not finish in time."""
    try:
        return ended([program, *words], limit_s=_ANSWER_LIMIT_S)
    except (OSError, subprocess.SubprocessError):
        return None
