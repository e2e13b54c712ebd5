"""A real vLLM and the simulated server with the words of a stack: their answers, metrics, log lines, failed starts, and their end.

Compared is what the project's code reads. answers.toml lists the requests and the failed starts.
"""

import http.client
import json
import os
import re
import signal
import sys
import threading
import time
import tomllib
from collections.abc import Generator, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from dev.judges.real.agent_reading import reading_of
from dev.judges.real.home import ROOT, RealHome, run, wait_until
from dev.judges.real.service import Service
from dev.judges.real.vllm_here import MODEL, OFFLINE
from dev.judges.real.vllm_life import CLOUD_RUN_STACK as STACK
from dev.judges.real.vllm_life import END_LIMIT_S, launcher
from dev.judges.real_vllm.environment import RealVllmHome
from dev.judges.real_vllm.server import HOST, free_port
from gemma_serving.contracts.fields import as_mapping
from gemma_serving.planning.data.tables import data_file
from gemma_serving.planning.planner import plan
from gemma_serving.planning.settings.paths import with_changes
from gemma_serving.scripts.smoke import checks_server
from gemma_serving.scripts.stack.settings import stack_settings
from gemma_serving.stacks.hooks.failure_hints import known_causes
from gemma_serving.stacks.planned import to_question
from gemma_serving.stacks.server_command import server_arguments, with_served_name
from loadtest.client import metrics as loadtest_metrics
from localcloud.vllm.arguments import build_parser

TABLE: Final[Mapping[str, Sequence[Mapping[str, Any]]]] = tomllib.loads(
    Path(__file__).with_name("answers.toml").read_text(encoding="utf-8")
)
KEY: Final = "key-of-the-real-server"
SPECULATION: Final[Mapping[str, object]] = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}
"""Added to the stack's settings, for the metrics of speculative decoding."""
SIMULATED: Final = (sys.executable, "-P", "-m", "localcloud.vllm")
READ_IN: Final = (
    "gemma_serving/contracts/collector.json",
    "gemma_serving/contracts/alerts.toml",
    "components/dashboard.toml",
    "gemma_serving/vm_agent/running_server.py",
)
"""Files that name metrics. Those of the load tester and of `gemma smoke` are constants with the names of several releases."""
_METRIC: Final = re.compile(r"(?:vllm:|http_requests_|process_start_time_)[a-z0-9_]+(?:\([a-z_|]+\)[a-z_]*)*")
_HEADERS: Final = ("content-type", "allow")
_NOT_ALWAYS: Final = frozenset({".choices[].delta.content"})
"""Keys of an event that depend on the text: half a character has no content."""
_READY_LIMIT_S: Final = 300.0
_FAILED_LIMIT_S: Final = 300.0
_ANSWER_LIMIT_S: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmReply:
    """A server's answer."""

    status: int
    headers: Mapping[str, str]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningVllm:
    """A server that answers, and its process."""

    name: str
    port: int
    service: Service
    model: str

    def ask(self, method: str, path: str, body: object = None, *, key: str = KEY) -> VllmReply:
        """Return the answer to a request. `body`: JSON, or text as it is."""
        sent = {"Authorization": f"Bearer {key}"} if key else {}
        text = body if isinstance(body, str | None) else json.dumps(body)
        if text is not None:
            sent["Content-Type"] = "application/json"
        connection = http.client.HTTPConnection(HOST, self.port, timeout=_ANSWER_LIMIT_S)
        try:
            connection.request(method, path, text, sent)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return VllmReply(status=answer.status, headers=found, text=answer.read().decode(errors="replace"))
        finally:
            connection.close()

    def log(self) -> str:
        """Return the log."""
        return self.service.log.read_text(encoding="utf-8", errors="replace")


def stack_words() -> Sequence[str]:
    """Return the words after the model in the stack's command line, with speculation."""
    settings = stack_settings(STACK, project="local-project", folder=ROOT)
    question = with_changes(to_question(settings, ROOT), {"vllm.speculative_config": SPECULATION})
    options = with_served_name(settings, plan(question).vllm)
    return server_arguments(settings, options, model_or_path=settings.model)[1:]


