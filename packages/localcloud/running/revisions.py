"""Cloud Run's instances: one simulated vLLM server per revision, with its startup probe on the accelerated clock.

One process represents all instances of a revision. It uses these parts of the template: the container with the port, its command, arguments and
variables, secrets, Cloud Storage and memory volumes, the memory limit, the GPU, the startup probe, concurrency and the request timeout.
"""

import asyncio
import contextlib
import json
import random
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final, TypeAlias, cast

from localcloud.json_values import as_list, as_object
from localcloud.running import interpreter
from localcloud.running.fronts import DEFAULT_LIMITS, Limits
from localcloud.running.probes import Probe, passes, read_probe, watch
from localcloud.running.processes import PlannedStart, Server, server_environment
from localcloud.running.starters import GoogleAccess, Starter, Volumes, is_starter, server_command
from localcloud.services.run_limits import memory_gib
from localcloud.vllm.arguments import ArgumentError, split_command
from localcloud.world import run_messages
from localcloud.world.run_messages import LogLine, Stream, container_port, serving_container
from localcloud.world.runtime import NOWHERE, RevisionFailedError, RevisionSpec
from localcloud.world.timeline import Clock

ReadSecret: TypeAlias = Callable[[str, str], str]
"""Returns the payload of `projects/P/secrets/S/versions/V` for a service account's email. Raises RevisionFailedError if access is denied."""
ListObjects: TypeAlias = Callable[[str], Mapping[str, int] | None]
"""Returns names and sizes in bytes of a bucket's objects, or None if the bucket does not exist."""
WriteLog: TypeAlias = Callable[[str, LogLine], None]
"""Writes a line to Cloud Logging, for a revision's full name."""
May: TypeAlias = Callable[[str, str, str], bool]
"""Returns whether a service account's email has a permission on a bucket: bucket, account, permission."""
VersionOf: TypeAlias = Callable[[str], str]
"""Returns the version of vLLM in an image. Empty if unknown."""
DriverOf: TypeAlias = Callable[[str], int | None]
"""Returns the branch of the NVIDIA driver of a GPU type, or None for a driver that runs everything."""
UserOf: TypeAlias = Callable[[str], int]
"""Returns the uid of an image's container. vLLM's image runs as root."""

_DEFAULT_MEMORY_MIB: Final = 512
_IMAGE_COMMAND: Final = ("vllm", "serve")
"""The entry point of vLLM's image, for a container without a command."""
_RESTART_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 60.0
_STEADY_S: Final = 60.0
_UP_LIMIT_S: Final = 60.0
_CONNECTS_AFTER_S: Final = 60.0
"""Connections of an instance with Direct VPC work after a minute or more (configuring/vpc-direct-vpc, "Limitations", 2026-11). Its mount, and so its
container, is assumed to wait for them."""
_MB_PER_S_WITHOUT_DIRECT_VPC: Final = 75.0
"""An instance with a GPU reads from the network at 600 Mbit/s unless Direct VPC routes all its traffic: comment of a public Terraform program that
loads models on this platform (2026). No figure was found on Google's pages."""


@dataclass(slots=True, kw_only=True)
class _Instance:
    """A revision's running server."""

    spec: RevisionSpec
    words: list[str]
    command: list[str]
    """Command line of the process, unless `starter` has another."""
    environment: dict[str, str]
    secrets: list[str]
    log: Path
    port: int
    limits: Limits
    server: Server | None = None
    ready: bool = True
    """Result of the readiness probe; True without one."""
    watcher: asyncio.Task[None] | None = None
    restarts: asyncio.Task[None] | None = None
    folder: Path = field(default_factory=Path)
    volumes: Volumes
    starter: Starter | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


