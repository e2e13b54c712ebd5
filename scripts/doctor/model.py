"""Checks of the model and image: staged weights, access to the checkpoint on the hub, and the container image."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final
from urllib.parse import quote

import requests

from cloud.google_api import GoogleListError, NotJsonError
from cloud.model_files import CONFIG
from cloud.secret_values import read_secret
from contracts.errors import ScriptError
from contracts.fields import as_mapping, as_sequence
from contracts.staged_weights import (
    MANIFEST,
    StoredFile,
    difference,
    file_names,
    folder_uri,
    listing_path,
    manifest_hash,
    object_name,
    stored_files,
)
from engine import runner
from planning.data.checkpoints import find_checkpoint, near_ids
from planning.rules.security.pinned import COMMIT
from scripts.doctor.diagnosis import Check, Checkup, Diagnosis
from stacks.parts import Part, parts_of
from stacks.secrets import HF_TOKEN, KINDS, SecretKind, set_command
from stacks.settings import DockerHubSettings, Settings

REGISTRY: Final = "https://registry-1.docker.io"
TOKENS: Final = "https://auth.docker.io/token"
_LIMIT_S: Final = 4.0
_NOT_FOUND: Final = 404
_UNAUTHORIZED: Final = 401
_MANIFEST_TYPES: Final = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_GIB: Final = 1024**3
_SECRETS_VIEWER: Final = "roles/secretmanager.viewer"


def checks(checkup: Checkup) -> Iterator[Check]:
    """Yield the checks of a stack's model and image."""
    settings = checkup.settings
    if settings is None:
        return
    if settings.weights == "bucket":
        yield Check(name="weights", run=partial(_weights, checkup, settings))
    for kind in KINDS:
        version = settings.secret_version(kind.key)
        if version is not None:
            yield Check(name=kind.reference_key, run=partial(_reference, checkup, kind, version))
    if settings.weights != "prefetched-image":
        yield Check(name="hub", run=partial(_hub, checkup, settings), required=False)
    if settings.docker_hub is not None:
        yield Check(name="docker hub", run=partial(_docker_hub, checkup, settings.docker_hub))
    yield Check(name="image", run=partial(_image, settings), required=False)


def _weights(checkup: Checkup, settings: Settings) -> Sequence[Diagnosis]:
    return (*_model_weights(checkup, settings), *(_part(checkup, settings, part) for part in parts_of(settings)))


def _part(checkup: Checkup, settings: Settings, part: Part) -> Diagnosis:
    """Check the staged copy of a drafter or an adapter."""
    missing = partial(
        Diagnosis,
        check="weights",
        state="missing",
        fix=f"gemma stage_model {checkup.stack}",
    )
    named = f"{part.kind} {part.source}"
    if part.folder is None:
        return missing(detail=f"{named} is not staged")
    bucket = settings.bucket_name(checkup.stack or "")
    folder, name = folder_uri(bucket, part.folder), object_name(part.folder, MANIFEST)
    try:
        stored = _stored(checkup, bucket, part.folder)
        manifest = _manifest(checkup, bucket, name) if name in stored else None
    except GoogleListError as error:
        if error.status != _NOT_FOUND:
            return checkup.refused("weights", "storage", "roles/storage.objectViewer", error)
        return missing(detail=f"bucket {bucket} does not exist")
    wrong = difference(manifest, stored, part.folder)
    if wrong is None and manifest_hash(as_mapping(manifest)) != part.digest:
        wrong = "it has another hash than bucket.parts"
    if wrong is not None:
        return missing(detail=f"{named} in {folder}: {wrong}")
    return Diagnosis(check="weights", state="ok", detail=f"{named} in {folder}")