@contextmanager
def running(
    home: RealHome, name: str, words: Sequence[str], vllm: RealVllmHome | None = None
) -> Generator[RunningVllm]:
    """Start a server with a stack's words, yield it when it answers, and stop it. Without `vllm`, the simulated one."""
    port = free_port()
    model = stack_settings(STACK, project="local-project", folder=ROOT).model
    mounted = f"/mnt/models/{model.rpartition('/')[2]}"
    program = [str(launcher(home, vllm))] if vllm is not None else SIMULATED
    variables = {
        "VLLM_API_KEY": KEY,
        "VLLM_MAX_N_SEQUENCES": "64",
        "VLLM_SIM_BIND_HOST": HOST,
        "VLLM_SIM_BIND_PORT": str(port),
        "VLLM_SIM_ACCELERATOR": "nvidia-l4",
        "VLLM_SIM_CLOCK_SPEED": "5000",
        "VLLM_SIM_MOUNTS_FILE": str(_mounts(home)),
        "PYTHONPATH": str(ROOT / "packages"),
        "PYTHONUNBUFFERED": "1",
    }
    more = ["--enforce-eager"] if vllm is None else []  # the replacement of vllm_here
    service = Service(
        [*program, "vllm", "serve", mounted, *words, *more], home.results / f"answers-{name}.log", variables
    )
    server = RunningVllm(name=name, port=port, service=service, model=model)
    try:
        service.start(lambda: _is_ready(server), limit_s=_READY_LIMIT_S)
        yield server
    finally:
        service.stop()


def _mounts(home: RealHome) -> Path:
    """Write the simulated server's list of mounts, with the model's files as a stack mounts them. The real one has its own folder."""
    name = stack_settings(STACK, project="local-project", folder=ROOT).model.rpartition("/")[2]
    files = {f"{name}/{file}": 1000 for file in ("config.json", "tokenizer.json", "model.safetensors")}
    path = home.results / "mounts.json"
    path.write_text(json.dumps([{"path": "/mnt/models", "files": files, "options": {}, "readable": True}]))
    return path


def _is_ready(server: RunningVllm) -> bool:
    with suppress(OSError, http.client.HTTPException):
        return server.ask("GET", "/health").status == http.HTTPStatus.OK
    return False


def compare_answers(requests: Sequence[Mapping[str, Any]], real: RunningVllm, simulated: RunningVllm) -> str:
    """Send each request to both. Return how many are the same. Fails with each difference."""
    faults = list[str]()
    own = list[str]()
    for request in requests:
        method, _, path = str(request["path"]).partition(" ")
        body = body_of(request, real.model)
        key = KEY if request.get("key", True) else ""
        found = [server.ask(method, path, body, key=key) for server in (real, simulated)]
        differences = list(reply_differences(*found, own=bool(request.get("own"))))
        if request.get("own"):
            own.append(str(request["own"]))
        if differences:
            faults.append(f"{request['path']} {json.dumps(body)[:90] if body else ''}: {'; '.join(differences)}")
    assert not faults, f"{len(faults)} differ: " + " || ".join(faults)
    return f"the simulated words are its own in {len(own)}: {'; '.join(own)}"


def body_of(request: Mapping[str, Any], model: str) -> object:
    """Return the body of a request in answers.toml: JSON, text, or None."""
    if "text" in request:
        return request["text"]
    if "chat" in request:
        return {"model": model, "messages": [{"role": "user", "content": "Hello."}], "max_tokens": 4, **request["chat"]}
    if "body" not in request:
        return None
    prompt = {"prompt": [5] * request["tokens"]} if "tokens" in request else {}
    return {"model": model, **prompt, **request["body"]}


def reply_differences(real: VllmReply, simulated: VllmReply, *, own: bool) -> Iterator[str]:
    """Yield each difference between two answers. `own`: the words of an error may differ."""
    if real.status != simulated.status:
        yield f"status {real.status}, simulated {simulated.status} ({simulated.text[:80]})"
        return
    for name in _HEADERS:
        if real.headers.get(name) != simulated.headers.get(name):
            yield f"{name} {real.headers.get(name)}, simulated {simulated.headers.get(name)}"
    if real.status >= http.HTTPStatus.BAD_REQUEST:
        yield from _differing_errors(real.text, simulated.text, own=own)
        return
    shapes = [shapes_of(answer.text) for answer in (real, simulated)]
    for index in range(max(map(len, shapes))):
        first = _shape_at(shapes[0], index)
        second = _shape_at(shapes[1], index)
        if first != second:
            yield f"keys only real: {sorted(first - second)}, only simulated: {sorted(second - first)}"


def _shape_at(shapes: Sequence[frozenset[str]], index: int) -> frozenset[str]:
    return shapes[index] if index < len(shapes) else frozenset()


def _differing_errors(real: str, simulated: str, *, own: bool) -> Iterator[str]:
    left = _error(real)
    right = _error(simulated)
    for name in sorted(left.keys() | right.keys()):
        is_worded = name in {"message", "param"}
        if left.get(name) != right.get(name) and not (own and is_worded):
            yield f"{name} {left.get(name)!r}, simulated {right.get(name)!r}"


