"""Checks of the model and image: staged weights, access to the checkpoint on the hub, secrets by reference, and the container image."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final
from urllib.parse import quote

import requests
from google.auth.exceptions import GoogleAuthError

from gemma_serving.cloud.google_session import GoogleListError, NotJsonError
from gemma_serving.cloud.hub import main_commit
from gemma_serving.cloud.model_files import CONFIG
from gemma_serving.cloud.secret_values import read_secret
from gemma_serving.cloud.staging.sources import hub
from gemma_serving.cloud.staging.template_age import recorded_age, template_record
from gemma_serving.contracts.answers import Present
from gemma_serving.contracts.chat_template import AGE_WORDS, TEMPLATE
from gemma_serving.contracts.errors import ScriptError
from gemma_serving.contracts.fields import as_mapping, as_sequence
from gemma_serving.contracts.staged_weights import (
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
from gemma_serving.engine import runner
from gemma_serving.planning.data.checkpoints import find_checkpoint, near_ids
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.memory.resolve import resolve
from gemma_serving.planning.question.hub_files import LoadedRepository, hub_files
from gemma_serving.planning.rules.security.pinned import COMMIT
from gemma_serving.planning.settings.image import in_artifact_registry
from gemma_serving.planning.settings.secrets import HF_TOKEN, KINDS, set_command
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.scripts.doctor.diagnosis import Checkup, Diagnosis, DoctorCheck, missing, ok, unknown
from gemma_serving.scripts.stack.deployed_server import secret_versions
from gemma_serving.stacks.extra_checkpoints import ExtraCheckpoint, extra_checkpoints, staging_command
from gemma_serving.stacks.planned import to_deployment

REGISTRY: Final = "https://registry-1.docker.io"
TOKENS: Final = "https://auth.docker.io/token"
_LIMIT_S: Final = 4.0
_NOT_FOUND: Final = 404
_UNAUTHORIZED: Final = 401
_NOT_SHOWN: Final = {_UNAUTHORIZED, 403, _NOT_FOUND}
"""Statuses of Artifact Registry for an image that does not exist, or that the caller cannot read."""
_MANIFEST_TYPES: Final = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_GIB: Final = 1024**3
_SECRETS: Final = ("secretmanager", "roles/secretmanager.viewer")


def checks(checkup: Checkup) -> Iterator[DoctorCheck]:
    """Yield the checks of a stack's model and image."""
    settings = checkup.settings
    if settings is None:
        return
    for extra in (None, *extra_checkpoints(settings)) if settings.weights == "bucket" else ():
        run = partial(_weights, checkup, settings, extra)
        yield checkup.calling("weights", "storage", "roles/storage.objectViewer", run)
    if settings.weights != "prefetched-image" and settings.vllm.chat_template == settings.vllm.own_template:
        yield DoctorCheck(name="chat template", run=partial(_template, checkup, settings), required=False)
    yield from secret_checks(checkup, settings, secret_versions(checkup.state))
    yield from hub_checks(checkup, settings, before_staging=True)
    if settings.docker_hub is not None:
        version = settings.docker_hub.token_secret
        _, project, _, name, *_ = version.split("/")
        end = "--data-file=TOKEN_FILE"
        create = f"gcloud secrets create {name} --project={project} --replication-policy=automatic {end}"
        add = f"gcloud secrets versions add {name} --project={project} {end}"
        run = partial(_secret_version, checkup, version, create=create, add=add)
        yield checkup.calling("docker hub", *_SECRETS, run)
    yield image_check(checkup, settings)


def secret_checks(checkup: Checkup, settings: Settings, stored: Mapping[str, str]) -> Iterator[DoctorCheck]:
    """Yield a check for each secret that is set by reference, or whose version is among the `stored` ones, which `up` replaces."""
    for kind in KINDS:
        version = settings.secret_version(kind.key)
        name, fix = kind.key, f"gemma up {checkup.stack} --refresh"
        if version is not None:
            name, fix = kind.reference_key, f"{set_command(kind.key, checkup.stack)} --secret {version.split('/')[3]}"
        if found := version or stored.get(kind.name):
            yield checkup.calling(name, *_SECRETS, partial(_secret_version, checkup, found, create=fix, add=fix))


