"""Previews of the engine, in JSON."""

import contextlib
import re
import shlex
import tarfile
import tempfile
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Final

from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.contracts.fields import as_mapping, as_sequence, json_object
from gemma_serving.contracts.masking import masked
from gemma_serving.engine import runner
from gemma_serving.engine.atomic_file import private_folder
from gemma_serving.engine.backend import BACKEND_VARIABLE, drop_empty_side_file, variable
from gemma_serving.engine.children import ended
from gemma_serving.engine.events import VARIABLES, is_stored
from gemma_serving.engine.exported_state import (
    NO_CHECKPOINT,
    ResourceState,
    is_passphrase_error,
    type_in,
    unreadable_state,
)
from gemma_serving.engine.secrets_provider import provider_options, require_passphrase

PREVIEW_LIMIT_S: Final = 600.0
_ARCHIVE_LIMIT_S: Final = 300.0
_KEEPS_CAPACITY: Final = "while it is ACTIVE"
"""Part of the provider's refusal of such a change (gcp_tpu_provider.diff)."""

_PROTECTED: Final = re.compile(r'resource "(?P<urn>[^"]+)" cannot be deleted\s+because it is protected')
"""The engine's error (pulumi/pulumi, step_generator.go, 3.256)."""


class PreviewFailedError(ScriptError):
    """A preview failed, with at least one reason, preferably those with a cause."""

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__("\n".join(reasons))
        self.reasons = reasons


def creations_in(preview: Mapping[str, object]) -> Mapping[str, ResourceState]:
    """Return the resources that `pulumi up` will create, by URN, parents first."""
    created = [step for step in steps_in(preview) if step.get("op") == "create"]
    states = [ResourceState(as_mapping(step.get("newState"))) for step in created]
    return {state.urn: state for state in states if state.urn}


def previewed(stack: str, *options: str) -> Mapping[str, object]:
    """Return a preview in JSON.

    Raises CommandRefusedError for a change that would release running capacity, StateUnreadableError for a wrong passphrase, and ScriptError.
    """
    try:
        return preview(stack, *options)
    except PreviewFailedError as failed:
        error = failed.reasons[0].removeprefix("error:").strip()
        if _KEEPS_CAPACITY in error:
            raise CommandRefusedError(f"{error} Nothing was changed.") from None
        if protected := _PROTECTED.search(error):
            urn = protected["urn"]
            raise CommandRefusedError(
                f"The change deletes {type_in(urn)} {urn.rpartition('::')[2]}, which is protected. Nothing was changed. To delete it with its "
                f"contents, run `pulumi state unprotect {shlex.quote(urn)} --yes --stack {stack}`, then `gemma up {stack}`."
            ) from None
        raise ScriptError(f"The preview of stack {stack} failed: {error}") from None


def preview(stack: str, *options: str) -> Mapping[str, object]:
    """Return an engine preview in JSON; `isStored` is true if the state has each output (`events.is_stored`).

    Raises StateUnreadableError, such as for a wrong passphrase, and PreviewFailedError with all errors.
    """
    drop_empty_side_file(stack)
    require_passphrase(stack)
    with private_folder() as folder:
        log = folder / "events"
        words = ("preview", "--json", "--event-log", str(log), *options, "--stack", stack)
        answer = runner.run(*words, limit_s=PREVIEW_LIMIT_S, variables=VARIABLES)
        parsed = json_object(answer.stdout)
        stored = is_stored(log)
    if answer.returncode != 0 or not parsed:
        # With `--json` the errors are part of the output.
        errors = preview_errors(parsed) or [runner.error_of(answer)]
        if is_passphrase_error(errors[0]) or NO_CHECKPOINT in errors[0]:
            raise unreadable_state(stack, errors[0])
        raise PreviewFailedError(errors)
    return {**parsed, "isStored": stored}


def steps_in(preview: Mapping[str, object]) -> Sequence[Mapping[str, object]]:
    """Return the steps of a preview in JSON, as written by the engine."""
    return [as_mapping(step) for step in as_sequence(preview.get("steps"))]


def preview_errors(preview: Mapping[str, object]) -> Sequence[str]:
    """Return the errors of a preview in JSON, in order. "preview failed" is included only if it is the only one."""
    found = [text for text in (message.strip() for message in diagnostics(preview, "error")) if text]
    return runner.reasons(found) or found


def diagnostics(preview: Mapping[str, object], severity: str) -> Sequence[str]:
    """Return the messages of a preview in JSON with this severity, without secrets, in the words of `gemma`."""
    found = [as_mapping(item) for item in as_sequence(preview.get("diagnostics"))]
    stack = next((str(item["urn"]).split(":")[2] for item in found if item.get("urn")), "")
    texts = [masked(str(item.get("message") or "")) for item in found if item.get("severity") == severity]
    return [runner.own_words(text, stack) for text in texts]


@contextlib.contextmanager
def selected_or_new(stack: str) -> Generator[bool]:
    """Select a stack, or a temporary new one. Yield whether it is known. Raises PreviewFailedError."""
    known = runner.run("stack", "select", stack, limit_s=PREVIEW_LIMIT_S)
    if known.returncode == 0:
        yield True
        return
    if "no stack named" not in known.stderr + known.stdout:
        raise PreviewFailedError([runner.error_of(known)])
    with scratch_backend(stack):
        made = runner.run("stack", "init", stack, *provider_options(stack), limit_s=PREVIEW_LIMIT_S)
        if made.returncode != 0:
            raise PreviewFailedError([runner.error_of(made)])
        yield False


@contextlib.contextmanager
def scratch_backend(stack: str) -> Generator[None]:
    """Use an empty backend, and restore the settings file, to which a stack writes its salt."""
    path = runner.project_folder() / f"Pulumi.{stack}.yaml"
    text = path.read_bytes()
    with tempfile.TemporaryDirectory(prefix="backend-") as folder, variable(BACKEND_VARIABLE, f"file://{folder}"):
        try:
            yield
        finally:
            path.write_bytes(text)


@contextlib.contextmanager
def other_checkout(commit: str) -> Generator[Path]:
    """Yield a temporary folder with the files of another commit and this checkout's packages.

    The working tree and git's own files do not change. Raises CommandRefusedError if git does not know the commit.
    """
    root = runner.project_folder()
    with tempfile.TemporaryDirectory(prefix="checkout-") as parent:
        folder, archive = Path(parent) / "project", Path(parent) / "project.tar"
        words = ["git", "archive", "--format=tar", "--output", str(archive), "--end-of-options", commit]
        done = ended(words, folder=root, limit_s=_ARCHIVE_LIMIT_S)
        if done.returncode != 0:
            why = done.stderr.strip().rpartition("\n")[2]
            raise CommandRefusedError(
                f"git cannot read commit {commit}: {why}. Fetch it, or pass a commit of this repository."
            )
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
        if not (folder / ".venv").exists():
            (folder / ".venv").symlink_to((root / ".venv").resolve())
        yield folder
