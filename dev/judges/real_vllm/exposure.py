"""Exposure of a real vLLM by default and as the stacks start it.

To a caller without the API key: paths, origins, and the loaded commit. To its makers: usage statistics, which a listener of this machine receives.
"""

import base64
import http.client
import json
import os
import shutil
import threading
import tomllib
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from dev.authors.tables import table
from dev.judges.planted import refuse_planted
from dev.judges.real_vllm.environment import HERE, MODEL, ROOT, RealVllmError, RealVllmHome, print_progress
from dev.judges.real_vllm.judge import RealVllmPart
from dev.judges.real_vllm.server import HOST, RealVllmCores, run_tool, running_server, tools_environment
from gemma_serving.planning.data.exposure import EXPOSURE_ENVIRONMENT
from gemma_serving.planning.settings.vllm_args import SAFETENSORS, VllmOptions, vllm_arguments

KEY: Final = "key-of-the-oracle"
PINNED: Final = "oracle/pinned"
"""A repository of a hub cache. Its commit is the tiny model, and its main branch is not a model."""
COMMIT: Final = "1" * 40
MAIN: Final = "2" * 40
ORIGIN: Final = "https://elsewhere.example"
GUARD: Final = ROOT / "gemma_serving" / "vm_agent" / "path_guard.py"
MODULE: Final = "gemma_serving_path_guard"
CLOSED: Final = (
    "--allowed-origins=[]",
    "--allowed-media-domains=none.invalid",
    f"--middleware={MODULE}.PathGuard",
    f"--revision={COMMIT}",
    f"--tokenizer-revision={COMMIT}",
    "--load-format=safetensors",
)
"""Options that the stacks add to a server with an API key whose model is on the hub (`missing_options`)."""
OPEN: Final = ('--allowed-origins=["*"]',)
"""Default of vLLM up to 0.31. Since 0.32.0 no origin is allowed."""
REPORT: Final = f"""
import time
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.utils import report_usage_stats
report_usage_stats(EngineArgs(model={MODEL!r}, enforce_eager=True).create_engine_config())
time.sleep(20)
"""
"""What vLLM's worker on a GPU calls when it starts (v1/worker/gpu_worker.py). The worker on a processor does not report, so a server here never does."""
_LIMIT_S: Final = 120.0
_SAYS: Final = ("only an API key", "as the stacks start it", "with the key")
_ORIGINS: Final = "origin that a response allows"


@dataclass(frozen=True, slots=True)
class RealVllmRequest:
    """A request, and the status that it must get from a server with only a key, from one as the stacks start it, and from that with the key."""

    path: str
    """Method and path. `WS` opens a WebSocket."""
    wanted: str
    name: str
    """Name in the report: the path if the file states none."""
    body: Mapping[str, Any] | None = None


@cache
def requests() -> Sequence[RealVllmRequest]:
    """Return the paths of vLLM, and spellings of the open one. The answer to another site's page is requested as well."""
    rows = tomllib.loads((HERE / "requests.toml").read_text(encoding="utf-8"))["requests"]
    return [RealVllmRequest(**(row | {"name": row.get("name", f"`{row['path']}`")})) for row in rows]


def check_exposure(home: RealVllmHome, cores: RealVllmCores) -> RealVllmPart:
    """Query two servers, and start a third that must not run. Raises RealVllmError if they do not start or the guard's file is missing."""
    if not GUARD.is_file():
        raise RealVllmError(f"{GUARD} is missing, so no server can be started with the path guard.")
    cache = hub_cache(home)
    guard = home.results / "guard"
    guard.mkdir()
    shutil.copyfile(GUARD, guard / f"{MODULE}.py")
    key = {"VLLM_API_KEY": KEY}
    print_progress("querying a server that has only an API key")
    with running_server(home, cores, "open", arguments=OPEN, variables=key) as url:
        before = answers(url, MODEL)
    print_progress(
        "querying a server as the stacks start it: path guard, no origins, no media, one commit, safetensors only"
    )
    hub = {**key, "HF_HOME": str(cache)}
    closed = {**hub, "PYTHONPATH": str(guard), **EXPOSURE_ENVIRONMENT}
    with running_server(home, cores, "closed", model=PINNED, arguments=CLOSED, variables=closed) as url:
        behind, with_key = answers(url, PINNED), answers(url, PINNED, Authorization=f"Bearer {KEY}")
    print_progress("checking that the main branch of that repository does not start")
    faults = [f"exposure: the stacks also pass {option}; add it to CLOSED" for option in missing_options()]
    with suppress(RealVllmError), running_server(home, cores, "main", model=PINNED, variables=hub):
        faults.append(f"exposure: {PINNED} starts without --revision, so the commit was not the reason that it started")
    print_progress("receiving usage statistics, by default and as the stacks start a server")
    sent, sent_behind = reports(home, cores, {}), reports(home, cores, EXPOSURE_ENVIRONMENT)
    parts = [compare_exposure(before, behind, with_key), statistics(sent, sent_behind)]
    return RealVllmPart(
        lines=[line for part in parts for line in part.lines],
        faults=[*faults, *(fault for part in parts for fault in part.faults)],
    )


def missing_options() -> Sequence[str]:
    """Return the options that the stacks pass to such a server and that CLOSED lacks."""
    passed = vllm_arguments(VllmOptions(load_format=SAFETENSORS), model_or_path=PINNED, revision=COMMIT)
    return [option for option in passed[3:] if option not in CLOSED]


