"""Docker commands: pull the image, start and stop the server's container."""

import json
import os
import re
import subprocess
import tempfile
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from gemma_serving.contracts.guest_attributes import (
    DOCKER_HINT,
    WAITING_FOR_DOCKER,
    WAITING_FOR_REGISTRY,
)
from gemma_serving.contracts.path_guard import PYTHON_PATH, is_guarded, python_path
from gemma_serving.contracts.server_errors import PASSING
from gemma_serving.contracts.serving_document import ServingDocument, secrets_hash
from gemma_serving.vm_agent.base import (
    CONTAINER,
    DRAIN_LABEL,
    FORM_LABEL,
    HASH_LABEL,
    HUB_CACHE,
    HUB_CACHE_VARIABLE,
    RESTART_LABEL,
    SECRETS_LABEL,
    STATE_FOLDER,
    STATE_FOLDER_VARIABLE,
    TMPFS,
    ServingError,
    SupersededError,
    environment_variable,
    hub_cache,
    log,
)
from gemma_serving.vm_agent.clock import CLOCK, AgentClock
from gemma_serving.vm_agent.cloud import MetadataClient
from gemma_serving.vm_agent.compile_cache import program_volumes
from gemma_serving.vm_agent.confinement import LOG_LINES, Container
from gemma_serving.vm_agent.guard_file import write_guard
from gemma_serving.vm_agent.mounted import names_in, opened_folder, remove_tree

STOP_GRACE_S = 30
PULL_LIMIT_S = 3600.0
"""Time limit of a pull. It is then restarted, because docker or the registry hangs."""
LOG_OPTIONS = ("--log-driver=json-file", "--log-opt=max-size=100m", "--log-opt=max-file=3")
"""Log limits of a container. Docker otherwise keeps all its log lines on the boot disk."""
SHUTDOWN_FLAG = "--shutdown-timeout"
"""vLLM's flag since 0.18: seconds that running requests have to finish after SIGTERM (vllm-project/vllm#36666)."""
GUARD_FOLDER = "/opt/gemma-serving"
LATE_STATUS = 124
"""Exit status of a command that was killed after its timeout, the same as for `timeout`."""
DENIED = re.compile(r"\bdenied\b|\b403\b|forbidden", re.IGNORECASE)
LIMITED = re.compile(r"\btoomanyrequests\b|\b429\b|\b502\b", re.IGNORECASE)
"""Docker's messages for a registry, or its upstream, that is over a limit."""
UPSTREAM_ADVICE = (
    " Docker Hub rejected the pull, or Artifact Registry's. If the limit for pulls without an account is exhausted, "
    "set gemma-serving:dockerHub."
)
PULL_PROGRESS = re.compile(
    r"\S+: (?:Pulling from|Pulling fs layer|Waiting|Downloading|Verifying Checksum|Download complete|Extracting|Pull complete"
    r"|Already exists|Retrying in)\b.*"
)
"""Docker's lines of a pull that are no error. The long names in them would displace the advice."""
DISK_FULL = "no space left on device"
DISK_ADVICE = " Set tpu.bootDiskSizeGb; this replaces the capacity."
MISSING_STATUS = 127
DOCKER_LIMIT_S = 30.0
"""Time after which a docker that accepted a connection counts as one that does not respond."""
# Other programs install packages at boot too: wait for their lock.
INSTALL = (
    ("apt-get", "-q", "-oDPkg::Lock::Timeout=300", "update"),
    ("apt-get", "-q", "-oDPkg::Lock::Timeout=300", "-y", "install", "docker.io"),
)
INSTALL_LIMIT_S = 900


def run_command(
    argv: Sequence[str],
    *,
    stdin: str = "",
    timeout_s: float = 120,
    env: Mapping[str, str] | None = None,
    merges: bool = False,
) -> tuple[int, str]:
    """Run a command until it exits. Return its exit status and its output; of one that failed, its error messages.

    `merges`: return both, as a container's log needs.
    """
    try:
        done = subprocess.run(
            argv,
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if merges else subprocess.PIPE,
            text=True,
            errors="replace",
            timeout=timeout_s,
            env={**os.environ, **(env or {})},
            check=False,
        )
    except subprocess.TimeoutExpired:
        return LATE_STATUS, f"no result within {timeout_s:.0f} s"
    except OSError as error:
        return MISSING_STATUS, str(error)
    errors = (done.stderr or "").strip() if done.returncode else ""
    return done.returncode, errors or done.stdout.strip()


