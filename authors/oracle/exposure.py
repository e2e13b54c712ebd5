"""Exposure of a real vLLM to a caller without the API key, by default and as the stacks start it: paths, fetched media, loaded files."""

import base64
import http.client
import json
import os
import shutil
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from authors.oracle.environment import MODEL, ROOT, OracleError, OracleHome, OracleSay
from authors.oracle.programs import run_tool
from authors.oracle.server import HOST, OracleCores, free_port, running_server, tools_environment

KEY: Final = "key-of-the-oracle"
PINNED: Final = "oracle/pinned"
"""A repository of a hub cache. Its commit is the tiny model, and its main branch is not a model."""
COMMIT: Final = "1" * 40
MAIN: Final = "2" * 40
ORIGIN: Final = "https://elsewhere.example"
GUARD: Final = ROOT / "vm_agent" / "path_guard.py"
MODULE: Final = "gemma_serving_path_guard"
CLOSED: Final = (
    "--allowed-origins=[]",
    "--allowed-media-domains=none.invalid",
    f"--middleware={MODULE}.PathGuard",
    f"--revision={COMMIT}",
    f"--tokenizer-revision={COMMIT}",
    "--load-format=safetensors",
)
"""Options that the stacks add to a server with an API key whose model is on the hub. A test compares them."""
OPEN: Final = ('--allowed-origins=["*"]',)
"""Default of vLLM up to 0.31. Since 0.32.0 no origin is allowed."""
_LIMIT_S: Final = 120.0
_INSIDE: Final = Path(__file__).with_name("inside.py")


@dataclass(frozen=True, slots=True)
class OracleRequest:
    """A request, and the status that a server with a key but without the guard returns to a caller without the key."""

    method: str
    path: str
    open_status: int
    body: Mapping[str, Any] | None = None

    @property
    def name(self) -> str:
        """Return the request as text."""
        return f"{self.method} {self.path}"


_CHAT: Final[Mapping[str, Any]] = {"messages": [{"role": "user", "content": "Hello."}], "max_tokens": 4}
REQUESTS: Final = (
    OracleRequest("GET", "/health", 200),
    OracleRequest("GET", "/ping", 200),
    OracleRequest("GET", "/version", 200),
    OracleRequest("GET", "/metrics", 200),
    OracleRequest("GET", "/load", 200),
    OracleRequest("GET", "/docs", 200),
    OracleRequest("GET", "/openapi.json", 200),
    OracleRequest("POST", "/tokenize", 200, {"prompt": "Hello."}),
    OracleRequest("POST", "/detokenize", 200, {"tokens": [5, 6]}),
    OracleRequest("POST", "/invocations", 200, _CHAT),
    OracleRequest("POST", "/generative_scoring", 400, {}),
    OracleRequest("POST", "/scale_elastic_ep", 400, {}),
    OracleRequest("GET", "/v1/models", 401),
    OracleRequest("POST", "/v1/chat/completions", 401, _CHAT),
    OracleRequest("POST", "/v1/messages", 401, _CHAT),
    OracleRequest("GET", "//health", 404),
    OracleRequest("GET", "/health/", 307),
    OracleRequest("WS", "/v1/realtime", 401),
)
"""Paths of vLLM 0.32.0, and spellings of the open one."""
_GUARDED: Final = 401
_PICTURE: Final = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class ExposureRow:
    """One request and its results: without the key before and behind the guard, and with the key behind it."""

    asked: str
    open: str
    closed: str
    with_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """All requests."""

    rows: tuple[ExposureRow, ...]
    faults: tuple[str, ...]


def check_exposure(home: OracleHome, cores: OracleCores, say: OracleSay) -> Exposure:
    """Query two servers and vLLM's code. Raises OracleError if they do not start or the guard's file is missing."""
    if not GUARD.is_file():
        raise OracleError(f"{GUARD} is missing, so no server can be started with the path guard.")
    cache = hub_cache(home)
    say("querying a server that has only an API key")
    with _server(home, cores, say, _Started(name="open", arguments=OPEN)) as port:
        before = _all_answers(port, MODEL)
    say("querying a server as the stacks start it: path guard, no origins, no media, one commit, safetensors only")
    closed = _Started(name="closed", model=PINNED, arguments=CLOSED, variables=_closed_variables(home, cache))
    with _server(home, cores, say, closed) as port:
        behind = _all_answers(port, PINNED)
    say("checking that the main branch of that repository does not start")
    faults = [*_faults_of_main(home, cores, say, cache), *judged(before, behind)]
    say("checking which media vLLM's code fetches and which weights it opens")
    rows, more = _inside(home, cores)
    return Exposure(rows=(*_rows(before, behind), *rows), faults=(*faults, *more))


