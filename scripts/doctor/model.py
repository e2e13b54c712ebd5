"""Checks of what the server runs: the image, staged weights, secret versions, and access to checkpoints on the hub."""

import asyncio
import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import requests
from google.auth.exceptions import GoogleAuthError

from gemma_serving.cloud.google_session import GoogleListError
from gemma_serving.cloud.hub import connection_error, main_commit
from gemma_serving.cloud.registry import ask_registry
from gemma_serving.cloud.secret_values import UnusableVersionError, read_secret
from gemma_serving.contracts.errors import ScriptError
from gemma_serving.contracts.secret_payload import UnusableSecretError, store_command, usable_secret
from gemma_serving.contracts.three_answers import Present
from gemma_serving.engine import runner
from gemma_serving.planning.data.checkpoints import find_checkpoint, near_ids
from gemma_serving.planning.data.images import IMAGES
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.memory.resolve import resolve
from gemma_serving.planning.question.hub_files import LoadedRepository, hub_files
from gemma_serving.planning.settings.image import ImageSettings, in_artifact_registry
from gemma_serving.planning.settings.secrets import HF_TOKEN, KINDS, set_command
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.scripts.doctor.diagnosis import Checkup, Diagnosis, DoctorCheck, missing, ok, unknown
from gemma_serving.scripts.stack.deployed_server import secret_versions
from gemma_serving.stacks.bucket_weights import staged_weights
from gemma_serving.stacks.extra_checkpoints import extra_checkpoints, staging_command
from gemma_serving.stacks.planned import to_question

_LIMIT_S: Final = 4.0
_NOT_FOUND: Final = 404
_UNAUTHORIZED: Final = 401
_NOT_SHOWN: Final = {_UNAUTHORIZED, 403, _NOT_FOUND}
"""Statuses of Artifact Registry for an image that does not exist, or that the caller cannot read."""
_SECRETS: Final = ("secretmanager", "roles/secretmanager.viewer")


def checks(checkup: Checkup) -> Iterator[DoctorCheck]:
    """Yield the checks of a stack's image, weights, secrets, and of what its server loads from the hub."""
    settings = checkup.settings
    if settings is None:
        return
    yield DoctorCheck(name="image", run=partial(_image, checkup, settings), required=False)
    run = partial(_weights, checkup, settings)
    yield checkup.calling("weights", "storage", "roles/storage.objectViewer", run)
    yield from secret_checks(checkup, settings)
    for file in _hub_files(settings):
        name = "hub" if file.kind == "model" else f"{file.kind} {file.name}"
        yield DoctorCheck(name=name, run=partial(_hub, checkup, settings, file), required=False)


def secret_checks(checkup: Checkup, settings: Settings) -> Iterator[DoctorCheck]:
    """Yield a check for each secret that is set by reference, or whose version is in the state, which `up` replaces."""
    stored = secret_versions(checkup.state)
    for kind in KINDS:
        version = settings.secret_version(kind.key)
        name, fix = kind.key, f"gemma up {checkup.stack} --refresh"
        if version is not None:
            name, fix = kind.reference_key, f"{set_command(kind.key, checkup.stack)} --secret {version.split('/')[3]}"
        if found := version or stored.get(kind.name):
            run = partial(_secret_version, checkup, found, create=fix, add=fix, blocks=version is not None)
            yield checkup.calling(name, *_SECRETS, run)
    if settings.docker_hub is not None:
        version = settings.docker_hub.token_secret
        _, project, _, name, *_ = version.split("/")
        add = store_command(version)
        create = f"gcloud secrets create {name} --project={project} --replication-policy=automatic && {add}"
        run = partial(_secret_version, checkup, version, create=create, add=add)
        yield checkup.calling("docker hub", *_SECRETS, run)