def docker_problem() -> "ServingError | None":
    """Return the error of a docker that does not respond, or None if it does."""
    status, output = run_command(["docker", "ps", "--quiet"], timeout_s=DOCKER_LIMIT_S)
    return unresponsive_docker(status, output) if status else None


def unresponsive_docker(status: int, output: str) -> ServingError:
    """Return the error of a docker that does not respond. It is no fault of a document."""
    said = docker_message(output) or f"exit code {status}"
    return ServingError(f"docker does not respond: {said}", waits_for=WAITING_FOR_DOCKER)


def docker_message(output: str) -> str:
    """Return docker's error on one line, without the hint that it ends with."""
    lines = (line.strip() for line in output.splitlines())
    return " ".join(line for line in lines if line and not DOCKER_HINT.fullmatch(line))[-600:]


def ensure_docker() -> None:
    """Install docker from the distribution's package if the machine has none.

    Raises ServingError with the end of apt-get's output if it cannot be installed.
    """
    if run_command(["docker", "--version"])[0] != MISSING_STATUS:
        return
    log("Installing the package docker.io because this boot image has no docker.")
    for argv in INSTALL:
        status, output = run_command(argv, timeout_s=INSTALL_LIMIT_S, env={"DEBIAN_FRONTEND": "noninteractive"})
        if status != 0:
            raise ServingError(
                f"docker is not installed, and `{' '.join(argv)}` failed: {output[-300:]}. "
                "Add Cloud NAT to its subnetwork, or set tpu.runtimeVersion to an image with docker."
            )


@contextmanager
def registry_login(metadata: MetadataClient, image: str) -> Generator[dict[str, str]]:
    """Yield the environment in which `docker pull` can read the image. Its credentials are only in memory."""
    host = image.partition("/")[0]
    if not in_artifact_registry(image):
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix=".docker-", dir=TMPFS) as folder:
        env = {"DOCKER_CONFIG": folder}
        argv = ["docker", "login", "--username=oauth2accesstoken", "--password-stdin", f"https://{host}"]
        status, output = run_command(argv, stdin=metadata.token(), env=env)
        if status:
            raise refused_by_registry(f"docker login at {host} failed: {output[-300:]}", output, image)
        yield env


def pull(
    metadata: MetadataClient,
    image: str,
    *,
    progress: Callable[[str], None],
    cancelled: Callable[[], bool],
    keep_local: bool = False,
    limit_s: float = PULL_LIMIT_S,
    clock: AgentClock = CLOCK,
) -> None:
    """Pull the image, unless it is on the machine already and has a digest or `keep_local` is set.

    Raises ServingError with docker's message, and SupersededError if it was cancelled.
    """
    inspect = ["docker", "inspect", "--type=image", "--format={{.Id}}", image]
    if (keep_local or "@sha256:" in image) and run_command(inspect)[0] == 0:
        return
    layers = {"Pulling fs layer": 0, "Pull complete": 0}

    def tell(line: str) -> None:
        for words in layers:
            layers[words] += words in line
        if layers["Pulling fs layer"]:
            progress(f"{layers['Pull complete']} of {layers['Pulling fs layer']} layers")

    argv = ["docker", "pull", image]
    with registry_login(metadata, image) as env:
        status, lines = run_followed(argv, env=env, tell=tell, cancelled=cancelled, limit_s=limit_s, clock=clock)
    if status:
        text = " ".join(line for line in lines if not PULL_PROGRESS.fullmatch(line))
        raise refused_by_registry(pull_problem(image, text), text, image)


def refused_by_registry(message: str, said: str, image: str) -> ServingError:
    """Return the error of a login or a pull. `said` is docker's output.

    Artifact Registry denies an account until its grant takes effect. Every other registry's denial is final.
    """
    denied = bool(DENIED.search(said))
    is_passing = not denied and PASSING.search(said) is not None
    repeats = DISK_FULL in said or (denied and not in_artifact_registry(image))
    return ServingError(message, denied=denied, retry=not repeats, waits_for=WAITING_FOR_REGISTRY if is_passing else "")


def in_artifact_registry(image: str) -> bool:
    """Return whether an image is in Artifact Registry, which the machine's account can access."""
    return image.partition("/")[0].endswith("-docker.pkg.dev")