def hub_cache(home: OracleHome) -> Path:
    """Write a hub cache with the tiny model under one commit and a main branch that is not a model. Return its folder."""
    cache = home.results / "hub-cache"
    repository = cache / "hub" / f"models--{PINNED.replace('/', '--')}"
    shutil.rmtree(cache, ignore_errors=True)
    shutil.copytree(home.models / MODEL, repository / "snapshots" / COMMIT)
    (repository / "snapshots" / MAIN).mkdir()
    (repository / "snapshots" / MAIN / "config.json").write_text('{"model_type": "none"}\n', encoding="utf-8")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(MAIN, encoding="utf-8")
    return cache


def judged(before: "ServerAnswers", behind: "ServerAnswers") -> list[str]:
    """Return the differences from the expected results, as sentences."""
    faults: list[str] = []
    for one in REQUESTS:
        is_health = one.path == "/health"
        wanted = {
            "without the guard and the key": (before.without[one.name], one.open_status),
            "with the guard and without the key": (behind.without[one.name], 200 if is_health else _GUARDED),
            "with both": (behind.with_key[one.name], before.with_key[one.name]),
        }
        faults += [
            f"exposure: {one.name} {how} must be {must}, but is {found}"
            for how, (found, must) in wanted.items()
            if found != must
        ]
    if (before.origin, behind.origin) != ("*", ""):
        faults.append(
            f"exposure: Access-Control-Allow-Origin must be `*` and absent, but is {before.origin!r} and {behind.origin!r}"
        )
    if (before.preflight, behind.preflight) != (200, _GUARDED):
        faults.append(f"exposure: a preflight must be 200 and 401, but is {before.preflight} and {behind.preflight}")
    if behind.preflight_with_key != _PICTURE:
        faults.append(
            f"exposure: a preflight with the key must be 400 for a foreign origin, but is {behind.preflight_with_key}"
        )
    faults += [
        f"exposure: a picture for a model of text must be 400, but is {one.picture}"
        for one in (before, behind)
        if one.picture != _PICTURE
    ]
    return faults


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAnswers:
    """Results from one server."""

    without: Mapping[str, int]
    with_key: Mapping[str, int]
    origin: str
    """Access-Control-Allow-Origin of a response to another site's page, or empty."""
    preflight: int
    preflight_with_key: int
    picture: int
    """Status of a chat with a picture by URL."""


def _all_answers(port: int, model: str) -> ServerAnswers:
    origin = {"Origin": ORIGIN}
    preflight = {**origin, "Access-Control-Request-Method": "POST"}
    picture = [{"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/picture.png"}}]
    chat = {"messages": [{"role": "user", "content": picture}], "max_tokens": 4, "model": model}
    chat_path, authorized = "/v1/chat/completions", {"Authorization": f"Bearer {KEY}"}
    return ServerAnswers(
        without={one.name: _ask(port, one, model, {})[0] for one in REQUESTS},
        with_key={one.name: _ask(port, one, model, authorized)[0] for one in REQUESTS},
        origin=_ask(port, OracleRequest("GET", "/health", 200), model, origin)[1],
        preflight=_ask(port, OracleRequest("OPTIONS", chat_path, 200), model, preflight)[0],
        preflight_with_key=_ask(port, OracleRequest("OPTIONS", chat_path, 200), model, {**preflight, **authorized})[0],
        picture=_ask(port, OracleRequest("POST", chat_path, 400, chat), model, authorized)[0],
    )


