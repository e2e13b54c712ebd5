"""Run the Pulumi CLI: the one linked by `make setup`, otherwise the one on PATH."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.contracts.installation import (
    CHECKOUT,
    FOLDER_VARIABLE,
    INSTALL_PULUMI,
    home_folder,
    no_project,
    own_project,
)
from gemma_serving.contracts.masking import masked
from gemma_serving.contracts.memory import memory_of
from gemma_serving.contracts.processes import is_alive
from gemma_serving.contracts.settings_files import no_settings_file, stacks_in
from gemma_serving.contracts.spelling import did_you_mean
from gemma_serving.engine.children import started
from gemma_serving.engine.trial import project_of

_MOST_CHARACTERS = 600
QUERY_LIMIT_S = 120.0

_POLL_S: Final = 0.2
_LAST_OUTPUT_S: Final = 5.0
"""Time to read on after the engine's exit. A plugin may keep the pipe open."""
_RUNNING: Final = "running-{}"
_CUT_OFF: Final = "unexpected end of JSON input"
"""Error of a list of stacks if an interrupted write truncated the state of one."""
_NO_REASON: Final = re.compile(r"(update|preview) (failed|canceled)")
"""Added by the engine to a run's errors (pulumi/pulumi, deployment_executor.go)."""
_INPUT: Final = re.compile(
    "`(allowReplaceActive|zones|acceleratorType|runtimeVersion|bootDiskSizeGb|api|maxRunDuration(?=S)|waitTotal(?=S)|"
    "provisioning(?=Model)|reservation(?=Name))(?:S|Model|Name)?`"
)
"""Inputs of the queued resource that the provider's refusals name."""
_VERBS: Final = {"up": "up", "destroy": "teardown"}
_COMMAND: Final = re.compile(rf"`pulumi ({'|'.join(_VERBS)})\b")
_COUNT: Final = re.compile(r"\d+ errors? occurred:")
"""First line of several errors, as hashicorp/go-multierror writes it."""
_PART: Final = re.compile(r"(?:\*|\d+\)) (.+)")
NOT_LOGGED_IN: Final = (
    "Pulumi is not logged in. Run `pulumi login`, or `pulumi login gs://YOUR_STATE_BUCKET` to use your own bucket."
)


class PulumiFailedError(ScriptError):
    """The engine failed. `output` is its output, with secrets."""

    def __init__(self, message: str, output: str) -> None:
        super().__init__(message)
        self.output = output


def project_folder() -> Path:
    """Return the folder with Pulumi.yaml: this one or the checkout; in a local cloud the trial's. Raises CommandRefusedError, also for another program."""
    if (root := own_project()) is None:
        raise CommandRefusedError(no_project())
    return project_of(root)


def settings_names() -> Sequence[str]:
    """Return the stacks with a settings file in the project's folder; none without a project."""
    return stacks_in(project_folder()) if own_project() else ()


def listed_stacks(*options: str) -> frozenset[str]:
    """Return the names of the backend's stacks. Raises like `query`."""
    listed = query(["stack", "ls", "--json", *options])
    return frozenset(str(item["name"]).rpartition("/")[2] for item in json.loads(listed))


def require_stacks(names: Sequence[str]) -> Sequence[str]:
    """Return the stacks with settings. Raises CommandRefusedError without any, or one of `names`."""
    known = stacks_in(project_folder())
    if not known:
        raise CommandRefusedError("No Pulumi.<stack>.yaml found. To create a stack, run `gemma init NAME --model ID`.")
    unknown = [name for name in names if name not in known]
    if unknown:
        raise CommandRefusedError(no_settings(unknown[0]))
    return known


def no_settings(stack: str) -> str:
    """Return the error for a stack without a settings file, which may be deployed."""
    try:
        is_deployed = stack in listed_stacks()
    except ScriptError:  # the backend is reported by the command that needs it
        is_deployed = False
    return no_settings_file(stack, project_folder(), is_deployed=is_deployed)


