"""Checks of this machine: gcloud, the credentials and their quota project, Pulumi's backend and passphrase."""

import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final
from urllib.parse import urlsplit

from cloud.google_api import GoogleListError
from contracts.errors import CommandRefusedError, ScriptError
from engine import backend, runner
from scripts.doctor import image_build
from scripts.doctor.diagnosis import Check, Checkup, Diagnosis
from scripts.doctor.programs import answer_of

_PASSPHRASE: Final = ("PULUMI_CONFIG_PASSPHRASE", "PULUMI_CONFIG_PASSPHRASE_FILE")
_NOT_FOUND: Final = 404
_BUCKET_VIEWER: Final = "roles/storage.bucketViewer"


def checks(checkup: Checkup) -> Iterator[Check]:
    """Yield the checks of this machine. They call Google only if the engine cannot read a `gs://` backend."""
    yield Check(name="Pulumi", run=partial(_pulumi, checkup))
    purpose = _gcloud_purpose(checkup)
    if purpose:
        yield Check(name="gcloud", run=partial(_gcloud, checkup, purpose))
        yield Check(name="gcloud login", run=partial(_gcloud_login, purpose))
    yield from image_build.checks(checkup)


def _gcloud_purpose(checkup: Checkup) -> str:
    """Return the purpose of gcloud: a tunnel, or a user's identity tokens, which Application Default Credentials lack; empty if none."""
    settings = checkup.settings
    if settings is None:
        return ""
    if settings.tpu is not None:
        return "the tunnel to the server"
    needs_token = settings.cloud_run is not None and not settings.cloud_run.public
    return "a user's identity token" if needs_token and not checkup.is_service_account else ""


def _gcloud_login(purpose: str) -> Sequence[Diagnosis]:
    """Check that gcloud has a working login; the token is discarded. Without gcloud, `_gcloud` reports the problem."""
    path = shutil.which("gcloud")
    if path is None:
        return ()
    answer = answer_of(path, "auth", "print-access-token")
    if answer is None:
        detail = "`gcloud auth print-access-token` did not finish"
        return (Diagnosis(check="gcloud login", state="unknown", detail=detail),)
    if answer.returncode != 0:
        reason = next((line for line in answer.stderr.splitlines() if line.startswith("ERROR")), "no reason given")
        detail = f"no working gcloud login, which {purpose} needs ({reason.removeprefix('ERROR: ')})"
        return (Diagnosis(check="gcloud login", state="missing", detail=detail, fix="gcloud auth login"),)
    account = answer_of(path, "config", "get", "account")
    name = account.stdout.strip() if account is not None and account.returncode == 0 else ""
    return (Diagnosis(check="gcloud login", state="ok", detail=name or "access token returned"),)


def _gcloud(checkup: Checkup, purpose: str) -> Sequence[Diagnosis]:
    path = shutil.which("gcloud")
    if path is None:
        detail, fix = f"not on PATH; {purpose} needs it", "https://cloud.google.com/sdk/docs/install"
        return (Diagnosis(check="gcloud", state="missing", detail=detail, fix=fix),)
    components = _components(path)
    if components is None:
        detail = "`gcloud version --format=json` did not finish"
        return (Diagnosis(check="gcloud", state="unknown", detail=detail),)
    found = Diagnosis(check="gcloud", state="ok", detail=f"version {components.get('Google Cloud SDK', 'unknown')}")
    if checkup.settings is None or checkup.settings.tpu is None or checkup.settings.tpu.api == "compute-engine":
        return (found,)
    if "alpha" in components:
        return (found, Diagnosis(check="gcloud alpha", state="ok", detail="installed"))
    detail = "not installed; tunnels to TPU nodes need the alpha track"
    fix = "gcloud components install alpha"
    return (found, Diagnosis(check="gcloud alpha", state="missing", detail=detail, fix=fix))


def _components(path: str) -> dict[str, str] | None:
    """Return gcloud's components with their versions; None if it does not report them."""
    answer = answer_of(path, "version", "--format=json")
    try:
        return json.loads(answer.stdout) if answer is not None and answer.returncode == 0 else None
    except ValueError:
        return None


def _pulumi(checkup: Checkup) -> Sequence[Diagnosis]:
    try:
        answer = runner.run("whoami", "--verbose", "--json")
    except CommandRefusedError as error:
        return (Diagnosis(check="Pulumi", state="missing", detail=str(error), fix="make setup"),)
    except ScriptError as error:
        return (Diagnosis(check="Pulumi backend", state="unknown", detail=str(error)),)
    if answer.returncode != 0:
        return (_no_backend(checkup, runner.error_of(answer)),)
    url = str(json.loads(answer.stdout).get("url", ""))
    found = Diagnosis(check="Pulumi backend", state="ok", detail=url)
    return (found, _passphrase(checkup.stack, url))


def _no_backend(checkup: Checkup, detail: str) -> Diagnosis:
    """Return why the engine cannot read its backend: no login, or a bucket that does not exist yet."""
    check, url = "Pulumi backend", backend.chosen_url(runner.project_folder())
    bucket = urlsplit(url).netloc if url.startswith("gs://") else ""
    if not bucket:
        return Diagnosis(check=check, state="missing", detail=detail, fix="pulumi login")
    try:
        checkup.google.get("storage", f"storage/v1/b/{bucket}?fields=name")
    except GoogleListError as error:
        if error.status != _NOT_FOUND:
            return checkup.refused(check, "storage", _BUCKET_VIEWER, error)
        detail = f"gs://{bucket} does not exist; it stores the state of all stacks"
        return Diagnosis(check=check, state="missing", detail=detail, fix=_create_bucket(checkup.project, bucket))
    return Diagnosis(check=check, state="missing", detail=detail, fix=f"pulumi login {url}")


def _create_bucket(project: str, bucket: str) -> str:
    """Return the commands that create a bucket for states, as in docs/ci-accounts.md. Old versions restore a damaged state."""
    create = (
        f"gcloud storage buckets create gs://{bucket} --project={project} --location=us --uniform-bucket-level-access"
    )
    return f"{create} && gcloud storage buckets update gs://{bucket} --versioning"


def _passphrase(stack: str | None, backend: str) -> Diagnosis:
    """Check that the passphrase of the stack's secrets is set, if one is used."""
    check = "Pulumi passphrase"
    if not _uses_passphrase(stack, backend):
        return Diagnosis(check=check, state="ok", detail="another secrets provider encrypts the stack's secrets")
    given = next((name for name in _PASSPHRASE if name in os.environ), None)
    if given is not None:
        return Diagnosis(check=check, state="ok", detail=f"{given} is set")
    detail = f"neither {' nor '.join(_PASSPHRASE)} is set"
    return Diagnosis(check=check, state="missing", detail=detail, fix=f"export {_PASSPHRASE[1]}=FILE")


def _uses_passphrase(stack: str | None, backend: str) -> bool:
    """Return whether a passphrase encrypts the stack's secrets. Default of every backend except Pulumi Cloud."""
    path = runner.project_folder() / f"Pulumi.{stack}.yaml"
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    if re.search(r"^encryptionsalt:", text, re.MULTILINE):
        return True
    other = re.search(r"^(secretsprovider|encryptedkey):", text, re.MULTILINE)
    return other is None and not backend.startswith("https://")