def pull_problem(image: str, said: str) -> str:
    """Return the message of a failed pull, with the setting to change if the disk is full or Docker Hub may have rejected it."""
    limited = LIMITED.search(said) and (in_artifact_registry(image) or image.startswith("docker.io/"))
    advice = f".{DISK_ADVICE}" if DISK_FULL in said else UPSTREAM_ADVICE if limited else ""
    return f"Cannot pull image {image}: {said[-600:]}{advice}"


def run_followed(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    tell: Callable[[str], None],
    cancelled: Callable[[], bool],
    limit_s: float = float("inf"),
    clock: AgentClock = CLOCK,
) -> tuple[int, Sequence[str]]:
    """Run a command, report its lines, and return its exit status and last lines: 124 after `limit_s`.

    Raises SupersededError if it was cancelled. The process is killed.
    """
    process = subprocess.Popen(
        argv,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, **env},
    )
    lines: deque[str] = deque(maxlen=10)
    is_over = False

    def read() -> None:
        for line in process.stdout or ():
            lines.append(line.strip())
            if not is_over:
                tell(line.strip())

    reader, deadline = clock.start(read), clock.now() + limit_s
    try:
        while process.poll() is None:
            is_cancelled = cancelled()
            is_late = clock.now() > deadline
            if is_cancelled or is_late:
                process.kill()
                process.wait()
            if is_cancelled:
                raise SupersededError
            if is_late:
                return LATE_STATUS, [*lines, f"no result within {limit_s:.0f} s"]
            clock.sleep(0.1)
    finally:
        reader.join(5)
        is_over = True  # a line reported later replaces the phase that follows
    return process.returncode, lines


@dataclass(frozen=True)
class ContainerState:
    """State of the server's container, and the labels that it was started with."""

    running: bool
    exit_code: int
    text_hash: str
    """Hash of the document that it serves."""
    drain_s: float = 0.0
    """Time that running requests get after SIGTERM, or 0 if it aborts them."""
    form: str = ""
    """Form of the container, as the guest attribute `container` has it (contracts.guest_attributes)."""
    secrets: str = ""
    """`secrets_hash` of its secret versions."""
    restart: str = ""
    """The requested restart that its start fulfilled."""


def inspected(name: str, template: str) -> str:
    """Return what docker has about a container, or an empty string without one. Raises ServingError."""
    status, output = run_command(["docker", "inspect", "--type=container", f"--format={template}", name])
    if status and "no such" not in output.lower():
        raise unresponsive_docker(status, output)
    return "" if status else output


def container_state() -> ContainerState | None:
    """Return the state of the server's container, or None without one. Raises ServingError."""
    wanted = (HASH_LABEL, DRAIN_LABEL, FORM_LABEL, SECRETS_LABEL, RESTART_LABEL)
    labels = " ".join('{{index .Config.Labels "' + label + '"}}' for label in wanted)
    running, _, rest = inspected(CONTAINER, "{{.State.Running}} {{.State.ExitCode}} " + labels).partition(" ")
    if not running:
        return None
    exit_code, text_hash, drain_s, form, secrets, restart = [*rest.split(" "), "", "", "", "", ""][:6]
    return ContainerState(running == "true", int(exit_code), text_hash, float(drain_s or 0), form, secrets, restart)


def remove_container() -> None:
    """Stop the server's container gracefully and remove it, if it exists."""
    state = container_state()
    if state is None:
        return
    grace_s = STOP_GRACE_S + round(state.drain_s)
    run_command(["docker", "stop", "-t", str(grace_s), CONTAINER], timeout_s=grace_s + 60)
    run_command(["docker", "rm", "-f", CONTAINER])


def remove_image(image: str) -> bool:
    """Delete an image. Return False if a container still uses it or docker does not respond."""
    status, output = run_command(["docker", "rmi", image])
    return status == 0 or "no such image" in output.lower()


def remove_other_models(*documents: ServingDocument, cache: "Path | None" = None) -> None:
    """Delete cached models that no document names, to free disk space for the others."""
    texts = [text for one in documents for text in (*one.command, *one.arguments, *one.environment.values())]
    with suppress(OSError), opened_folder((cache or hub_cache()) / "hub") as hub:
        for name in names_in(hub):
            model = name.removeprefix("models--").replace("--", "/", 1)
            if name.startswith("models--") and not any(model in text for text in texts):
                with suppress(OSError):
                    remove_tree(hub, name)


def container_log() -> "tuple[str, ...]":
    """Return the last log lines of the server's container, or none if docker does not return them."""
    status, output = run_command(["docker", "logs", f"--tail={LOG_LINES}", CONTAINER], merges=True)
    return () if status else tuple(output.splitlines())