def _model_weights(checkup: Checkup, settings: Settings) -> Sequence[Diagnosis]:
    bucket = settings.bucket_name(checkup.stack or "")
    prefix = settings.weights_prefix
    folder, name = folder_uri(bucket, prefix), object_name(prefix, MANIFEST)
    missing = partial(
        Diagnosis,
        check="weights",
        state="missing",
        fix=f"gemma stage_model {checkup.stack}",
    )
    try:
        stored = _stored(checkup, bucket, prefix)
        if name in stored:
            manifest = _manifest(checkup, bucket, name)
            return (_staged(manifest, stored, prefix, folder, missing, settings),)
    except GoogleListError as error:
        if error.status != _NOT_FOUND:
            return (checkup.refused("weights", "storage", "roles/storage.objectViewer", error),)
        return (missing(detail=f"bucket {bucket} does not exist"),)
    if settings.bucket.existing is None or settings.bucket.manifest is not None:
        return (missing(detail=f"no {MANIFEST} in {folder}: weights are not staged or staging is incomplete"),)
    if object_name(prefix, CONFIG) not in stored:
        return (missing(detail=f"neither {MANIFEST} nor {CONFIG} in {folder}: weights are not staged"),)
    # `pulumi up` accepts a checkpoint without a manifest in an existing bucket, because another tool may have copied it.
    size = sum(file.size_bytes for file in stored.values())
    objects = f"{len(stored)} objects, {size / _GIB:.2f} GiB in {folder}"
    detail = f"{objects}, without a {MANIFEST}: copied by another tool, or staging is incomplete"
    return (Diagnosis(check="weights", state="ok", detail=detail),)


def _staged(  # noqa: PLR0917 - the facts about a folder
    manifest: object,
    stored: Mapping[str, StoredFile],
    prefix: str,
    folder: str,
    missing: Callable[..., Diagnosis],
    settings: Settings,
) -> Diagnosis:
    """Compare the objects with the manifest, and the manifest with the hash in the settings."""
    wrong = difference(manifest, stored, prefix)
    if wrong is not None:
        return missing(detail=wrong)
    staged, bound = manifest_hash(as_mapping(manifest)), settings.bucket.manifest_hash
    if bound not in {None, staged}:
        return missing(detail=f"bucket.manifest is {bound}, but the weights in {folder} have the hash {staged}")
    copied, wanted = str(as_mapping(manifest).get("revision")), settings.model_revision
    if wanted is not None and COMMIT.fullmatch(copied) and copied != wanted:
        return missing(detail=f"modelRevision is {wanted}, but the weights in {folder} are from commit {copied}")
    names = file_names(as_mapping(manifest))
    total = sum(stored[object_name(prefix, name)].size_bytes for name in names)
    return Diagnosis(check="weights", state="ok", detail=f"{len(names)} files, {total / _GIB:.2f} GiB in {folder}")


def _manifest(checkup: Checkup, bucket: str, name: str) -> object:
    """Return the manifest; None if it is not JSON."""
    try:
        return checkup.google.get("storage", f"storage/v1/b/{bucket}/o/{quote(name, safe='')}?alt=media")
    except NotJsonError:
        return None


def _stored(checkup: Checkup, bucket: str, prefix: str) -> Mapping[str, StoredFile]:
    pages = checkup.google.pages("storage", listing_path(bucket, prefix))
    return stored_files(as_mapping(item) for page in pages for item in as_sequence(page.get("items")))


def _hub(checkup: Checkup, settings: Settings) -> Sequence[Diagnosis]:
    import httpx2  # noqa: PLC0415 - the hub client's HTTP library, whose errors it passes on
    from huggingface_hub import HfApi  # noqa: PLC0415 - slow to load
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, OfflineModeIsEnabled  # noqa: PLC0415 - slow to load

    check, model = "hub", settings.model
    try:
        token, origin = _token(checkup, settings)
    except ScriptError as error:
        return (Diagnosis(check=check, state="unknown", detail=str(error)),)
    login = "hf auth login" if settings.weights == "bucket" else set_command(HF_TOKEN.key, checkup.stack or "")
    try:
        HfApi(endpoint=os.environ.get("HF_ENDPOINT")).auth_check(model, token=token or False)
    except GatedRepoError:
        if not token:
            detail = f"{model} is gated, but no token is set"
            return (Diagnosis(check=check, state="missing", detail=detail, fix=login),)
        detail = f"the token of {origin} cannot read {model} because its owner has not accepted the terms"
        return (Diagnosis(check=check, state="missing", detail=detail, fix=f"https://huggingface.co/{model}"),)
    except HfHubHTTPError as error:
        return (_hub_error(error, token, origin, model, login, checkup.stack or ""),)
    except (OSError, OfflineModeIsEnabled, httpx2.TransportError) as error:
        detail = f"cannot reach the hub from this machine ({type(error).__name__})"
        return (Diagnosis(check=check, state="unknown", detail=detail, required=False),)
    by = f"the token of {origin}" if token else "no token needed"
    return (Diagnosis(check=check, state="ok", detail=f"{model} is readable ({by})"), _commit(checkup, settings, token))