def reports(home: RealVllmHome, cores: RealVllmCores, variables: Mapping[str, str]) -> Sequence[Mapping[str, object]]:
    """Return the usage statistics that vLLM sends with these of the stacks' variables."""
    inherited = tools_environment(home, os.environ)
    # A variable of this shell or a file in the folder of vLLM's settings can turn statistics off too.
    neutral = {
        name: text for name, text in inherited.items() if name not in {*EXPOSURE_ENVIRONMENT, "VLLM_DO_NOT_TRACK"}
    }
    with listening() as (address, received):
        own = {"VLLM_USAGE_STATS_SERVER": address, "VLLM_CONFIG_ROOT": str(home.results / "config")}
        log = home.results / f"statistics-{'closed' if variables else 'open'}.log"
        run_tool(
            [str(home.programs / "python"), "-c", REPORT], home.models, {**neutral, **variables, **own}, log, cores
        )
    return received


@contextmanager
def listening() -> Generator[tuple[str, list[Mapping[str, object]]]]:
    """Receive reports. Yield the address, and the list of those received until the end."""
    received: list[Mapping[str, object]] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            """Print nothing."""

    with ThreadingHTTPServer((HOST, 0), Receiver) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://{HOST}:{server.server_port}", received
        finally:
            server.shutdown()


def statistics(before: Sequence[Mapping[str, object]], behind: Sequence[Mapping[str, object]]) -> RealVllmPart:
    """Return the reports by default and as the stacks start a server. Without a report by default, their absence proves nothing."""
    fields = ", ".join(sorted({name for report in before for name in report}))
    line = f"Usage statistics: {len(before)} by default ({fields}), {len(behind)} as the stacks start a server."
    faults = [] if before else ["exposure: usage statistics, by default: must be sent, or their absence proves nothing"]
    faults += (
        [f"exposure: usage statistics, as the stacks start it: must be 0, but are {len(behind)}"] if behind else []
    )
    return RealVllmPart(lines=["", line], faults=faults)


def hub_cache(home: RealVllmHome) -> "os.PathLike[str]":
    """Write a hub cache with the tiny model under one commit and a main branch that is not a model. Return its folder."""
    cache = home.results / "hub-cache"
    repository = cache / "hub" / f"models--{PINNED.replace('/', '--')}"
    shutil.copytree(home.models / MODEL, repository / "snapshots" / COMMIT)
    (repository / "snapshots" / MAIN).mkdir()
    (repository / "snapshots" / MAIN / "config.json").write_text('{"model_type": "none"}\n', encoding="utf-8")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(MAIN, encoding="utf-8")
    return cache


def answers(url: str, model: str, **headers: str) -> Mapping[str, str]:
    """Return the status of each request by its name, and the origin that a response to another site's page allows."""
    found = {one.name: str(_ask(url, one, model, headers).status) for one in requests()}
    origin = _ask(url, requests()[0], model, {**headers, "Origin": ORIGIN}).getheader("Access-Control-Allow-Origin")
    return {**found, _ORIGINS: origin or "none"}


def _ask(url: str, asked: RealVllmRequest, model: str, headers: Mapping[str, str]) -> http.client.HTTPResponse:
    method, _, path = asked.path.partition(" ")
    body = None if asked.body is None else json.dumps({"model": model, **asked.body} if asked.body else {})
    sent = {**headers, **({"Content-Type": "application/json"} if body is not None else {})}
    if method == "OPTIONS":
        sent |= {"Origin": ORIGIN, "Access-Control-Request-Method": "POST"}
    if method == "WS":
        key = base64.b64encode(os.urandom(16)).decode()
        sent |= {"Connection": "Upgrade", "Upgrade": "websocket"}
        sent |= {"Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": key}
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=_LIMIT_S)
    try:
        connection.request(method.replace("WS", "GET"), path, body, sent)
        answer = connection.getresponse()
        answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise RealVllmError(f"{asked.name} got no response: {error!r}.") from None
    finally:
        connection.close()
    return answer


def compare_exposure(*found: Mapping[str, str]) -> RealVllmPart:
    """Return what both servers answered, and the second one with the key, as a table, and answers that are not the wanted ones as sentences."""
    wanted = _wanted()
    faults = [
        f"exposure: {name}, {how}: must be {status}, but is {answered[name]}"
        for name, statuses in wanted.items()
        for how, status, answered in zip(_SAYS, statuses, found, strict=True)
        if answered[name] != status
    ]
    rows = [(name, *(answered[name] for answered in found)) for name in wanted]
    return RealVllmPart(lines=table(" | ".join(("request", *_SAYS)), rows).splitlines(), faults=faults)


def _wanted() -> Mapping[str, Sequence[str]]:
    """Return what a server with only a key must answer to each request, one as the stacks start it, and that with the key."""
    return {one.name: one.wanted.split() for one in requests()} | {_ORIGINS: ["*", "none", "none"]}


def planted_lie() -> None:
    """Refuse the claim that a caller without the key reads the metrics of a server that the stacks start."""
    found = [{name: statuses[place] for name, statuses in _wanted().items()} for place in range(len(_SAYS))]
    found[1]["`GET /metrics`"] = "200"
    refuse_planted("open metrics are closed", lambda: compare_exposure(*found).faults)