def _ask(port: int, asked: OracleRequest, model: str, headers: Mapping[str, str]) -> tuple[int, str]:
    """Return the status and the origin that the response allows."""
    body = None if asked.body is None else json.dumps({"model": model, **asked.body} if asked.body else {})
    sent = {**headers, **({"Content-Type": "application/json"} if body is not None else {})}
    if asked.method == "WS":
        key = base64.b64encode(os.urandom(16)).decode()
        sent |= {
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": key,
        }
    connection = http.client.HTTPConnection(HOST, port, timeout=_LIMIT_S)
    try:
        connection.request("GET" if asked.method == "WS" else asked.method, asked.path, body, sent)
        answer = connection.getresponse()
        answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise OracleError(f"{asked.name} got no response: {error!r}.") from None
    finally:
        connection.close()
    return answer.status, answer.getheader("Access-Control-Allow-Origin", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Started:
    """A server with a key."""

    name: str
    model: str = MODEL
    arguments: Sequence[str] = ()
    variables: Mapping[str, str] = field(default_factory=dict[str, str])


@contextmanager
def _server(home: OracleHome, cores: OracleCores, say: OracleSay, one: _Started) -> Generator[int]:
    """Start a server on a separate port, and stop it."""
    port = free_port(0)
    given = {"VLLM_API_KEY": KEY, **one.variables}
    with running_server(
        home, port, cores, say, name=one.name, model=one.model, arguments=one.arguments, variables=given
    ):
        yield port


def _closed_variables(home: OracleHome, cache: Path) -> Mapping[str, str]:
    """Return the variables of a server with the path guard, whose file is in a folder of PYTHONPATH."""
    folder = home.results / "guard"
    folder.mkdir(exist_ok=True)
    shutil.copyfile(GUARD, folder / f"{MODULE}.py")
    return {"PYTHONPATH": str(folder), "HF_HOME": str(cache), "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0"}


def _faults_of_main(home: OracleHome, cores: OracleCores, say: OracleSay, cache: Path) -> list[str]:
    """Start the repository without a commit, which must fail. Otherwise the result with the commit proves nothing."""
    main = _Started(name="main", model=PINNED, variables={"HF_HOME": str(cache)})
    with suppress(OracleError), _server(home, cores, say, main):
        return [f"exposure: {PINNED} starts without --revision, so the commit was not the reason that it started"]
    return []


def _rows(before: ServerAnswers, behind: ServerAnswers) -> tuple[ExposureRow, ...]:
    paths = [
        ExposureRow(
            asked=f"`{one.name}`",
            open=str(before.without[one.name]),
            closed=str(behind.without[one.name]),
            with_key=str(behind.with_key[one.name]),
        )
        for one in REQUESTS
    ]
    origins = ExposureRow(
        asked="origin that a response allows", open=before.origin or "none", closed=behind.origin or "none", with_key=""
    )
    preflight = ExposureRow(
        asked="preflight of another site",
        open=str(before.preflight),
        closed=str(behind.preflight),
        with_key=str(behind.preflight_with_key),
    )
    return (*paths, origins, preflight)


def _inside(home: OracleHome, cores: OracleCores) -> tuple[tuple[ExposureRow, ...], list[str]]:
    """Query vLLM's code, with and without redirects."""
    pickled = home.results / "pickled"
    pickled.mkdir(exist_ok=True)
    (pickled / "pytorch_model.bin").write_bytes(b"no weights")
    found: dict[str, Any] = {}
    for redirects in ("0", "1"):
        environment = {**tools_environment(home, os.environ), "VLLM_MEDIA_URL_ALLOW_REDIRECTS": redirects}
        command = [str(home.programs / "python"), str(_INSIDE), str(pickled)]
        text = run_tool(
            command, home.results, environment, home.results / f"inside-{redirects}.log", cores, allowed=(0,)
        )
        found[redirects] = json.loads(text.strip().splitlines()[-1])
    return inside_rows(found), inside_faults(found)


def inside_rows(found: Mapping[str, Any]) -> tuple[ExposureRow, ...]:
    """Return the results of vLLM's code as rows: every domain and redirects, then none and no redirects."""
    loose, strict = found["1"]["media"]["every domain"], found["0"]["media"]["none.invalid"]
    names = {
        "http": "media by `http:`",
        "redirect": "media by a redirect",
        "data": "media by `data:`",
        "file": "media by `file:`",
    }
    media = [
        ExposureRow(asked=name, open=_fetched(loose[kind]), closed=_fetched(strict[kind]), with_key="")
        for kind, name in names.items()
    ]
    redirect = ExposureRow(
        asked="redirect of an allowed domain",
        open=_fetched(found["1"]["media"]["the listener"]["redirect"]),
        closed=_fetched(found["0"]["media"]["the listener"]["redirect"]),
        with_key="",
    )
    weights = found["0"]["weights"]
    pickled = ExposureRow(
        asked="weights only in `.bin`", open=weights["auto"], closed=weights["safetensors"], with_key=""
    )
    return (*media, redirect, pickled)


def _fetched(one: Mapping[str, Any]) -> str:
    requests = cast("Sequence[str]", one["requests"])
    what = "a picture" if one["answer"] == "a picture" else "refused"
    return f"{what}, {len(requests)} request{'' if len(requests) == 1 else 's'}"


def inside_faults(found: Mapping[str, Any]) -> list[str]:
    """Return unexpected results of vLLM's code, as sentences."""
    strict, redirected = found["0"]["media"], found["1"]["media"]
    wanted = {
        "http without a domain": (strict["none.invalid"]["http"], False, 0),
        "a redirect without a domain": (strict["none.invalid"]["redirect"], False, 0),
        "data: without a domain": (strict["none.invalid"]["data"], True, 0),
        "file:": (strict["none.invalid"]["file"], False, 0),
        "http of an allowed domain": (strict["the listener"]["http"], True, 1),
        "a redirect that is not followed": (strict["the listener"]["redirect"], False, 1),
        "a redirect that is followed": (redirected["the listener"]["redirect"], True, 2),
        "http without the rule": (strict["every domain"]["http"], True, 1),
    }
    faults = [
        f"exposure: media, {name}: must be {'a picture' if works else 'refused'} after {count} requests, but is {_fetched(one)}"
        for name, (one, works, count) in wanted.items()
        if ((one["answer"] == "a picture"), len(one["requests"])) != (works, count)
    ]
    weights = found["0"]["weights"]
    if weights["auto"] != "bin" or "Cannot find any model weights" not in weights["safetensors"]:
        faults.append(f"exposure: pickled weights must be opened by auto but not by safetensors, found: {weights}")
    return faults