def _error(text: str) -> Mapping[str, object]:
    try:
        found = json.loads(text)
    except ValueError:
        return {"body": text}
    body = as_mapping(found)
    error = body.get("error", body)
    return as_mapping(error) or {"error": error}


def shapes_of(text: str) -> Sequence[frozenset[str]]:
    """Return the keys of a JSON body, or of each kind of event of a stream in order. A null and a value are the same kind."""
    if not text.startswith("data: "):
        return [keys_of(json.loads(text))] if text else []
    found = list[frozenset[str]]()
    for line in filter(None, text.splitlines()):
        payload = line.removeprefix("data: ")
        shape = frozenset({payload}) if payload == "[DONE]" else keys_of(json.loads(payload)) - _NOT_ALWAYS
        if not found or found[-1] != shape:
            found.append(shape)
    return found


def keys_of(value: object, place: str = "") -> frozenset[str]:
    """Return the path of each key of a JSON value. Elements of a list share a path."""
    if isinstance(value, Mapping):
        given = cast("Mapping[str, object]", value)
        inner = (keys_of(item, f"{place}.{name}") for name, item in given.items())
        return frozenset({f"{place}.{name}" for name in given}).union(*inner)
    if isinstance(value, list):
        return frozenset[str]().union(*(keys_of(item, f"{place}[]") for item in cast("list[object]", value)))
    return frozenset()


def read_metrics() -> Sequence[tuple[str, ...]]:
    """Return the metrics that the project's code reads. Of several names, those of other releases, the first that exists counts."""
    named = {
        name
        for file in READ_IN
        for found in _METRIC.findall((ROOT / file).read_text(encoding="utf-8"))
        for name in expand_pattern(found)
    }
    constants = [value for module in (loadtest_metrics, checks_server) for value in vars(module).values()]
    tuples = [cast("tuple[object, ...]", value) for value in constants if isinstance(value, tuple)]
    listed = {tuple(map(str, names)) for names in tuples if names and str(names[0]).startswith("vllm:")}
    return sorted({*((name,) for name in named), *listed})