def hub_checks(checkup: Checkup, settings: Settings, *, before_staging: bool = False) -> Iterator[DoctorCheck]:
    """Yield a check for each repository that the server loads from the hub. It is unknown if the hub does not respond.

    `before_staging`: also check the model whose weights `gemma stage_model` will copy from the hub.
    """
    files: list[LoadedRepository] = []
    is_own = settings.architecture_file is not None and settings.model_revision is None
    is_copied = settings.weights == "bucket" and settings.bucket.manifest_hash is None and not is_own
    if settings.weights == "hub" or (before_staging and is_copied):
        files.append(LoadedRepository(kind="model", name=settings.model, revision=settings.model_revision or ""))
    with contextlib.suppress(PlanningError):  # `gemma plan` reports it
        files += hub_files(resolve(to_deployment(settings, runner.project_folder())))
    for file in files:
        name = "hub" if file.kind == "model" else f"{file.kind} {file.name}"
        yield DoctorCheck(name=name, run=partial(_hub, checkup, settings, file), required=False)


def image_check(checkup: Checkup, settings: Settings) -> DoctorCheck:
    """Return the check that the registry has the image. It is unknown if the registry does not respond."""
    return DoctorCheck(name="image", run=partial(_image, checkup, settings), required=False)


def _weights(checkup: Checkup, settings: Settings, extra: ExtraCheckpoint | None) -> Iterator[Diagnosis]:
    """Check the staged copy of the model, or of a drafter or an adapter."""
    bucket = settings.bucket_name(checkup.stack)
    prefix = extra.folder if extra else settings.weights_prefix
    fix = staging_command(settings, checkup.stack)
    if prefix is None:
        yield missing(f"{extra.kind} {extra.source} is not staged" if extra else "not staged", fix)
        return
    name = object_name(prefix, MANIFEST)
    try:
        pages = checkup.google.pages("storage", listing_path(bucket, prefix))
        stored = stored_files(as_mapping(item) for page in pages for item in as_sequence(page.get("items")))
        manifest = _manifest(checkup, bucket, name) if name in stored else None
    except GoogleListError as error:
        if error.status != _NOT_FOUND:
            raise
        yield missing(f"bucket {bucket} does not exist", fix)
        return
    folder = folder_uri(bucket, prefix)
    is_listed = name in stored
    named = f"{extra.kind} {extra.source}: " if extra else ""
    if is_listed or extra is not None:
        fault = _fault(settings, extra, folder, difference(manifest, stored, prefix), as_mapping(manifest))
    else:
        fault = _unlisted_fault(settings, folder, stored)
    if fault:
        yield missing(f"{named}{fault}", fix)
        return
    files = [object_name(prefix, file) for file in file_names(as_mapping(manifest))] if is_listed else list(stored)
    size = f"{len(files)} {'files' if is_listed else 'objects'}, {sum(stored[file].size_bytes for file in files) / _GIB:.2f} GiB in {folder}"
    # `pulumi up` accepts a checkpoint without a manifest in an existing bucket, because another tool may have copied it.
    end = "" if is_listed else f", without a {MANIFEST}: copied by another tool, or staging is incomplete"
    yield ok(f"{named}{size}{end}")


def _template(checkup: Checkup, settings: Settings) -> Iterator[Diagnosis]:
    """Report the age of the served template, as staging recorded it or read from the hub. Nothing if other checks report why it cannot be read."""
    with contextlib.suppress(ScriptError, GoogleListError):
        if settings.weights == "hub":
            manifest: object = {TEMPLATE: template_record(hub(settings.model, settings.model_revision))}
        else:
            own = [extra.folder for extra in extra_checkpoints(settings) if extra.kind == "template"]
            folder = own[0] if own and own[0] else settings.weights_prefix
            manifest = _manifest(checkup, settings.bucket_name(checkup.stack), object_name(folder, MANIFEST))
        age = recorded_age(as_mapping(manifest))
        line = unknown if age == "unknown" else ok
        yield line(f"it {AGE_WORDS[age]}", values={"age": age}, required=False)


def _manifest(checkup: Checkup, bucket: str, name: str) -> object:
    """Return the manifest; None if it is not JSON."""
    try:
        return checkup.google.get("storage", f"storage/v1/b/{bucket}/o/{quote(name, safe='')}?alt=media")
    except NotJsonError:
        return None


def _fault(
    settings: Settings, extra: ExtraCheckpoint | None, folder: str, wrong: str | None, manifest: Mapping[str, object]
) -> str:
    """Return the difference from the manifest, or of the manifest from the hash and the commit in the settings; or an empty string."""
    if wrong is not None:
        return f"{wrong}, in {folder}"
    staged = manifest_hash(manifest)
    bound = extra.digest if extra else settings.bucket.manifest_hash
    if bound not in {None, staged}:
        return f"the settings have the hash {bound}, but the weights in {folder} have {staged}"
    copied, wanted = str(manifest.get("revision")), settings.model_revision
    if extra is None and wanted is not None and COMMIT.fullmatch(copied) and copied != wanted:
        return f"modelRevision is {wanted}, but the weights in {folder} are from commit {copied}"
    return ""