def _hub_files(settings: Settings) -> Sequence[LoadedRepository]:
    """Return the repositories that the server loads from the hub."""
    files: list[LoadedRepository] = []
    if settings.weights == "hub":
        files.append(LoadedRepository(kind="model", name=settings.model, revision=settings.model_revision or ""))
    with contextlib.suppress(PlanningError):  # `gemma plan` reports it
        files += hub_files(resolve(to_question(settings, runner.project_folder())))
    return files


def _weights(checkup: Checkup, settings: Settings) -> Iterator[Diagnosis]:
    """Check the staged weights. Those of the hub that are absent are copied from there, so check the hub too."""
    found = list(weights(settings, checkup.stack))
    yield from (replace(line, blocks=not checkup.state.has_server) for line in found)
    is_own = settings.model_config is not None and settings.model_revision is None
    if found and found[0].is_absent and settings.bucket.manifest_hash is None and not is_own:
        model = LoadedRepository(kind="model", name=settings.model, revision=settings.model_revision or "")
        yield from (replace(line, check=line.check or "hub") for line in _hub(checkup, settings, model))


def weights(settings: Settings, stack: str) -> Iterator[Diagnosis]:
    """Check the staged copy of the model, then of its drafter, adapters and template, as the hook of the deployment reads them."""
    if settings.weights != "bucket":
        return
    for folder in staged_weights(settings, stack):
        fault = asyncio.run(folder.found())
        if fault is not None and fault.blocks:
            yield missing(fault.text, fault.command)
        else:
            yield ok(fault.text if fault is not None else f"complete in {folder.folder}")
    for extra in extra_checkpoints(settings):
        if extra.folder is None:
            yield missing(f"{extra.kind} {extra.source} is not staged", staging_command(settings, stack))


def _hub(checkup: Checkup, settings: Settings, file: LoadedRepository) -> Iterator[Diagnosis]:
    from huggingface_hub import HfApi  # noqa: PLC0415 - slow to load
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, OfflineModeIsEnabled  # noqa: PLC0415 - slow to load

    page = f"https://huggingface.co/{file.name}"
    try:
        token, origin = _token(checkup, settings)
    except (ScriptError, UnusableSecretError) as error:
        yield unknown(f"the hub was not asked: {error}", required=False)
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
    except (OSError, OfflineModeIsEnabled, connection_error()) as error:
        is_tried = isinstance(error, connection_error())
        fault = "the connection to the hub failed" if is_tried else "the hub gave no usable response"
        yield unknown(f"{fault} ({type(error).__name__})", required=False)
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
    from huggingface_hub import HfApi  # noqa: PLC0415 - slow to load
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled, RevisionNotFoundError  # noqa: PLC0415

    name, wanted = file.name, file.revision or None
    line = partial(replace, check="commit" if file.kind == "model" else f"commit of {name}")
    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"))
    try:
        found = api.model_info(name, revision=wanted, token=token or False, timeout=_LIMIT_S).sha
    except RevisionNotFoundError:
        newest = main_commit(name, token=token or False)
        commit = newest.value if isinstance(newest, Present) else "A_COMMIT_OF_THE_MODEL"
        fix = _setting(stack, file, "modelRevision", commit)
        return line(missing(f"{name} has no commit {wanted}", f"{fix} (https://huggingface.co/{name}/commits/main)"))
    except (HfHubHTTPError, OSError, OfflineModeIsEnabled, connection_error(), KeyError, ValueError) as error:
        why = f"the hub did not return the commits of {name} ({type(error).__name__})"
        return line(unknown(why, required=False))
    if not found:
        return line(unknown(f"the hub returned no commit of {name}", required=False))
    if wanted is not None:
        return line(ok(f"{name} has {wanted}"))
    setting = f"pulumi config set --stack {stack} gemma-serving:modelRevision {found}"
    loads = "gemma stage_model copies" if settings.weights == "bucket" else "the server loads"
    detail = f"modelRevision is not set: {loads} the main branch of {name}, now {found}; to pin it, run: {setting}"
    return line(ok(detail))


