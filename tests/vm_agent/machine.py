"""A machine that is not one: a metadata server, Google's two APIs, and docker, systemd-run and systemctl as programs first on PATH."""

import base64
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from gemma_serving.components.startup_script import startup_script
from gemma_serving.contracts.serving_document import SCRIPT_METADATA_KEY
from gemma_serving.vm_agent.base import TMPFS
from gemma_serving.vm_agent.clock import CLOCK, AgentClock
from localcloud.hub.api import HubRequest
from localcloud.running.shims.machine import alive
from localcloud.tests.google_bodies import google_body, google_request
from tests.clock import ThreadClock
from tests.polling import until
from tests.small_hub import SmallHub
from tests.vm_agent.docker import Docker

CANARY = "hf_canaryCANARYcanary0123456789"
DOCUMENT_KEY = "gemma-serving-document"
IMAGE = "us-docker.pkg.dev/p/repo/vllm/vllm-tpu@sha256:" + "a" * 64

DOCKER = """#!%(python)s -IS
import json, os, socket, sys
given = {"argv": sys.argv[1:], "env": dict(os.environ), "stdin": sys.stdin.read() if sys.argv[1] == "login" else ""}
body, daemon = json.dumps(given), socket.create_connection(("127.0.0.1", %(port)d)).makefile("rw")
daemon.write(f"POST /docker HTTP/1.0\\r\\nContent-Length: {len(body)}\\r\\n\\r\\n{body}")
daemon.flush()
for line in daemon:
    number, said = json.loads(line)
    if not number: sys.exit(said)
    os.write(number, said.encode())
"""
SYSTEMD_RUN = """#!%(python)s -IS
import json, os, subprocess, sys
args = sys.argv[1:]
open(%(root)r + "/systemd-run.log", "a").write(json.dumps(args) + chr(10))
env = {"HOME": "/nonexistent"}
while args[0].startswith("-"):
    flag, _, value = args.pop(0).partition("=")
    if flag == "--setenv": env.update([value.split("=", 1)])
out = open(%(root)r + "/agent.log", "a")
p = subprocess.Popen(args, env=env, stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True)
open(%(root)r + "/agent.pid", "w").write(str(p.pid))
print("Running as unit: gemma-serving-agent.service")
"""

SYSTEMCTL = """#!%(python)s -IS
import sys
open(%(root)r + "/systemctl.log", "a").write(" ".join(sys.argv[1:]) + chr(10))
sys.exit(5)
"""