def _unlisted_fault(settings: Settings, folder: str, stored: Mapping[str, StoredFile]) -> str:
    if settings.bucket.existing is None or settings.bucket.manifest is not None:
        return f"no {MANIFEST} in {folder}: weights are not staged or staging is incomplete"
    if object_name(settings.weights_prefix, CONFIG) not in stored:
        return f"neither {MANIFEST} nor {CONFIG} in {folder}: weights are not staged"
    return ""


def _hub(checkup: Checkup, settings: Settings, file: LoadedRepository) -> Iterator[Diagnosis]:
    import httpx2  # noqa: PLC0415 - the hub client's HTTP library, whose errors it passes on
    from huggingface_hub import HfApi  # noqa: PLC0415 - slow to load
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, OfflineModeIsEnabled  # noqa: PLC0415 - slow to load

    page = f"https://huggingface.co/{file.name}"
    try:
        token, origin = _token(checkup, settings)
    except ScriptError as error:
        yield unknown(str(error))
        return
    login = "hf auth login" if settings.weights == "bucket" else set_command(HF_TOKEN.key, checkup.stack)
    try:
        HfApi(endpoint=os.environ.get("HF_ENDPOINT")).auth_check(file.name, token=token or False)
    except GatedRepoError:
        if token:
            yield missing(
                f"the token of {origin} cannot read {file.name} because its owner has not accepted the terms",
                f"accept the terms at {page} with the account of that token",
            )
        else:
            yield missing(f"{file.name} is gated, but no token is set", login)
    except HfHubHTTPError as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status == _UNAUTHORIZED and token:
            yield missing(f"the token of {origin} is invalid", login)
        elif status in {_UNAUTHORIZED, _NOT_FOUND}:
            yield _no_repository(checkup.stack, file, login)
        else:
            yield unknown(f"the hub returned HTTP {status}", required=False)
    except (OSError, OfflineModeIsEnabled, httpx2.TransportError) as error:
        yield unknown(f"cannot reach the hub from this machine ({type(error).__name__})", required=False)
    else:
        yield ok(f"{file.name} is readable ({f'the token of {origin}' if token else 'no token needed'})")
        if file.kind == "model" or file.revision:
            yield _commit(checkup.stack, settings, file, token)


def _no_repository(stack: str, file: LoadedRepository, login: str) -> Diagnosis:
    """Return the result for an id that the hub does not show. `login` is the command that gives access to a private one."""
    near = [one for one in near_ids(file.name) if file.kind != "adapter"]
    known = f"; closest existing ids: {', '.join(near)}" if near else ""
    # A misspelled id has one obvious fix. Another checkpoint of the catalog is the user's choice.
    is_misspelt = bool(near) and find_checkpoint(file.name) is None
    setting = _setting(stack, file, "model", near[0] if is_misspelt else "AN_ID_OF_THE_HUB")
    fix = setting if is_misspelt else f"{setting}; or, if it is private: {login}"
    return missing(f"{file.name} does not exist on the hub or is private{known}", fix)


def _setting(stack: str, file: LoadedRepository, key: str, value: str) -> str:
    """Return the change to the file, `key` for the model. `pulumi config set` needs a state, which a new stack does not have."""
    change = (
        f"set gemma-serving:{key}: {value}" if file.kind == "model" else f"set {value} for the {file.kind} {file.name}"
    )
    return f"{change} in Pulumi.{stack}.yaml"


