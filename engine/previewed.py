"""A preview of the engine: what the program says about resources that stand in no state, and what a refresh would change."""

import contextlib
import subprocess
import tempfile
from collections.abc import Generator, Mapping, Sequence
from typing import Final

from contracts.errors import ScriptError
from contracts.fields import as_mapping, as_sequence, json_object
from engine import runner
from engine.backend import BACKEND_VARIABLE, variable
from engine.deployment import ResourceState, is_passphrase_error, wrong_passphrase
from engine.secrets_provider import provider_options

PREVIEW_LIMIT_S: Final = 600.0
NO_STACK: Final = "no stack named"


class PreviewFailedError(ScriptError):
    """A preview failed; `reasons` are the errors that name one, at least one."""

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__("\n".join(reasons))
        self.reasons = reasons


def declared(stack: str) -> Mapping[str, ResourceState]:
    """Return the resources that `pulumi up` would create, by URN, parents first.

    Raises StateUnreadableError if the passphrase is wrong, and ScriptError with the program's error.
    """
    return to_create(previewed(stack))


def previewed(stack: str, *options: str) -> Mapping[str, object]:
    """Return a preview of the engine in JSON.

    Raises StateUnreadableError if the passphrase is wrong, and ScriptError with the program's error.
    """
    with _in_words(stack):
        return preview(stack, *options)


def preview(stack: str, *options: str) -> Mapping[str, object]:
    """Return a preview of the engine in JSON. Raises PreviewFailedError with all errors."""
    return read_preview(runner.run("preview", "--json", *options, "--stack", stack, limit_s=PREVIEW_LIMIT_S))


def read_preview(answer: "subprocess.CompletedProcess[str]") -> Mapping[str, object]:
    """Return the preview that a command printed with `--json`. Raises PreviewFailedError if it failed, or printed none."""
    parsed = json_object(answer.stdout)
    if answer.returncode != 0 or not parsed:
        # With `--json` the errors are part of what it printed.
        raise PreviewFailedError(preview_errors(parsed) or [runner.error_of(answer)])
    return parsed


def steps_in(preview: Mapping[str, object]) -> Sequence[Mapping[str, object]]:
    """Return the steps of a preview in JSON, as the engine writes them."""
    return [as_mapping(step) for step in as_sequence(preview.get("steps"))]


def to_create(preview: Mapping[str, object]) -> Mapping[str, ResourceState]:
    """Return the new resources of a preview in JSON, by URN."""
    steps = steps_in(preview)
    states = [ResourceState(as_mapping(step.get("newState"))) for step in steps if step.get("op") == "create"]
    return {state.urn: state for state in states if state.urn}


def preview_errors(preview: Mapping[str, object]) -> Sequence[str]:
    """Return the errors that a preview in JSON names, in their order; "preview failed" only if there is no other."""
    return runner.reasons([text for text in (said.strip() for said in diagnostics(preview, "error")) if text])


def diagnostics(preview: Mapping[str, object], severity: str) -> Sequence[str]:
    """Return what a preview in JSON says with this severity."""
    said = [as_mapping(item) for item in as_sequence(preview.get("diagnostics"))]
    return [str(item.get("message") or "") for item in said if item.get("severity") == severity]


def previewed_or_new(stack: str, *options: str) -> Mapping[str, object]:
    """Return a preview as `previewed` does; of a stack that the backend does not know, as a new one, and write nothing to the backend."""
    with _in_words(stack), selected_or_new(stack):
        return preview(stack, *options)


@contextlib.contextmanager
def selected_or_new(stack: str, *, create: bool = True) -> Generator[bool]:
    """Work with a stack, and yield whether the backend knows it. With `create`, one that it does not know is new, in a backend of its own.

    Raises PreviewFailedError.
    """
    known = runner.run("stack", "select", stack, limit_s=PREVIEW_LIMIT_S)
    if known.returncode == 0:
        yield True
        return
    if not create or NO_STACK not in known.stderr + known.stdout:
        raise PreviewFailedError([runner.error_of(known)])
    with scratch_backend(stack):
        made = runner.run("stack", "init", stack, *provider_options(stack), limit_s=PREVIEW_LIMIT_S)
        if made.returncode != 0:
            raise PreviewFailedError([runner.error_of(made)])
        yield False


@contextlib.contextmanager
def _in_words(stack: str) -> Generator[None]:
    """Say of which stack a preview failed, and why."""
    try:
        yield
    except PreviewFailedError as failed:
        error = failed.reasons[0]
        if is_passphrase_error(error):
            raise wrong_passphrase(stack) from None
        raise ScriptError(f"The preview of stack {stack} failed: {error}") from None


@contextlib.contextmanager
def scratch_backend(stack: str) -> Generator[None]:
    """Use an empty backend for a while, and leave the settings file as it was: a new stack writes its salt there."""
    path = runner.project_folder() / f"Pulumi.{stack}.yaml"
    text = path.read_bytes()
    with tempfile.TemporaryDirectory(prefix="backend-") as folder, variable(BACKEND_VARIABLE, f"file://{folder}"):
        try:
            yield
        finally:
            path.write_bytes(text)