def _commit(checkup: Checkup, settings: Settings, token: str | None) -> Diagnosis:
    """Check that the hub has the commit of the settings, and report the commit of its main branch and how to set it."""
    import httpx2  # noqa: PLC0415 - the hub client's HTTP library, whose errors it passes on
    from huggingface_hub import HfApi  # noqa: PLC0415 - slow to load
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled, RevisionNotFoundError  # noqa: PLC0415

    check, model, wanted, main = "commit", settings.model, settings.model_revision, ""
    api, has_wanted = HfApi(endpoint=os.environ.get("HF_ENDPOINT")), True
    try:
        main = api.model_info(model, token=token or False, timeout=_LIMIT_S).sha or ""
        if wanted not in {None, main}:
            api.model_info(model, revision=wanted, token=token or False, timeout=_LIMIT_S)
    except RevisionNotFoundError:
        has_wanted = False
    except (HfHubHTTPError, OSError, OfflineModeIsEnabled, httpx2.TransportError, KeyError, ValueError) as error:
        detail = f"the hub did not return the commits of {model} ({type(error).__name__})"
        return Diagnosis(check=check, state="unknown", detail=detail, required=False)
    if not main:
        detail = f"the hub returned no commit of {model}"
        return Diagnosis(check=check, state="unknown", detail=detail, required=False)
    setting = f"pulumi config set --stack {checkup.stack} gemma-serving:modelRevision {main}"
    if not has_wanted:
        return Diagnosis(check=check, state="missing", detail=f"{model} has no commit {wanted}", fix=setting)
    if wanted is None:
        loads = "scripts.stage_model copies" if settings.weights == "bucket" else "the server loads"
        detail = f"modelRevision is not set: {loads} the main branch of {model}, now {main}; to pin it, run: {setting}"
        return Diagnosis(check=check, state="ok", detail=detail)
    newer = "" if wanted == main else f"; its main branch is at {main}"
    return Diagnosis(check=check, state="ok", detail=f"{model} has {wanted}{newer}")


def _hub_error(error: OSError, token: str | None, origin: str, model: str, login: str, stack: str) -> Diagnosis:  # noqa: PLR0917 - the facts
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status == _UNAUTHORIZED and token:
        return Diagnosis(check="hub", state="missing", detail=f"the token of {origin} is invalid", fix=login)
    if status in {_UNAUTHORIZED, _NOT_FOUND}:
        near = near_ids(model)
        known = f"; closest existing ids: {', '.join(near)}" if near else ""
        detail = f"{model} does not exist on the hub or is private{known}"
        # A misspelled id has one obvious fix. Another checkpoint of the catalog is the user's choice.
        is_misspelt = bool(near) and find_checkpoint(model) is None
        fix = f"pulumi config set --stack {stack} gemma-serving:model {near[0]}" if is_misspelt else ""
        return Diagnosis(check="hub", state="missing", detail=detail, fix=fix or f"https://huggingface.co/{model}")
    return Diagnosis(check="hub", state="unknown", detail=f"the hub returned HTTP {status}", required=False)


def _token(checkup: Checkup, settings: Settings) -> tuple[str | None, str]:
    """Return the token for reading the weights, and its source. The token is never printed.

    Raises ScriptError if the stack's secret cannot be decrypted. The engine's error message does not contain the secret.
    """
    if settings.weights == "bucket":
        from huggingface_hub import get_token  # noqa: PLC0415 - slow to load

        return get_token(), "this machine's login"
    if not settings.has_secret(HF_TOKEN.key):
        return None, ""
    version = settings.secret_version(HF_TOKEN.key)
    if version is not None:
        return read_secret(version, project=checkup.project, api=checkup.google), version
    answer = runner.run("config", "get", HF_TOKEN.key, "--stack", checkup.stack or "")
    if answer.returncode != 0:
        raise ScriptError(
            f"cannot read the stack's secret {HF_TOKEN.key}: {runner.first_error(answer.stderr, answer.returncode)}"
        )
    return answer.stdout.strip(), f"the stack's secret {HF_TOKEN.key}"