class SimulatedRevisions:
    """Implementation of `localcloud.world.runtime.RevisionRuntime`."""

    def __init__(
        self,
        *,
        clock: Clock,
        state: Path,
        read_secret: ReadSecret,
        list_objects: ListObjects,
        write_log: WriteLog,
        user_of: UserOf = lambda _: 0,
        may: May = lambda _bucket, _account, _permission: True,
        version_of: VersionOf = lambda _: "",
        driver_of: DriverOf = lambda _: None,
        faults: Callable[[], str] = str,
        google: GoogleAccess | None = None,
    ) -> None:
        """Keep the logs in `state`/logs: one file per revision, without the values of its secrets. Cloud Logging receives them unchanged."""
        self._clock = clock
        self._state = state
        self._read_secret = read_secret
        self._list_objects = list_objects
        self._write_log = write_log
        self._user_of = user_of
        self._may = may
        self._version_of = version_of
        self._driver_of = driver_of
        self._faults = faults
        self._google = google
        self._instances: dict[str, _Instance] = {}

    def limits(self, instance_url: str) -> Limits:
        """Return the limits of an instance; the default limits for an unknown URL."""
        found = (item for item in self._instances.values() if item.url == instance_url)
        return next((item.limits for item in found), DEFAULT_LIMITS)

    def ready(self, instance_url: str) -> bool:
        """Return whether an instance can receive new requests, according to its readiness probe."""
        found = (item for item in self._instances.values() if item.url == instance_url)
        return next((item.ready for item in found), True)

    def log_file(self, name: str) -> Path:
        """Return the location of a revision's log."""
        folder = self._state / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{_short(name)}.log"

    async def start(self, revision: RevisionSpec) -> str:
        """Start an instance and run its startup probe; see `RevisionRuntime`."""
        await self.stop(revision.name)
        template = _TemplateReader(revision.template)
        instance = self._prepare(revision, template)
        self._instances[revision.name] = instance
        try:
            await self._bring_up(instance, template)
        except BaseException:
            await self.stop(revision.name)
            raise
        instance.restarts = asyncio.create_task(self._keep(instance))
        if template.readiness_probe:
            instance.watcher = asyncio.create_task(self._watch(instance, template))
        return instance.url

    async def stop(self, name: str, *, url: str | None = None) -> None:
        """Stop a revision's instance; with `url`, only if it is still that one."""
        instance = self._instances.get(name)
        if instance is None or url not in {None, instance.url}:
            return
        del self._instances[name]
        for task in (instance.restarts, instance.watcher):
            if task is not None:
                task.cancel()
        if instance.server is not None:
            await instance.server.stop()
        if instance.starter is not None:
            await instance.starter.stop()

    def _prepare(self, revision: RevisionSpec, template: "_TemplateReader") -> _Instance:
        secrets: list[str] = []
        environment = self._environment(revision, template, secrets)
        port = _free_port()
        folder = self._state / "revisions" / _short(revision.name)
        folder.mkdir(parents=True, exist_ok=True)
        mounts = folder / "mounts.json"
        mounts.write_text(json.dumps(self._mounts(revision, template)), encoding="utf-8")
        buckets = folder / "buckets.json"
        buckets.write_text(json.dumps(self._named_buckets(revision, template)), encoding="utf-8")
        volumes = template.memory_volumes(folder / "volumes")
        starter = self._starter(revision, template, folder / "bin")
        simulator = {
            "VLLM_SIM_ACCELERATOR": template.accelerator,
            "VLLM_SIM_CLOCK_SPEED": repr(self._clock.speed),
            "VLLM_SIM_BIND_HOST": "127.0.0.1",
            "VLLM_SIM_BIND_PORT": str(port),
            "VLLM_SIM_MEMORY_LIMIT_MIB": str(template.memory_mib),
            "VLLM_SIM_MOUNTS_FILE": str(mounts),
            "VLLM_SIM_BUCKETS_FILE": str(buckets),
            "VLLM_SIM_VERSION": self._version_of(template.image),
            "VLLM_SIM_CUDA_DRIVER": str(self._driver_of(template.accelerator) or ""),
            "VLLM_SIM_MEMORY_VOLUMES": json.dumps(volumes.by_folder()),
            **({} if template.all_traffic else {"VLLM_SIM_NETWORK_MB_PER_S": repr(_MB_PER_S_WITHOUT_DIRECT_VPC)}),
            # A container's file system does not outlive it, so only its in-memory volumes are backed by real folders.
            "VLLM_SIM_PATHS": json.dumps(
                {"/": str(folder / "nothing"), **{name: name for name in volumes.by_folder()}}
            ),
            "VLLM_SIM_LIFELINE": "stdin",
            "VLLM_SIM_HUB": self._hub(revision),
            **interpreter.planted(self._faults()),
        }
        return _Instance(
            spec=revision,
            words=template.words,
            command=(
                interpreter.command("localcloud.running.other_programs")
                if template.is_other_program
                else server_command(template.words)
            ),
            environment=server_environment(environment, simulator),
            secrets=secrets,
            log=self.log_file(revision.name),
            port=port,
            limits=DEFAULT_LIMITS,
            folder=folder,
            volumes=volumes,
            starter=starter,
        )

    def _hub(self, revision: RevisionSpec) -> str:
        """Return the hub's address for the server. Empty: every model can be downloaded."""
        if not revision.egress.internet:
            return NOWHERE
        return f"{self._google.base_url}/hub" if self._google is not None and self._google.base_url else ""

    def _starter(self, revision: RevisionSpec, template: "_TemplateReader", folder: Path) -> Starter | None:
        """Return the runner of the container's command, or None for the server itself. Raises RevisionFailedError."""
        if not is_starter(template.words):
            return None
        if self._google is None:
            raise RevisionFailedError("The local cloud only runs this command if instances can reach Google.")
        return Starter(revision, template.service_account, self._google, folder)

    def _environment(self, revision: RevisionSpec, template: "_TemplateReader", secrets: list[str]) -> dict[str, str]:
        short = _short(revision.name)
        environment = {
            "PORT": str(template.port),
            "K_SERVICE": _short(revision.service),
            "K_REVISION": short,
            "K_CONFIGURATION": _short(revision.service),
        }
        for name, value, reference in template.variables():
            if reference is None:
                environment[name] = value
                continue
            payload = self._secret(revision, *reference)
            environment[name] = payload
            secrets.append(payload.strip())
        return environment

    def _secret(self, revision: RevisionSpec, secret: str, version: str) -> str:
        """Return the payload of a secret, by its id or full name, for the revision's account. Raises RevisionFailedError."""
        project = revision.name.split("/")[1] if revision.name.startswith("projects/") else ""
        full = secret if secret.startswith("projects/") else f"projects/{project}/secrets/{secret}"
        return self._read_secret(f"{full}/versions/{version}", _TemplateReader(revision.template).service_account)

    def _mounts(self, revision: RevisionSpec, template: "_TemplateReader") -> list[dict[str, Any]]:
        """List the Cloud Storage volumes and their objects. Raises RevisionFailedError for a bucket that does not exist."""
        out: list[dict[str, Any]] = []
        uid = self._user_of(template.image)
        for path, name, bucket, options in template.buckets():
            files = self._list_objects(bucket)
            if files is None:
                lines = run_messages.not_mounted(
                    name, run_messages.no_such_bucket(), revision.template, service=revision.service
                )
                raise self._not_started(revision, lines)
            only = options.get("only-dir", "").strip("/")
            if only:
                files = {key[len(only) + 1 :]: size for key, size in files.items() if key.startswith(only + "/")}
            # The mount is owned by the uid in its options, by default root. Root can read every mount. gcsfuse mounts a bucket that the account
            # can list; each file is then "Permission denied" without storage.objects.get.
            readable = uid == 0 or options.get("uid", "0") == str(uid)
            readable = readable and self._may(bucket, template.service_account, "storage.objects.get")
            out.append({"path": path, "files": dict(files), "options": options, "readable": readable})
        return out

    def _named_buckets(self, revision: RevisionSpec, template: "_TemplateReader") -> dict[str, dict[str, Any]]:
        """List the buckets that the command line names as `gs://`, or return Google's error message if they cannot be listed."""
        out: dict[str, dict[str, Any]] = {}
        for name in sorted(set(re.findall(r"gs://([a-z0-9][a-z0-9._-]+)", " ".join(template.words)))):
            files = self._list_objects(name)
            ask = f"GET https://storage.googleapis.com/storage/v1/b/{name}/o"
            if not revision.egress.google:
                problem = f"google.api_core.exceptions.RetryError: Timeout of 120.0s exceeded, last exception: {ask}: timed out"
            elif files is None:
                problem = f"google.api_core.exceptions.NotFound: 404 {ask}: The specified bucket does not exist."
            elif not self._may(name, template.service_account, "storage.objects.list"):
                problem = (
                    f"google.api_core.exceptions.Forbidden: 403 {ask}: {template.service_account} does not have storage.objects.list access "
                    "to the Google Cloud Storage bucket. Permission 'storage.objects.list' denied on resource (or it may not exist)."
                )
            else:
                problem = ""
            out[name] = {"files": {} if problem else dict(files or {}), "problem": problem}
        return out

    async def _bring_up(self, instance: _Instance, template: "_TemplateReader") -> None:
        """Start the server and run the probe. Raises RevisionFailedError."""
        probe = read_probe(template.startup_probe, template.port)
        if template.all_traffic:
            await self._clock.sleep(_CONNECTS_AFTER_S)
        if instance.starter is not None:
            await instance.starter.start()
            if not instance.spec.egress.google:
                await self._clock.sleep(probe.budget_s)
                raise self._probe_failed(instance, probe)
        server = instance.server = await self._server(instance)
        try:
            planned = await asyncio.wait_for(server.up(), _UP_LIMIT_S)
        except TimeoutError:
            raise RevisionFailedError(f"The simulated server did not start within {_UP_LIMIT_S:.0f} s.") from None
        if planned is None:
            raise await self._exited(instance, template)
        probing = asyncio.create_task(passes(probe, clock=self._clock, port=instance.port, planned=planned))
        ending = asyncio.create_task(server.ended())
        try:
            await asyncio.wait((probing, ending), return_when=asyncio.FIRST_COMPLETED)
            if probing.done() and probing.result():
                instance.limits = _limits(template, planned)
                return
            if ending.done():
                raise await self._exited(instance, template)
        finally:
            probing.cancel()
            ending.cancel()
        raise self._probe_failed(instance, probe)

    async def _watch(self, instance: _Instance, template: "_TemplateReader") -> None:
        """Send no new requests while the readiness probe fails. Like Cloud Run, do not terminate the instance."""
        probe = read_probe(template.readiness_probe, template.port)

        def report(ready: bool) -> None:
            instance.ready = ready

        await watch(probe, clock=self._clock, port=instance.port, report=report)

    async def _server(self, instance: _Instance) -> Server:
        name = instance.spec.name
        command, environment = instance.command, instance.environment
        if instance.starter is not None:
            instance.volumes.empty()
            command = instance.starter.command(instance.words, instance.volumes)
            environment = instance.starter.environment(environment, instance.volumes, port=instance.port)
        return await Server.start(
            command,
            environment=environment,
            log=instance.log,
            secrets=instance.secrets,
            printed=lambda stream, text: self._write_log(name, LogLine(stream=cast("Stream", stream), text=text)),
        )

    async def _exited(self, instance: _Instance, template: "_TemplateReader") -> RevisionFailedError:
        """Return the error of a container that exited before it was ready. Only the log contains the reason."""
        server, spec = instance.server, instance.spec
        assert server is not None  # noqa: S101 - only called after a start
        code = await server.ended()
        if server.killed_with_mib is not None:
            used_mib = server.killed_with_mib
            lines = run_messages.out_of_memory(template.memory_mib, used_mib, spec.template, service=spec.service)
        else:
            lines = run_messages.exited(code, spec.template, service=spec.service)
        return self._not_started(spec, lines)

    def _probe_failed(self, instance: _Instance, probe: Probe) -> RevisionFailedError:
        template, service = instance.spec.template, instance.spec.service
        return self._not_started(
            instance.spec, run_messages.probe_failed(probe.failure_threshold, template, service=service)
        )

    def _not_started(self, spec: RevisionSpec, lines: list[LogLine]) -> RevisionFailedError:
        """Log why a revision did not start, and return the error without the reason."""
        with self.log_file(spec.name).open("a", encoding="utf-8") as log:
            log.writelines(f"{line.text}\n" for line in lines)
        for line in lines:
            self._write_log(spec.name, line)
        return RevisionFailedError(run_messages.not_started(spec.template))

    async def _keep(self, instance: _Instance) -> None:
        """Restart the server on the same port whenever it exits, as Cloud Run replaces crashed instances."""
        loop = asyncio.get_running_loop()
        pause_s = _RESTART_PAUSE_S
        while instance.server is not None:
            started_at = loop.time()
            code = await instance.server.ended()
            message = f"Container called exit({code})."
            with instance.log.open("a", encoding="utf-8") as log:
                log.write(message + "\n")
            self._write_log(instance.spec.name, LogLine(stream="varlog/system", text=message, severity="WARNING"))
            # If the server keeps failing, double the pause between restarts.
            steady = loop.time() - started_at > _STEADY_S
            pause_s = _RESTART_PAUSE_S if steady else min(2 * pause_s, _LONGEST_PAUSE_S)
            await asyncio.sleep(pause_s)
            with contextlib.suppress(RevisionFailedError):  # without its secrets, no instance starts
                self._environment(instance.spec, _TemplateReader(instance.spec.template), [])
                instance.server = await self._server(instance)


