"""The list of gcloud's commands: run with a real gcloud, recorded as requests, replayed without gcloud."""

import contextlib
import http.client
import json
import os
import re
import shutil
import subprocess
import threading
import tomllib
import urllib.parse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

from localcloud.environment import API_OVERRIDES

FOLDER = Path(__file__).parents[1] / "fixtures" / "gcloud"
COMMANDS, REQUESTS = FOLDER / "commands.toml", FOLDER / "requests.json"
PROJECT = "local-project"
_LIMIT_S = 240

_DRIVER = """
import json, os, sys, tempfile
root, results = sys.argv[1], os.fdopen(os.dup(1), "w")
sys.path[:0] = [root + "/lib", root + "/lib/third_party"]
from googlecloudsdk import gcloud_main
from googlecloudsdk.core import log
cli = gcloud_main.CreateCLI([])
for line in sys.stdin:
    with tempfile.TemporaryFile("w+") as printed:
        # Some commands write to the file descriptor and close it.
        os.dup2(printed.fileno(), 1)
        os.dup2(printed.fileno(), 2)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
        log.Reset(sys.stdout, sys.stderr)
        try:
            cli.Execute(json.loads(line))
            code = 0
        except SystemExit as end:
            code = end.code or 0
        except Exception as error:
            code = repr(error)
        sys.stdout.flush()
        sys.stderr.flush()
        printed.seek(0)
        print(json.dumps({"code": code, "said": printed.read()}), file=results, flush=True)
"""
"""Runs all commands in one Python process of gcloud because each start of gcloud takes a second."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command of the list. `says` is part of its output."""

    argv: tuple[str, ...]
    says: str
    code: int = 0

    def describes(self, outcome: "Outcome") -> bool:
        """Return whether the command had the listed result."""
        return outcome.code == self.code and self.says in outcome.said


@dataclass(frozen=True, kw_only=True)
class Gcloud:
    """An installed gcloud with its alpha track."""

    python: str
    root: str
    version: str


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a command did."""

    code: int | str
    """The exit code, or an error of gcloud itself."""
    said: str


def commands() -> list[Command]:
    """The list."""
    found = tomllib.loads(COMMANDS.read_text())["command"]
    return [Command(argv=tuple(item["argv"]), says=item["says"], code=item.get("code", 0)) for item in found]


def installed() -> Gcloud | None:
    """The real gcloud on PATH, or None."""
    path = shutil.which("gcloud")
    if path is None:
        return None
    said = subprocess.run(
        [path, "info", "--format=json"], capture_output=True, text=True, check=False, timeout=60, env=clean()
    )
    if said.returncode != 0:
        return None
    info = json.loads(said.stdout)
    if "alpha" not in info["installation"]["components"]:
        return None
    return Gcloud(
        python=info["basic"]["python_location"],
        root=info["installation"]["sdk_root"],
        version=info["basic"]["version"],
    )


def clean(**variables: str) -> dict[str, str]:
    """The environment without settings and credentials of gcloud."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("CLOUDSDK_", "GOOGLE_", "PYTHON"))}
    return {**kept, **variables}