def _reference(checkup: Checkup, kind: SecretKind, version: str) -> Sequence[Diagnosis]:
    """Check that a secret version in the settings exists and is enabled."""
    fix = f"{set_command(kind.key, checkup.stack or '')} --secret {version.split('/')[3]}"
    state = _state_of(checkup, kind.reference_key, version)
    if isinstance(state, Diagnosis):
        return (state,)
    if state == "ENABLED":
        return (Diagnosis(check=kind.reference_key, state="ok", detail=version),)
    detail = f"{version} is {state}" if state else f"{version} does not exist"
    return (Diagnosis(check=kind.reference_key, state="missing", detail=detail, fix=fix),)


def _state_of(checkup: Checkup, check: str, version: str) -> str | Diagnosis:
    """Return the state of a secret version, empty if it does not exist, or the failed check's result."""
    try:
        return str(checkup.google.get("secretmanager", f"v1/{version}").get("state"))
    except GoogleListError as error:
        return "" if error.status == _NOT_FOUND else checkup.refused(check, "secretmanager", _SECRETS_VIEWER, error)


def _docker_hub(checkup: Checkup, account: DockerHubSettings) -> Sequence[Diagnosis]:
    """Check the secret version of the account's token. The token is never read."""
    check, version = "docker hub", account.token_secret
    secret, _, _ = version.partition("/versions/")
    _, project, _, name = secret.split("/")
    state = _state_of(checkup, check, version)
    if isinstance(state, Diagnosis):
        return (state,)
    if state == "ENABLED":
        return (Diagnosis(check=check, state="ok", detail=f"pulls as {account.username} with {version}"),)
    detail = f"{version} of dockerHub.tokenSecret is {state.lower() or 'missing'}"
    fix = f"gcloud secrets create {name} --project={project} --replication-policy=automatic --data-file=TOKEN_FILE"
    if state:
        fix = f"gcloud secrets versions add {name} --project={project} --data-file=TOKEN_FILE"
    return (Diagnosis(check=check, state="missing", detail=detail, fix=fix),)


def _image(settings: Settings) -> Sequence[Diagnosis]:
    image = settings.image
    known = image.known is not None and image.known.digest == image.digest
    name = f"{image.repository}@{image.digest[:19]}..."
    table = "" if known else "; not in the table of tested images"
    try:
        answer = ask_registry(image.repository, image.digest)
    except (requests.RequestException, ValueError, KeyError) as error:
        detail = f"cannot reach the registry from this machine ({type(error).__name__}): {name}{table}"
        return (Diagnosis(check="image", state="unknown", detail=detail, required=False),)
    if answer.ok:
        left = answer.headers.get("ratelimit-remaining", "").partition(";")[0]
        pulls = f"; {left} Docker Hub pulls left for this address" if left else ""
        return (Diagnosis(check="image", state="ok", detail=f"{name}{table}{pulls}"),)
    if answer.status_code in {_UNAUTHORIZED, _NOT_FOUND}:
        detail = f"{name} does not exist on Docker Hub{table}"
        fix = "set gemma-serving:image to an entry of planning/data/images.json"
        return (Diagnosis(check="image", state="missing", detail=detail, fix=fix),)
    detail = f"Docker Hub returned HTTP {answer.status_code} for {name}{table}"
    return (Diagnosis(check="image", state="unknown", detail=detail, required=False),)


def ask_registry(repository: str, digest: str) -> requests.Response:
    """Request a manifest's headers from Docker Hub or the local cloud's registry, without an account."""
    simulated = os.environ.get("LOCALCLOUD_URL")
    registry = f"{simulated}/registry/registry-1.docker.io" if simulated else REGISTRY
    tokens = f"{simulated}/registry/auth.docker.io/token" if simulated else TOKENS
    scope = {"service": "registry.docker.io", "scope": f"repository:{repository}:pull"}
    granted = requests.get(tokens, params=scope, timeout=_LIMIT_S)
    granted.raise_for_status()
    headers = {"Authorization": f"Bearer {granted.json()['token']}", "Accept": ", ".join(_MANIFEST_TYPES)}
    return requests.head(f"{registry}/v2/{repository}/manifests/{digest}", headers=headers, timeout=_LIMIT_S)