def expand_pattern(pattern: str) -> Iterator[str]:
    """Yield the names that a pattern such as `a_(b|c)_total` matches."""
    head, opened, rest = pattern.partition("(")
    if not opened:
        yield pattern
        return
    choices, _, tail = rest.partition(")")
    for choice in choices.split("|"):
        yield from expand_pattern(f"{head}{choice}{tail}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposition:
    """The types and the labels of a server's metrics, by name."""

    types: Mapping[str, str]
    labels: Mapping[str, frozenset[str]]

    @property
    def names(self) -> AbstractSet[str]:
        """The names of all samples, and of the histograms without their endings."""
        return self.labels.keys() | self.types.keys()


def exposition(text: str) -> Exposition:
    """Read Prometheus text."""
    types = dict[str, str]()
    labels = dict[str, frozenset[str]]()
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            types[name] = kind
        elif found := re.match(r"([\w:]+)(?:\{(.*)\})? ", line):
            labels[found[1]] = labels.get(found[1], frozenset()) | set(re.findall(r'(\w+)="', found[2] or ""))
    return Exposition(types=types, labels=labels)


def compare_metrics(real: RunningVllm, simulated: RunningVllm) -> str:
    """Compare what the code reads, and what the simulated server has. Fails."""
    left = exposition(real.ask("GET", "/metrics").text)
    right = exposition(simulated.ask("GET", "/metrics").text)
    faults = list(metric_faults(left, right, read_metrics()))
    assert not faults, "; ".join(faults)
    return (
        f"{len(read_metrics())} are read, the simulated server has {len(right.labels)}, the real one {len(left.labels)}"
    )


def metric_faults(real: Exposition, simulated: Exposition, read: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Yield each metric that is read and that one of both lacks, and each name, type or label that only the simulated server has."""
    for names in read:
        first = next((name for name in names if name in real.names), "")
        second = next((name for name in names if name in simulated.names), "")
        if not first or first != second:
            yield f"{names[0]} is read, but the real server has {first or 'none'}, the simulated one {second or 'none'}"
    for name, labels in sorted(simulated.labels.items()):
        invented = labels - real.labels.get(name, frozenset())
        if name not in real.labels:
            yield f"only the simulated server has {name}"
        elif invented:
            yield f"only the simulated {name} has {', '.join(sorted(invented))}"
    for name, kind in sorted(simulated.types.items()):
        if real.types.get(name) != kind:
            yield f"the type of {name} is {real.types.get(name, 'none')}, simulated {kind}"


def answer_to_sigterm(server: RunningVllm) -> str:
    """Send SIGTERM while a request runs, and return what its client got and the seconds. Fails."""
    body = {"model": server.model, "prompt": "Hello.", "max_tokens": 4000, "ignore_eos": True}
    got = list[str]()
    client = threading.Thread(target=lambda: got.append(_last_words(server, body)), daemon=True)
    client.start()
    time.sleep(1.0)
    os.kill(server.service.process_id, signal.SIGTERM)
    began_s = time.monotonic()
    time.sleep(0.5)
    refused = False
    with suppress(http.client.HTTPException):
        try:
            server.ask("GET", "/health")
        except ConnectionRefusedError:
            refused = True
    while server.service.runs and time.monotonic() - began_s < END_LIMIT_S:
        time.sleep(0.05)
    took_s = time.monotonic() - began_s
    assert refused, f"{server.name} answered a new connection after SIGTERM"
    if server.service.runs:
        server.service.kill()  # as Cloud Run does
        client.join(_ANSWER_LIMIT_S)
        return f"still ran after {END_LIMIT_S:.0f} s, then killed: {got[0]}"
    assert server.service.exit_code == 0, f"{server.name} exited with {server.service.exit_code}"
    client.join(_ANSWER_LIMIT_S)
    return f"{got[0]}, {took_s:.1f} s"


def _last_words(server: RunningVllm, body: Mapping[str, object]) -> str:
    try:
        answer = server.ask("POST", "/v1/completions", body)
        return str(json.loads(answer.text)["choices"][0]["finish_reason"])
    except (OSError, http.client.HTTPException, ValueError, KeyError):
        return "cut off"


def compare_flags(home: RealHome, vllm: RealVllmHome) -> str:
    """Return how many flags both have. Fails with each flag of the simulated server that no release has."""
    done = run([str(vllm.programs / "vllm"), "serve", "--help=all"], environment=OFFLINE, folder=home.results)
    assert done.returncode == 0, f"`vllm serve --help=all` ended with {done.returncode}"
    real = set(re.findall(r"(?<![\w-])--[a-z0-9][\w-]*", done.stdout))
    older = {line.split()[0] for line in data_file("flags.json")["flags"]}
    simulated = {
        flag
        for action in build_parser("vllm serve")._actions  # noqa: SLF001 - argparse has no other list
        for flag in action.option_strings[:1]
        if flag.startswith("--")
    }
    invented = simulated - real - older
    assert not invented, f"only the simulated server has {', '.join(sorted(invented))}"
    return f"{len(simulated & real)} flags of this release, {len(simulated - real)} of earlier ones"


def compare_start(start: Mapping[str, Any], home: RealHome, vllm: RealVllmHome) -> str:
    """Start both with words that fail. Return the real server's words. Fails."""
    simulated_model = stack_settings(STACK, project="local-project", folder=ROOT).model
    left = _failed(start, home, [str(vllm.programs / "vllm")], str(vllm.folder / MODEL), "real")
    right = _failed(start, home, SIMULATED, simulated_model, "simulated")
    for name, (code, cause, words) in (("real", left), ("simulated", right)):
        assert code == start["exit"], f"{name}: exit code {code}: {words}"
        assert cause == start["cause"], f"{name}: the cause is {cause or 'unknown'}: {words}"
    return left[2]


def _failed(
    start: Mapping[str, Any], home: RealHome, program: Sequence[str], model: str, name: str
) -> tuple[int | None, str, str]:
    empty = home.results / "empty"
    empty.mkdir(exist_ok=True)
    words = [str(word).format(model=model, empty=empty) for word in start["words"]]
    log = home.results / f"start-{start['name'].replace(' ', '-')}-{name}.log"
    variables = {**OFFLINE, "PYTHONPATH": str(ROOT / "packages"), "VLLM_SIM_CLOCK_SPEED": "5000"}
    variables |= {
        "VLLM_SIM_ACCELERATOR": "nvidia-l4",
        "PATH": f"{home.real_vllm.programs}{os.pathsep}{os.environ['PATH']}",
    }
    service = Service([*program, "serve", *words, f"--port={free_port()}", f"--host={HOST}"], log, variables)
    try:
        service.start(lambda: True)
        wait_until(lambda: not service.runs, f"the end of {name} (log: {log})", _FAILED_LIMIT_S)
    finally:
        service.kill()
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    words = reading_of("\n".join(lines)).error or " ".join(lines[-2:])
    return service.exit_code, cause_name(lines), words[:200]


def cause_name(lines: Sequence[str]) -> str:
    """Return the name of the first known cause that a log shows, empty if it shows none."""
    for name, known in known_causes().items():
        if known.get("target") in {None, "cloud-run"} and any(re.search(known["pattern"], line) for line in lines):
            return name
    return ""
