"""Protection of the machine's token. The agent answers a container's metadata requests, without credentials.

libtpu and vLLM read the slice's shape from the metadata server, so access cannot be blocked completely.
"""

import re
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

from gemma_serving.contracts.serving_document import ServingDocument
from gemma_serving.vm_agent.base import environment_variable, log
from gemma_serving.vm_agent.bounded import BoundedServer, QuietHandler
from gemma_serving.vm_agent.cloud import CONNECTION_ERRORS, DIRECT, MetadataClient
from gemma_serving.vm_agent.containers import run_command

CGROUP_FOLDER_VARIABLE = "GEMMA_SERVING_CGROUPS"
CGROUP_FOLDER = "/sys/fs/cgroup"
SLICE = "gemmaserving.slice"
"""Control group of confined containers. A hyphen in a slice name places it below another slice."""
METADATA_ADDRESS = "169.254.169.254"
GUARD_PORT = 8169
GUARD_TIMEOUT_S = 90.0
BAD_GATEWAY, FORBIDDEN = 502, 403
READABLE = re.compile(
    r"/computeMetadata/v1/project/(?:project-id|numeric-project-id)"
    r"|/computeMetadata/v1/instance/(?:attributes|network-interfaces)(?:/[\w-][\w.-]*)*/?"
    r"|/computeMetadata/v1/instance/(?:cpu-platform|hostname|id|image|machine-type|maintenance-event|name|preempted|tags|zone)"
)
"""Paths without credentials. Parent folders are excluded because a recursive listing contains the account."""
PROBED = ("/", "/computeMetadata/v1", "/computeMetadata/v1/")
"""Paths that clients read to detect Google's machines. Allowed without a query, which could list everything below."""
FLAVOR = "Metadata-Flavor"
PASSED = (FLAVOR, "ETag", "Content-Type")


def reads_google(document: ServingDocument) -> bool:
    """Return whether the server reads from Cloud Storage with the machine's token."""
    words = [*document.command, *document.arguments, *document.environment.values()]
    return any("gs://" in word for word in words)


def guard_rule(command: str, port: int) -> "list[str]":
    """Return the iptables command that adds, checks or deletes the rule."""
    match = ["-p", "tcp", "-d", METADATA_ADDRESS, "--dport", "80", "-m", "cgroup", "--path", SLICE]
    return ["iptables", "-w", "-t", "nat", command, "OUTPUT", *match, "-j", "REDIRECT", "--to-ports", str(port)]


@dataclass
class MetadataGuard:
    """Rule that redirects a confined container's metadata requests, and the server that handles them."""

    metadata: MetadataClient
    host: str = field(default_factory=lambda: environment_variable("GEMMA_SERVING_LOOPBACK", "127.0.0.1"))
    port: int = GUARD_PORT
    _server: "BoundedServer | None" = None

    def options(self, document: ServingDocument) -> "tuple[tuple[str, ...], str]":
        """Return docker's options for a guarded server, or the reason that it cannot be guarded."""
        return ((), "the server reads from Cloud Storage itself") if reads_google(document) else self.fetch_options()

    def fetch_options(self) -> "tuple[tuple[str, ...], str]":
        """Return the same for a container that reads nothing from Google."""
        problem = self._arm()
        if problem:
            log(f"The next container can read the TPU VM's token, because the agent cannot guard it: {problem}.")
        return ((), problem) if problem else ((f"--cgroup-parent={SLICE}",), "")

    def keep(self) -> None:
        """Resume serving a container that an earlier agent started."""
        if not self._arm_server():
            status, _ = run_command(guard_rule("-C", self.port))
            if status:
                run_command(guard_rule("-A", self.port))

    def _arm(self) -> str:
        """Set the rule again. Return the error, or an empty string if the next container is guarded."""
        folder = Path(environment_variable(CGROUP_FOLDER_VARIABLE, CGROUP_FOLDER))
        if not (folder / "cgroup.controllers").exists():
            return f"{folder} has no version 2 control groups"
        try:
            # The rule stores the group and not its name, so a recreated group must be set again.
            (folder / SLICE).mkdir(exist_ok=True)
        except OSError as error:
            return f"cannot create the control group ({error})"
        problem = self._arm_server()
        if problem:
            return problem
        is_set = run_command(guard_rule("-C", self.port))[0] == 0
        status, output = run_command(guard_rule("-A", self.port))
        if is_set and not status:
            run_command(guard_rule("-D", self.port))  # the older one, so a running server is guarded without a gap
        return f"iptables rejected the rule: {output[-200:]}" if status else ""

    def _arm_server(self) -> str:
        if self._server is not None:
            return ""
        try:
            self._server = BoundedServer((self.host, self.port), guard_handler(self.metadata))
        except OSError as error:
            return f"cannot use port {self.port} ({error})"
        return ""

    def close(self) -> None:
        """Stop responding."""
        if self._server is not None:
            self._server.close()
            self._server = None


def guard_handler(metadata: MetadataClient) -> "type[QuietHandler]":
    """Return the handler that forwards requests for paths without credentials."""

    class GuardHandler(QuietHandler):
        def do_GET(self) -> None:  # noqa: N802 - the base class's name
            if self.path not in PROBED and not READABLE.fullmatch(self.path.partition("?")[0]):
                self.answer(FORBIDDEN, b"The server has no access to this part of the metadata.\n")
                return
            names = [FLAVOR] if self.headers.get(FLAVOR) else []
            asked = urllib.request.Request(
                f"http://{metadata.host}{self.path}", headers={name: self.headers[name] for name in names}
            )
            try:
                with DIRECT.open(asked, timeout=GUARD_TIMEOUT_S) as response:
                    kept = [(name, response.headers[name]) for name in PASSED if response.headers[name]]
                    self.answer(response.status, response.read(), kept)
            except urllib.error.HTTPError as error:
                with error:
                    self.answer(error.code, error.read())
            except CONNECTION_ERRORS as error:
                self.answer(BAD_GATEWAY, f"{error}\n".encode())

    return GuardHandler
