"""A preview of the engine: what the program says about resources that stand in no state, and what a refresh would change."""

import contextlib
import json
import os
import tempfile
from collections.abc import Generator, Mapping, Sequence
from typing import Final, cast

from contracts.errors import ScriptError
from contracts.fields import as_mapping, as_sequence
from engine import runner
from engine.deployment import ResourceState, is_passphrase_error, wrong_passphrase
from engine.secrets_provider import provider_options

PREVIEW_LIMIT_S: Final = 600.0
NO_STACK: Final = "no stack named"
_BACKEND: Final = "PULUMI_BACKEND_URL"


def declared(stack: str) -> Mapping[str, ResourceState]:
    """Return the resources that `pulumi up` would create, by URN, parents first.

    Raises StateUnreadableError if the passphrase is wrong, and ScriptError with the program's error.
    """
    return to_create(previewed(stack))


def previewed(stack: str, *options: str) -> Mapping[str, object]:
    """Return a preview of the engine in JSON.

    Raises StateUnreadableError if the passphrase is wrong, and ScriptError with the program's error.
    """
    answer = runner.run("preview", "--json", *options, "--stack", stack, limit_s=PREVIEW_LIMIT_S)
    parsed = parse_preview(answer.stdout)
    if answer.returncode != 0 or not parsed:
        error = next(iter(preview_errors(parsed)), "") or runner.first_error(answer.stderr, answer.returncode)
        if is_passphrase_error(error):
            raise wrong_passphrase(stack)
        raise ScriptError(f"The preview of stack {stack} failed: {error}")
    return parsed


def to_create(preview: Mapping[str, object]) -> Mapping[str, ResourceState]:
    """Return the new resources of a preview in JSON, by URN."""
    steps = [as_mapping(step) for step in as_sequence(preview.get("steps"))]
    states = [ResourceState(as_mapping(step.get("newState"))) for step in steps if step.get("op") == "create"]
    return {state.urn: state for state in states if state.urn}


def parse_preview(text: str) -> Mapping[str, object]:
    """Return what the engine printed with `--json`; empty if that is no JSON object."""
    try:
        return as_mapping(cast("object", json.loads(text)))
    except ValueError:
        return {}


def preview_errors(preview: Mapping[str, object]) -> Sequence[str]:
    """Return the errors that a preview in JSON names, in their order; "preview failed" only if there is no other."""
    said = [as_mapping(item) for item in as_sequence(preview.get("diagnostics"))]
    errors = [str(item.get("message") or "").strip() for item in said if item.get("severity") == "error"]
    return runner.reasons([text for text in errors if text])


def previewed_or_new(stack: str, *options: str) -> Mapping[str, object]:
    """Return a preview as `previewed` does; of a stack that the backend does not know, as a new one, and write nothing to the backend."""
    known = runner.run("stack", "select", stack, limit_s=PREVIEW_LIMIT_S)
    if known.returncode == 0:
        return previewed(stack, *options)
    if NO_STACK not in known.stderr + known.stdout:
        raise ScriptError(f"The preview of stack {stack} failed: {runner.error_of(known)}")
    with scratch_backend(stack):
        made = runner.run("stack", "init", stack, *provider_options(stack), limit_s=PREVIEW_LIMIT_S)
        if made.returncode != 0:
            raise ScriptError(f"The preview of stack {stack} failed: {runner.error_of(made)}")
        return previewed(stack, *options)


@contextlib.contextmanager
def scratch_backend(stack: str) -> Generator[None]:
    """Use an empty backend for a while, and leave the settings file as it was: a new stack writes its salt there."""
    path = runner.project_folder() / f"Pulumi.{stack}.yaml"
    text, before = path.read_bytes(), os.environ.get(_BACKEND)
    with tempfile.TemporaryDirectory(prefix="backend-") as folder:
        os.environ[_BACKEND] = f"file://{folder}"
        try:
            yield
        finally:
            path.write_bytes(text)
            if before is None:
                del os.environ[_BACKEND]
            else:
                os.environ[_BACKEND] = before