def start_container(
    document: ServingDocument,
    text_hash: str,
    secrets: Mapping[str, str],
    form: Container,
    *,
    drain_s: float = 0.0,
    restart: str = "",
) -> float:
    """Start the server, with `--shutdown-timeout` if `drain_s` is set. Return the flag's seconds.

    `restart` is the requested restart that this start fulfills, or empty. Raises ServingError with docker's message.
    """
    drain = [f"{SHUTDOWN_FLAG}={round(drain_s)}"] if drain_s and not _names_shutdown(document) else []
    argv = ["docker", "run", "-d", f"--name={CONTAINER}", *LOG_OPTIONS, f"--label={HASH_LABEL}={text_hash}"]
    argv += [f"--label={DRAIN_LABEL}={round(drain_s)}"] if drain else []
    argv += [f"--label={RESTART_LABEL}={restart}"] if restart else []
    argv.append(f"--label={SECRETS_LABEL}={secrets_hash(document.secret_environment)}")
    argv += ["--net=host", f"--label={FORM_LABEL}={form.label}", *form.options]
    argv += [f"--volume={copy.path}:{copy.path}:ro" for copy in document.copies]
    argv += program_volumes(document)
    argv += hub_cache_options(document)
    argv += [f"--env={name}={value}" for name, value in document.environment.items()]
    argv += guard_options(document)
    if document.command:
        argv.append(f"--entrypoint={document.command[0]}")
    with secrets_option(secrets) as option:
        argv += [option, document.image, *document.command[1:], *document.arguments, *drain]
        status, output = run_command(argv, timeout_s=300)
    if status:
        is_full = DISK_FULL in output
        advice = f".{DISK_ADVICE}" if is_full else ""
        raise ServingError(f"docker run failed: {docker_message(output)}{advice}", retry=not is_full)
    return float(round(drain_s)) if drain else 0.0


def _names_shutdown(document: ServingDocument) -> bool:
    return any(word.partition("=")[0].replace("_", "-") == SHUTDOWN_FLAG for word in document.arguments)


def hub_cache_options(document: ServingDocument) -> list[str]:
    """Return the options that mount the machine's hub cache, unless the document names another one."""
    if HUB_CACHE_VARIABLE in document.environment:
        return []
    return [f"--volume={hub_cache()}:{HUB_CACHE}", f"--env={HUB_CACHE_VARIABLE}={HUB_CACHE}"]


def guard_options(document: ServingDocument) -> list[str]:
    """Write the path guard and return the options that mount it and add it to PYTHONPATH, or none for a document without a guard.

    Raises ServingError if the file cannot be written, or docker does not return the image's PYTHONPATH.
    """
    if not is_guarded(document.arguments):
        return []
    try:
        folder = write_guard(Path(environment_variable(STATE_FOLDER_VARIABLE, STATE_FOLDER)) / "path-guard")
    except OSError as error:
        raise ServingError(f"Cannot write the path guard of the API key: {error}") from error
    present = document.environment.get(PYTHON_PATH) or _image_variable(document.image, PYTHON_PATH)
    return [f"--volume={folder}:{GUARD_FOLDER}:ro", f"--env={PYTHON_PATH}={python_path(GUARD_FOLDER, present)}"]


def _image_variable(image: str, name: str) -> str:
    """Return the value of a variable set by the image, or an empty string. Raises ServingError."""
    status, output = run_command(["docker", "inspect", "--type=image", "--format={{json .Config.Env}}", image])
    try:
        variables: object = json.loads(output)
    except ValueError:
        raise ServingError(
            f"docker cannot inspect image {image}: {docker_message(output)} (exit code {status})"
        ) from None
    listed = cast("list[str]", variables) if isinstance(variables, list) else []  # null for an image without any
    found = (one.partition("=") for one in listed)
    return next((value for variable, _, value in found if variable == name), "")


@contextmanager
def secrets_option(secrets: Mapping[str, str]) -> Generator[str]:
    """Yield docker's option for a file of secrets in memory, which only its owner can read."""
    descriptor, env_file = tempfile.mkstemp(prefix=".env-", dir=TMPFS)  # mode 0600
    try:
        with os.fdopen(descriptor, "w") as file:
            file.writelines(f"{name}={value}\n" for name, value in secrets.items())
        yield f"--env-file={env_file}"
    finally:
        Path(env_file).unlink(missing_ok=True)