def run(gcloud: Gcloud, url: str, folder: Path, argvs: Sequence[Sequence[str]], *, token: str | None) -> list[Outcome]:
    """Run commands against a local cloud and return their outcomes. Without a token, gcloud exits after reading its arguments."""
    account = folder / "token"
    account.write_text(token or "")
    settings = {
        "CLOUDSDK_CONFIG": str(folder / "config"),
        **({"CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": str(account)} if token else {}),
        "CLOUDSDK_CORE_PROJECT": PROJECT,
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
        "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "true",
        "CLOUDSDK_CORE_CHECK_GCE_METADATA": "false",
        "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "true",
        "CLOUDSDK_STORAGE_PROCESS_COUNT": "1",
        "CLOUDSDK_STORAGE_THREAD_COUNT": "1",
        "NO_PROXY": "127.0.0.1",
    }
    overrides = {f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{api}": f"{url}/{path}" for api, path in API_OVERRIDES.items()}
    done = subprocess.run(
        [gcloud.python, "-S", "-c", _DRIVER, gcloud.root],
        input="".join(json.dumps(list(argv)) + "\n" for argv in argvs),
        env=clean(**settings, **overrides),
        capture_output=True,
        text=True,
        check=False,
        timeout=_LIMIT_S,
    )
    return [Outcome(**json.loads(line)) for line in done.stdout.splitlines()]


def prepared(folder: Path) -> list[tuple[str, ...]]:
    """Write the file that the commands use, and return the commands with the folder's path."""
    (folder / "small.txt").write_text("a small file\n")
    return [tuple(word.replace("{tmp}", str(folder)) for word in command.argv) for command in commands()]


def refused_by_parser(outcome: Outcome) -> bool:
    """Whether gcloud does not know the command or one of its flags."""
    return outcome.code == 2


def replay(url: str, token: str, recorded: Sequence[dict[str, Any]]) -> list[tuple[str, int, int]]:
    """Send recorded requests and return those that were answered with another status: request, recorded and new status."""
    differing: list[tuple[str, int, int]] = []
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=30)
    for item in recorded:
        body = item["body"].replace(_BASE, url).encode()
        headers = {"Authorization": f"Bearer {token}", **({"Content-Type": item["type"]} if item["type"] else {})}
        connection.request(item["method"], item["path"].replace(_BASE, url), body=body, headers=headers)
        response = connection.getresponse()
        response.read()
        if response.status != item["status"]:
            differing.append((f"{item['method']} {item['path']}", item["status"], response.status))
    return differing


_BASE = "http://localcloud"
_NOT_RECORDED = re.compile(r"/operations/|upload_id=|^/download/")
"""Requests that name values of earlier responses."""
_VARYING = {"generation", "sourceGeneration", "ifSourceGenerationMatch", "ifMetagenerationMatch", "requestId"}
_HOP_HEADERS = {"content-length", "transfer-encoding", "connection", "server", "date"}


class _Passing(BaseHTTPRequestHandler):
    """Passes requests on to `url` and keeps them in `kept`."""

    protocol_version = "HTTP/1.1"
    url = ""
    kept: ClassVar[list[dict[str, Any]]] = []

    def _pass(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        own = f"http://{self.headers['Host']}"
        connection = http.client.HTTPConnection(urllib.parse.urlsplit(self.url).netloc, timeout=60)
        headers = {key: value for key, value in self.headers.items() if key not in {"Accept-Encoding", "Host"}}
        connection.request(self.command, self.path, body.replace(own.encode(), self.url.encode()), headers)
        response = connection.getresponse()
        answer = response.read()
        self.send_response(response.status)
        for key, value in response.getheaders():
            if key.lower() not in _HOP_HEADERS:
                self.send_header(key, value.replace(self.url, own))
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
        if _NOT_RECORDED.search(self.path) is None:
            self._keep(body.decode().replace(own, _BASE), response.status)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _pass  # noqa: N815 - names that http.server looks up

    def _keep(self, body: str, status: int) -> None:
        path, _, query = self.path.partition("?")
        lasting = [pair for pair in query.split("&") if pair.partition("=")[0] not in _VARYING]
        self.kept.append(
            {
                "method": self.command,
                "path": f"{path}?{'&'.join(lasting)}",
                "type": self.headers.get("Content-Type", ""),
                "body": re.sub(r'"etag": ?"[^"]*"(, ?)?', "", body),
                "status": status,
            }
        )

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextlib.contextmanager
def recording(url: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield a URL that forwards requests to another, and the list that records them."""
    kept: list[dict[str, Any]] = []
    handler = type("Passing", (_Passing,), {"url": url, "kept": kept})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", kept
        server.shutdown()