def _token(checkup: Checkup, settings: Settings) -> tuple[str | None, str]:
    """Return the token for reading the weights, and its source. The token is never printed.

    Raises ScriptError if the stack's secret cannot be read, and UnusableSecretError. No message contains the secret.
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
    origin = f"the stack's secret {HF_TOKEN.key}"
    return usable_secret(answer.stdout.removesuffix("\n"), origin), origin


def _secret_version(
    checkup: Checkup, version: str, *, create: str, add: str, blocks: bool = True
) -> Iterator[Diagnosis]:
    """Check that a secret version exists and is enabled, and that callers can send the value of one in the settings.

    `create` and `add` are the commands for a version that does not exist and for one that cannot be used.
    """
    state = ""
    try:
        state = str(checkup.google.get("secretmanager", f"v1/{version}").get("state"))
        if state == "ENABLED" and blocks:
            read_secret(version, project=checkup.project, api=checkup.google)
    except UnusableVersionError as error:
        yield missing(error.finding, add)
    except GoogleListError as error:
        if error.status != _NOT_FOUND:
            raise
        yield missing(f"{version} does not exist", create, blocks=blocks)
    except ScriptError as error:
        yield unknown(str(error), required=not state)
    else:
        yield ok(version) if state == "ENABLED" else missing(f"{version} is {state}", add, blocks=blocks)


def _image(checkup: Checkup, settings: Settings) -> Iterator[Diagnosis]:
    image = settings.image
    known = image.known is not None and image.known.digest == image.digest
    name = f"{image.repository}@{image.digest[:19]}..."
    table = "" if known else "; not in the table of tested images"
    where, absent = "on Docker Hub", {_UNAUTHORIZED, _NOT_FOUND}
    if in_artifact_registry(image.repository):
        where, absent = "in Artifact Registry, or your account has no roles/artifactregistry.reader there", _NOT_SHOWN
    try:
        answer = ask_registry(image.repository, image.digest, checkup.google.session)
    except (requests.RequestException, GoogleAuthError, ValueError, KeyError) as error:
        is_tried = isinstance(error, requests.ConnectionError | requests.Timeout)
        fault = "cannot reach the registry from this machine" if is_tried else "the registry gave no usable response"
        yield unknown(f"{fault} ({type(error).__name__}): {name}{table}", required=False)
        return
    if answer.ok:
        left = answer.headers.get("ratelimit-remaining", "").partition(";")[0]
        yield ok(f"{name}{table}{f'; {left} Docker Hub pulls left for this address' if left else ''}")
    elif answer.status_code in absent and settings.docker_hub is not None:
        detail = f"Docker Hub does not show {name} without the account of gemma-serving:dockerHub{table}"
        yield unknown(detail, required=False)
    elif answer.status_code in absent:
        is_running = any(image.digest in str(server) for server in checkup.state.servers)
        yield missing(f"{name} does not exist {where}{table}", _image_fix(image, checkup), blocks=not is_running)
    else:
        yield unknown(f"the registry returned HTTP {answer.status_code} for {name}{table}", required=False)


def _image_fix(image: ImageSettings, checkup: Checkup) -> str:
    """Return how the registry comes to show an image: one of the table by its digest there, one's own by a push or a role."""
    if image.known is not None:
        platform = image.known.platform
        names = [name for name, one in IMAGES.items() if one.platform == platform and one.build_context is None]
        return f"set gemma-serving:image to {' or '.join(names)}"
    if not in_artifact_registry(image.repository):
        return "push it, or, if it is private, set gemma-serving:dockerHub"
    host, project, repository, *_ = image.repository.split("/")
    location = host.removesuffix("-docker.pkg.dev")
    grant = (
        f"gcloud artifacts repositories add-iam-policy-binding {repository} --location={location} --project={project}"
    )
    return f"push it, or, if it is there: {grant} --member={checkup.member} --role=roles/artifactregistry.reader"