def pulumi() -> str:
    """Return the path of the Pulumi CLI. Raises CommandRefusedError if it is not installed."""
    linked = Path(sys.executable).with_name("pulumi")
    found = str(linked) if linked.is_file() else shutil.which("pulumi")
    if found is None:
        raise CommandRefusedError(f"The Pulumi CLI is not installed. Run `{INSTALL_PULUMI}`.")
    return found


def environment() -> Mapping[str, str]:
    """Return the engine's environment: the user's, without the check for newer versions.

    PYTHONPATH does not contain this checkout, because the program imports from its own folder, which may be a copy.
    """
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = os.pathsep.join(path for path in given if path and Path(path).resolve() != CHECKOUT)
    folder = {FOLDER_VARIABLE: str(home_folder())}
    return {**os.environ, **folder, "PULUMI_SKIP_UPDATE_CHECK": "true", "PYTHONPATH": paths}


def run(
    *arguments: str,
    limit_s: float | None = QUERY_LIMIT_S,
    stdin: str | None = None,
    variables: Mapping[str, str] | None = None,
) -> "subprocess.CompletedProcess[str]":
    """Run a Pulumi command to its end; the engine saves its state first, even after a signal.

    `stdin`: such as a secret, which must not be an argument. Raises ScriptError after `limit_s` seconds.
    """
    source = subprocess.DEVNULL if stdin is None else subprocess.PIPE
    with _engine(arguments, variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=source) as process:
        try:
            out, err = process.communicate(stdin, timeout=limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise ScriptError(f"`pulumi {shlex.join(arguments)}` timed out after {limit_s:.0f} s.") from None
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def attended(
    *arguments: str,
    watch: Callable[[], None] | None = None,
    variables: Mapping[str, str] | None = None,
) -> tuple[int, str]:
    """Run a Pulumi command to its end, even after a signal. Return its exit code and its output.

    `watch` is called several times per second, and at the end.
    Raises KeyboardInterrupt after the end if the user interrupted.
    """
    lines: list[str] = []

    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL, "errors": "replace"}
    with _engine(arguments, variables, read_by_caller=True, **pipes) as process:
        reader = threading.Thread(target=lines.extend, args=(process.stdout,), daemon=True)
        reader.start()
        while watch is not None and process.poll() is None:
            watch()
            time.sleep(_POLL_S)
        process.wait()
    reader.join(timeout=_LAST_OUTPUT_S)
    if watch is not None:
        watch()
    return process.returncode, "".join(lines)


def _engine(
    arguments: Sequence[str],
    variables: Mapping[str, str] | None = None,
    **options: Any,  # noqa: ANN401 - the arguments of `started`
) -> "AbstractContextManager[subprocess.Popen[str]]":
    """Start a Pulumi command in the project's folder."""
    words = [pulumi(), *arguments, "--non-interactive"]
    return started(words, cwd=project_folder(), env={**environment(), **(variables or {})}, **options)


def query(
    arguments: Sequence[str], *, limit_s: float = QUERY_LIMIT_S, variables: Mapping[str, str] | None = None
) -> str:
    """Return stdout of a Pulumi command. Raises CommandRefusedError without the stack, PulumiFailedError."""
    answer = run(*arguments, limit_s=limit_s, variables=variables)
    if answer.returncode == 0:
        return answer.stdout
    error = error_of(answer)
    missing = re.match(r"no stack named '([^']*)' found", error)
    if missing:
        raise CommandRefusedError(no_such_stack(missing[1].rpartition("/")[2]))
    # Not a refusal, because a refusal means that the stack does not exist, and a teardown relies on that.
    is_out = "PULUMI_ACCESS_TOKEN must be set" in error
    text = NOT_LOGGED_IN if is_out else f"`pulumi {arguments[0]}` failed: {error}"
    if arguments[1:2] == ["ls"] and _CUT_OFF in error:
        text = f"The state of a stack cannot be read ({error}). To see which, run `gemma status`."
    raise PulumiFailedError(text, answer.stdout + answer.stderr)