def free_port() -> int:
    """A port of the loopback interface that is free now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


@dataclass
class Machine:
    """Everything that the start-up script meets on a virtual machine, in one folder and one HTTP server."""

    root: Path
    python: str = sys.executable
    attributes: dict[str, str] = field(default_factory=dict)
    published: list[tuple[str, str]] = field(default_factory=list)
    secrets: dict[str, bytes] = field(default_factory=dict)
    no_secrets: set[str] = field(default_factory=set)
    """Versions that do not exist; others without a value may not be read."""
    objects: dict[str, bytes] = field(default_factory=dict)
    fail_next: dict[str, int] = field(default_factory=dict)
    wrong_md5: set[str] = field(default_factory=set)
    composite: dict[str, str] = field(default_factory=dict)
    """Objects that were joined of parts: without an MD5, with this SHA-256 in their metadata if it is not empty."""
    created: dict[str, str] = field(default_factory=dict)
    """When an object was made (RFC 3339); others are from 2026."""
    denied: set[str] = field(default_factory=set)
    """Verbs that Cloud Storage refuses."""
    on_upload: "Callable[[str], None]" = lambda name: None
    """Is called before an upload is judged, with the object's name."""
    hub: SmallHub = field(default_factory=SmallHub)
    """Without a model it answers 404 to everything: the agent leaves the download to the server."""
    on_download: "Callable[[str], None]" = lambda name: None
    """Is called before an object is read, with its name."""
    ranges: list[str] = field(default_factory=list)
    shipped: list[dict[str, Any]] = field(default_factory=list)
    """Bodies of the writes to Cloud Logging."""
    clock: AgentClock = CLOCK
    """Clock of an agent in this process."""
    requests: AgentClock = CLOCK
    """Clock of the pauses between its requests."""
    changed: threading.Condition = field(default_factory=threading.Condition)

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Wait until the condition is true, in the time of the agent."""
        wait = self.clock.until if isinstance(self.clock, ThreadClock) else until
        return wait(condition, what)

    def hold(self, go: threading.Event) -> None:
        """Keep an answer until the event, while the time of the agent passes."""
        with self.clock.elsewhere() if isinstance(self.clock, ThreadClock) else nullcontext():
            go.wait(60)

    def checksums(self, name: str) -> dict[str, Any]:
        """What Cloud Storage lists of an object's content."""
        if name in self.composite:
            return {"metadata": {"sha256": self.composite[name]}} if self.composite[name] else {}
        content = b"other" if name in self.wrong_md5 else self.objects[name]
        return {"md5Hash": base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode()}

    def __post_init__(self):
        self.docker = Docker(self.root)
        self.vm = self.docker.machine
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler(self))
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        bin_folder = self.root / "bin"
        bin_folder.mkdir()
        values = {"python": self.python, "root": str(self.root), "port": self.server.server_port}
        for name, text in {"docker": DOCKER, "systemd-run": SYSTEMD_RUN, "systemctl": SYSTEMCTL}.items():
            (bin_folder / name).write_text(text % values)
            (bin_folder / name).chmod(0o755)
        (bin_folder / "python3").symlink_to(self.python)
        for name in ("vfio/0", "vfio/vfio", "null"):
            (self.root / "dev" / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / "dev" / name).touch()
        self.attributes |= {
            SCRIPT_METADATA_KEY: startup_script(),
            "service-accounts/default/email": "gemma-x@p.iam.gserviceaccount.com",
            "zone": "projects/1/zones/us-east5-a",
            "name": "t1v-n-0-w-0",
        }

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": f"{self.root / 'bin'}:{os.environ['PATH']}",
            "GCE_METADATA_HOST": self.url.removeprefix("http://"),
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER": f"{self.url}/secretmanager/",
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": f"{self.url}/storage/storage/v1/",
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_LOGGING": f"{self.url}/logging/",
            "GEMMA_SERVING_HUB_CACHE": str(self.root / "huggingface"),
            "HF_ENDPOINT": f"{self.url}/hub",
            "GEMMA_SERVING_STATE": str(self.root / "state"),
            "GEMMA_SERVING_DEVICES": str(self.root / "dev"),
            "GEMMA_SERVING_CGROUPS": str(self.root / "no-cgroups"),
        }

    def boot(self) -> subprocess.CompletedProcess[str]:
        """Run the start-up script as the guest environment does: from a file, by its shebang."""
        script = self.root / "startup"
        script.write_text(self.attributes[SCRIPT_METADATA_KEY])
        script.chmod(0o755)
        return subprocess.run(
            [str(script)], env=self.environment, capture_output=True, text=True, timeout=30, check=False
        )

    def set_document(self, text: str | None) -> str:
        """Set the document as a metadata change does; return its hash."""
        with self.changed:
            if text is None:
                self.attributes.pop(DOCUMENT_KEY, None)
            else:
                self.attributes[DOCUMENT_KEY] = text
            self.changed.notify_all()
        return hashlib.sha256((text or "").encode()).hexdigest()

    def guest(self) -> dict[str, str]:
        """What a reader of the guest attributes sees now."""
        return dict(self.published)

    def moments(self) -> list[tuple[str, str]]:
        """Every (phase, hash) that a reader could have seen, in order."""
        now: dict[str, str] = {}
        seen: list[tuple[str, str]] = []
        for key, value in list(self.published):
            now[key] = value
            moment = (now.get("phase", ""), now.get("document-hash", ""))
            if key in {"phase", "document-hash"} and (not seen or seen[-1] != moment):
                seen.append(moment)
        return seen

    def log_lines(self, source: str) -> list[str]:
        """What Cloud Logging lists of the agent's entries: the first of each insertId, because an agent that stops may send a batch again."""
        entries = {entry["insertId"]: entry for body in list(self.shipped) for entry in body["entries"]}
        return [entry["textPayload"] for entry in entries.values() if entry["labels"]["source"] == source]

    def docker_calls(self) -> list[list[str]]:
        whole_lines, _, _ = (
            (self.root / "docker.log").read_text().rpartition("\n")
        )  # a command may be writing the next one
        return [json.loads(line) for line in whole_lines.splitlines() if line.startswith("[")]

    def stop_agent(self) -> None:
        """End the agent as `systemctl stop` does, and wait for it."""
        self._end_agent(signal.SIGTERM)

    def kill_agent(self) -> None:
        """End the agent as `kill -9` does, and wait for it."""
        self._end_agent(signal.SIGKILL)

    def has_agent_ended(self) -> bool:
        return not alive(int((self.root / "agent.pid").read_text()))

    def _end_agent(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(int((self.root / "agent.pid").read_text()), number)
        until(self.has_agent_ended, "the agent ends")

    def cut_power(self) -> None:
        """End the agent and the server as a reset of the machine does. The disk stays."""
        self.kill_agent()
        self.docker.power_off()

    def close(self) -> None:
        if (self.root / "agent.pid").exists():
            self.stop_agent()
        self.docker.power_off()
        self.server.shutdown()
        self.server.server_close()


def handler(machine: Machine) -> type[BaseHTTPRequestHandler]:  # noqa: C901 - one small server
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None:
            pass

        def answer(self, code: int, body: bytes, **headers: str) -> None:
            self.send_response(code)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(body)

        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            prefix = "/computeMetadata/v1/instance/guest-attributes/gemma-serving/"
            if self.headers.get("Metadata-Flavor") != "Google" or not self.path.startswith(prefix):
                self.answer(403, b"")
                return
            machine.published.append((self.path.removeprefix(prefix), body))
            self.answer(200, b"")

        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path == "/docker":
                machine.docker.answer(json.loads(data), self.wfile)
                return
            if self.headers.get("Authorization") != "Bearer vm-token":
                self.answer(401, b"{}")
                return
            if self.path.startswith("/storage/upload/"):
                self.upload(data)
                return
            body = json.loads(data)
            if machine.fail_next.get("entries:write"):
                machine.fail_next["entries:write"] -= 1
                self.answer(403, b'{"error": {"message": "Permission denied."}}')
            else:
                machine.shipped.append(google_request("POST", self.path.lstrip("/"), body))
                self.answer(200, b"{}")

        def refuse(self, code: int, message: str) -> None:
            self.answer(code, json.dumps({"error": {"message": message}}).encode())

        def upload(self, data: bytes) -> None:
            query = {key: values[0] for key, values in parse_qs(urlsplit(self.path).query).items()}
            name = query["name"]
            machine.on_upload(name)
            if "POST" in machine.denied:
                self.refuse(403, "gemma-x@p.iam.gserviceaccount.com does not have storage.objects.create access.")
            elif query.get("ifGenerationMatch") == "0" and name in machine.objects:
                self.refuse(412, "At least one of the pre-conditions you specified did not hold.")
            else:
                machine.objects[name] = data
                sent = b"other" if name in machine.wrong_md5 else data
                md5 = base64.b64encode(hashlib.md5(sent, usedforsecurity=False).digest()).decode()
                self.answer(
                    200, json.dumps(google_body("storage.v1", "Object", {"name": name, "md5Hash": md5})).encode()
                )

        def do_DELETE(self) -> None:
            name = unquote(urlsplit(self.path).path.partition("/o/")[2])
            if "DELETE" in machine.denied:
                self.refuse(403, "no storage.objects.delete access.")
            elif machine.objects.pop(name, None) is None:
                self.refuse(404, f"No such object: {name}")
            else:
                self.answer(204, b"")

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            query = {key: values[0] for key, values in parse_qs(url.query).items()}
            for part, left in machine.fail_next.items():
                if part in url.path and left:
                    machine.fail_next[part] -= 1
                    self.answer(503, b"{}")
                    return
            if url.path.startswith("/hub/"):
                address, target = f"http://{self.headers['Host']}/hub", self.path.removeprefix("/hub/")
                asked = HubRequest(method="GET", address=address, target=target, headers=self.headers)  # pyright: ignore[reportArgumentType] - a message is a mapping
                found = machine.hub.answer(asked)
                self.answer(found.status, found.body, **found.headers)
            elif url.path.startswith("/computeMetadata/"):
                self.metadata(url.path.removeprefix("/computeMetadata/v1/instance/"), query)
            elif self.headers.get("Authorization") != "Bearer vm-token":
                self.answer(401, b"{}")
            elif url.path.startswith("/secretmanager/v1/"):
                self.secret(url.path.removeprefix("/secretmanager/v1/").removesuffix(":access"))
            else:
                self.storage(url.path.removeprefix("/storage/storage/v1/b/"), query)

        def metadata(self, path: str, query: dict[str, str]) -> None:
            if path == "service-accounts/default/token":
                self.answer(200, b'{"access_token": "vm-token", "expires_in": 3599}')
                return
            key = path.removeprefix("attributes/")

            def etag() -> str:
                return hashlib.sha256(machine.attributes.get(key, "").encode()).hexdigest()[:16]

            with machine.changed:
                if query.get("wait_for_change"):
                    machine.changed.wait_for(lambda: etag() != query["last_etag"], int(query["timeout_sec"]))
                value = machine.attributes.get(key)
                self.answer(404 if value is None else 200, (value or "").encode(), ETag=etag())

        def secret(self, version: str) -> None:
            value = machine.secrets.get(version)
            if version in machine.no_secrets:
                self.refuse(404, f"Secret Version [{version}] not found.")
            elif value is None:
                self.answer(403, json.dumps({"error": {"message": "Permission denied on resource."}}).encode())
            else:
                body = {"payload": {"data": base64.b64encode(value).decode()}}
                google_body("secretmanager.v1", "AccessSecretVersionResponse", body)
                self.answer(200, json.dumps(body).encode())

        def storage(self, path: str, query: dict[str, str]) -> None:
            name = path.partition("/o")[2]
            if "GET" in machine.denied:
                self.refuse(403, "gemma-x@p.iam.gserviceaccount.com does not have storage.objects.get access.")
                return
            if query.get("alt") == "media":
                machine.on_download(unquote(name[1:]))
                data = machine.objects.get(unquote(name[1:]))
                if data is None:
                    self.refuse(404, f"No such object: {unquote(name[1:])}")
                    return
                first, last = self.headers["Range"].removeprefix("bytes=").split("-")
                machine.ranges.append(f"{unquote(name[1:])}:{first}-{last}")
                self.answer(206, data[int(first) : int(last) + 1])
                return
            names = sorted(item for item in machine.objects if item.startswith(query.get("prefix", "")))
            page, most = int(query.get("pageToken", "0")), int(query.get("maxResults", "2"))
            items: list[dict[str, Any]] = [
                {
                    "name": item,
                    "timeCreated": machine.created.get(item, "2026-11-20T10:00:00.000Z"),
                    "size": str(len(machine.objects[item])),
                    "generation": str(abs(hash(machine.objects[item]))),
                    **machine.checksums(item),
                }
                for item in names[page : page + most]
            ]
            more = {"nextPageToken": str(page + most)} if page + most < len(names) else {}
            body = google_body("storage.v1", "Objects", {"items": items, **more} if items else {})
            self.answer(200, json.dumps(body).encode())

    return Handler


def document(listen_port: int, **changes: Any) -> str:
    """A serving document as the stacks write it."""
    base = {
        "schema": 1,
        "image": IMAGE,
        "command": ["vllm", "serve"],
        "args": ["google/gemma-4-E2B-it", f"--port={listen_port}", "--max-model-len=16384"],
        "env": {"VLLM_XLA_CACHE_PATH": f"{TMPFS}/vllm_cache"},
        "secretEnv": {"HF_TOKEN": "projects/p/secrets/s/versions/3"},
        "port": listen_port,
        "shmSizeGib": 10,
        "weights": {"mode": "hub"},
    }
    return json.dumps({**base, **changes})