def _limits(template: "_TemplateReader", planned: PlannedStart) -> Limits:
    """Return the limits of a revision. One process represents all its instances.

    Cloud Run allows a request to wait for 3.5 times the average start time of an instance, but at least 10 s (Cloud Run, "About container
    instance autoscaling").
    """
    return Limits(
        concurrent=template.concurrency * template.max_instances,
        queue_s=min(max(10.0, 3.5 * planned.start_s), template.timeout_s),
        timeout_s=template.timeout_s,
    )


def _short(name: str) -> str:
    """Return the last part of a resource name, safe as a file name."""
    return re.sub(r"[^\w.-]", "-", name.rsplit("/", 1)[-1])


def _free_port() -> int:
    """Return a port below the ports of outgoing connections (Linux: 32768 and up), which can take it before the server listens."""
    for port in random.sample(range(20_000, 32_000), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("All 100 ports tried between 20000 and 32000 are in use on 127.0.0.1.")


def memory_mib(text: str) -> int:
    """Convert a quantity (`32Gi`, `512Mi`, `1G`) to MiB. Raises RevisionFailedError."""
    amount_gib = memory_gib(text)
    if amount_gib is None:
        raise RevisionFailedError(f"The memory limit '{text}' is not a quantity such as 32Gi or 512Mi.")
    return int(amount_gib * 1024)


def is_other_program(image: str, command: Sequence[str], arguments: Sequence[str]) -> bool:
    """Return whether nothing here runs a container: its command is not vLLM's or a Python text, and its image is not vLLM's by name."""
    name = PurePosixPath(image.partition("@")[0]).name
    if "vllm" in name or is_starter([*command, *arguments]):
        return False
    try:
        split_command([*command, *arguments])
    except ArgumentError:
        return True
    return False


class _TemplateReader:
    """The parts of a RevisionTemplate that the simulation uses."""

    def __init__(self, template: Mapping[str, Any]) -> None:
        self._container = serving_container(template)
        self._volumes = [as_object(item) for item in as_list(template.get("volumes"))]
        limits = as_object(as_object(self._container.get("resources")).get("limits"))
        self.port = container_port(self._container)
        self.image = str(self._container.get("image", ""))
        self.memory_mib = memory_mib(str(limits["memory"])) if limits.get("memory") else _DEFAULT_MEMORY_MIB
        self.accelerator = str(as_object(template.get("nodeSelector")).get("accelerator") or "")
        self.service_account = str(template.get("serviceAccount") or "")
        self.concurrency = int(template.get("maxInstanceRequestConcurrency") or 80)
        self.max_instances = int(as_object(template.get("scaling")).get("maxInstanceCount") or 100)
        self.timeout_s = float(str(template.get("timeout") or "300s").removesuffix("s"))
        self.all_traffic = as_object(template.get("vpcAccess")).get("egress") == "ALL_TRAFFIC"
        self.startup_probe = as_object(self._container.get("startupProbe"))
        self.readiness_probe = as_object(self._container.get("readinessProbe"))

    @property
    def is_other_program(self) -> bool:
        """Return whether the local cloud has nothing that runs the container."""
        command = [str(word) for word in as_list(self._container.get("command"))]
        arguments = [str(word) for word in as_list(self._container.get("args"))]
        return is_other_program(self.image, command, arguments)

    @property
    def words(self) -> list[str]:
        """Return the container's command line."""
        command = as_list(self._container.get("command")) or list(_IMAGE_COMMAND)
        return [str(word) for word in (*command, *as_list(self._container.get("args")))]

    def variables(self) -> list[tuple[str, str, tuple[str, str] | None]]:
        """Return (name, value, (secret, version) or None) of each variable."""
        out: list[tuple[str, str, tuple[str, str] | None]] = []
        for item in map(as_object, as_list(self._container.get("env"))):
            reference = as_object(as_object(item.get("valueSource")).get("secretKeyRef"))
            pair = (str(reference["secret"]), str(reference.get("version") or "latest")) if reference else None
            out.append((str(item["name"]), str(item.get("value") or ""), pair))
        return out

    def memory_volumes(self, folder: Path) -> Volumes:
        """Return the mounted in-memory volumes, each with a real folder below `folder`."""
        sizes = {
            str(volume.get("name")): memory_mib(
                str(as_object(volume.get("emptyDir")).get("sizeLimit") or f"{self.memory_mib}Mi")
            )
            for volume in self._volumes
            if as_object(volume.get("emptyDir"))
        }
        mounts = map(as_object, as_list(self._container.get("volumeMounts")))
        found = {str(one["mountPath"]).rstrip("/"): str(one.get("name")) for one in mounts if one.get("name") in sizes}
        return Volumes(
            folders={path: folder / name for path, name in found.items()},
            sizes_mib={path: sizes[name] for path, name in found.items()},
        )

    def buckets(self) -> list[tuple[str, str, str, dict[str, str]]]:
        """Return (mount path, volume, bucket, options) of each mounted Cloud Storage volume. An option without a value is `true`."""
        out: list[tuple[str, str, str, dict[str, str]]] = []
        for mount in map(as_object, as_list(self._container.get("volumeMounts"))):
            for volume in self._volumes:
                gcs = as_object(volume.get("gcs"))
                if volume.get("name") != mount.get("name") or not gcs:
                    continue
                pairs = (str(option).partition("=") for option in as_list(gcs.get("mountOptions")))
                options = {name.strip(): value or ("" if equals else "true") for name, equals, value in pairs}
                out.append((str(mount["mountPath"]).rstrip("/"), str(volume["name"]), str(gcs["bucket"]), options))
        return out