@contextmanager
def noted_up(stack: str) -> Generator[None]:
    """Note for the other commands of this folder that this process deploys a stack."""
    memory = memory_of(home_folder())
    with suppress(OSError):
        memory.write(_RUNNING.format(stack), f"{os.getpid()} {datetime.now(UTC).isoformat()}")
    try:
        yield
    finally:
        memory.remove(_RUNNING.format(stack))


def running_up(stack: str) -> str:
    """Return that another process of this folder deploys a stack that has no server yet; empty if none does."""
    pid, _, since = (memory_of(home_folder()).read(_RUNNING.format(stack)) or "0").partition(" ")
    if not is_alive(int(pid), since) or int(pid) == os.getpid():
        return ""
    return f"Stack {stack} has no server yet: `gemma up {stack}` runs (process {pid}). `gemma status {stack}` shows its start soon."


def no_such_stack(stack: str) -> str:
    """Return the error for a stack that the engine does not know, with the probable name."""
    if sentence := running_up(stack):
        return sentence
    with_settings = stacks_in(project_folder())
    if stack in with_settings:
        return f"Stack {stack} does not exist in this backend. Run `gemma up {stack}` to deploy it."
    listed = did_you_mean(stack, with_settings) or f" Stacks: {', '.join(with_settings) or 'none'}."
    return f"Stack {stack} does not exist.{listed} Pass an existing stack."


def error_of(answer: "subprocess.CompletedProcess[str]") -> str:
    """Return the error of a failed command, like `first_error`."""
    return first_error(answer.stderr or answer.stdout, answer.returncode)


def first_error(text: str, code: int, stack: str = "") -> str:
    """Return the engine's first reason as one line, without secrets, colors and `error:`, or its exit if it reported none."""
    errors = _errors(text)
    return (reasons(errors, stack) or errors or (_lines(text) if code >= 0 else []) or [f"it {ending(code)}"])[0]


def reasons(errors: Sequence[str], stack: str = "") -> Sequence[str]:
    """Return the errors but "update failed" and similar."""
    return [own_words(error, stack) for error in errors if not _NO_REASON.fullmatch(error)]


def own_words(text: str, stack: str = "") -> str:
    """Return a text of the provider `gcp-tpu`, which names its inputs and Pulumi's commands, with the settings' keys and `gemma`."""
    text = _INPUT.sub(r"`tpu.\1`", text).replace("`ready.timeoutS`", "`tpu.readyTimeout`")
    return _COMMAND.sub(lambda found: f"`gemma {_VERBS[found[1]]} {stack}".rstrip(), text)


def _errors(text: str) -> Sequence[str]:
    lines = _lines(text)
    found = (
        _whole(line.removeprefix("error:").strip(), lines[at + 1 :])
        for at, line in enumerate(lines)
        if line.startswith("error:")
    )
    return [_shortened(error) for error in found if error]


def _whole(error: str, following: Sequence[str]) -> str:
    """Return the parts that follow `2 errors occurred:`, or the error itself."""
    parts = [part[1] for part in takewhile(bool, map(_PART.fullmatch, following)) if part]
    return ": ".join(parts) if parts and _COUNT.fullmatch(error) else error


def _shortened(error: str) -> str:
    """Return a long error up to its last sentence or word that fits, so no hint ends in its middle."""
    if len(error) <= _MOST_CHARACTERS:
        return error
    start = error[:_MOST_CHARACTERS]
    sentences, end, _ = start.rpartition(". ")
    return f"{sentences}." if end else f"{start.rpartition(' ')[0]} ..."


def _lines(text: str) -> Sequence[str]:
    plain = masked(re.sub(r"\x1b\[[0-9;]*m", "", text))
    return [line.strip() for line in plain.splitlines() if line.strip()]


def ending(code: int) -> str:
    """Return how a process exited, by its exit code: -N for the signal N."""
    if code >= 0:
        return f"exited with code {code}"
    why = ", for example because the machine ran out of memory" if -code == signal.SIGKILL else ""
    return f"was killed by {signal.Signals(-code).name}{why}"