def _commit(stack: str, settings: Settings, file: LoadedRepository, token: str | None) -> Diagnosis:
    """Check that the hub has the commit of the settings; without one, report the commit of its main branch and how to set it."""
    import httpx2  # noqa: PLC0415 - the hub client's HTTP library, whose errors it passes on
    from huggingface_hub import HfApi  # noqa: PLC0415 - slow to load
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled, RevisionNotFoundError  # noqa: PLC0415

    name, wanted = file.name, file.revision or None
    line = partial(Diagnosis, check="commit" if file.kind == "model" else f"commit of {name}")
    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"))
    try:
        found = api.model_info(name, revision=wanted, token=token or False, timeout=_LIMIT_S).sha
    except RevisionNotFoundError:
        newest = main_commit(name, token=token or False)
        commit = newest.value if isinstance(newest, Present) else "A_COMMIT_OF_THE_MODEL"
        fix = _setting(stack, file, "modelRevision", commit)
        return line("failed", f"{name} has no commit {wanted}", f"{fix} (https://huggingface.co/{name}/commits/main)")
    except (HfHubHTTPError, OSError, OfflineModeIsEnabled, httpx2.TransportError, KeyError, ValueError) as error:
        return line("unknown", f"the hub did not return the commits of {name} ({type(error).__name__})", required=False)
    if not found:
        return line("unknown", f"the hub returned no commit of {name}", required=False)
    if wanted is not None:
        return line("passed", f"{name} has {wanted}")
    setting = f"pulumi config set --stack {stack} gemma-serving:modelRevision {found}"
    loads = "gemma stage_model copies" if settings.weights == "bucket" else "the server loads"
    detail = f"modelRevision is not set: {loads} the main branch of {name}, now {found}; to pin it, run: {setting}"
    return line("passed", detail)


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
    answer = runner.run("config", "get", HF_TOKEN.key, "--stack", checkup.stack)
    if answer.returncode != 0:
        raise ScriptError(
            f"cannot read the stack's secret {HF_TOKEN.key}: {runner.first_error(answer.stderr, answer.returncode)}"
        )
    return answer.stdout.strip(), f"the stack's secret {HF_TOKEN.key}"


def _secret_version(checkup: Checkup, version: str, *, create: str, add: str) -> Iterator[Diagnosis]:
    """Check that a secret version in the settings exists and is enabled. Its value is never read.

    `create` and `add` are the commands for a version that does not exist and for one that is not enabled.
    """
    state = ""
    try:
        state = str(checkup.google.get("secretmanager", f"v1/{version}").get("state"))
    except GoogleListError as error:
        if error.status != _NOT_FOUND:
            raise
    if state == "ENABLED":
        yield ok(version)
    else:
        yield missing(f"{version} is {state}", add) if state else missing(f"{version} does not exist", create)


def _image(checkup: Checkup, settings: Settings) -> Iterator[Diagnosis]:
    image = settings.image
    known = image.known is not None and image.known.digest == image.digest
    name = f"{image.repository}@{image.digest[:19]}..."
    table = "" if known else "; not in the table of tested images"
    fix = "set gemma-serving:image to an entry of gemma_serving/planning/data/images.json"
    where, absent = "on Docker Hub", {_UNAUTHORIZED, _NOT_FOUND}
    if in_artifact_registry(image.repository):
        where, absent = "in Artifact Registry, or your account has no roles/artifactregistry.reader there", _NOT_SHOWN
    try:
        answer = ask_registry(image.repository, image.digest, checkup.google.session)
    except (requests.RequestException, GoogleAuthError, ValueError, KeyError) as error:
        detail = f"cannot reach the registry from this machine ({type(error).__name__}): {name}{table}"
        yield unknown(detail, required=False)
        return
    if answer.ok:
        left = answer.headers.get("ratelimit-remaining", "").partition(";")[0]
        yield ok(f"{name}{table}{f'; {left} Docker Hub pulls left for this address' if left else ''}")
    elif answer.status_code in absent and settings.docker_hub is not None:
        detail = f"Docker Hub does not show {name} without the account of gemma-serving:dockerHub{table}"
        yield unknown(detail, required=False)
    elif answer.status_code in absent:
        yield missing(f"{name} does not exist {where}{table}", fix)
    else:
        yield unknown(f"the registry returned HTTP {answer.status_code} for {name}{table}", required=False)


def ask_registry(repository: str, digest: str, session: requests.Session) -> requests.Response:
    """Request a manifest's headers from Artifact Registry with the caller's session, or from Docker Hub without an account."""
    simulated = os.environ.get("LOCALCLOUD_URL")
    headers = {"Accept": ", ".join(_MANIFEST_TYPES)}
    if in_artifact_registry(repository):
        host, _, name = repository.partition("/")
        registry = f"{simulated}/registry/{host}" if simulated else f"https://{host}"
        return session.head(f"{registry}/v2/{name}/manifests/{digest}", headers=headers, timeout=_LIMIT_S)
    registry = f"{simulated}/registry/registry-1.docker.io" if simulated else REGISTRY
    tokens = f"{simulated}/registry/auth.docker.io/token" if simulated else TOKENS
    scope = {"service": "registry.docker.io", "scope": f"repository:{repository}:pull"}
    granted = requests.get(tokens, params=scope, timeout=_LIMIT_S)
    granted.raise_for_status()
    headers["Authorization"] = f"Bearer {granted.json()['token']}"
    return requests.head(f"{registry}/v2/{repository}/manifests/{digest}", headers=headers, timeout=_LIMIT_S)
