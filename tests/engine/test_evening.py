"""The evening of the critical assumptions on the local cloud: all are tried, each lie of the cloud is found and named, and kills leave nothing."""

import itertools
import json
import os
import random
import re
import signal
import sys
import threading
import time
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import requests

from localcloud.ledger.entries import load
from localcloud.trials.evening import ABSENT_HUB_ID
from tests.engine.conftest import PROJECT, open_workspace

pytestmark = [pytest.mark.engine, pytest.mark.long, pytest.mark.timeout(600)]

CRITICAL = {entry.id: entry for entry in load().critical}
TOMORROW = "disabled-api-keeps-resources"
CRASH = "RuntimeError: Unable to initialize backend 'tpu': UNKNOWN: TPU initialization failed"
PHASE = r'\{"namespace": "gemma-serving", "key": "phase", "value": "[a-z ]+"\}'
FAILED = "".join(
    f'{{"namespace": "gemma-serving", "key": "{key}", "value": {json.dumps(value)}}}{end}'
    for key, value, end in (("phase", "failed", ", "), ("detail", CRASH, ""))
)
REFUSED = (
    '{"error": {"code": 400, "message": "The service has failed; delete it first.", "status": "FAILED_PRECONDITION"}}'
)
OPERATION = '{"name": "projects/p/locations/us-east5-a/operations/lie", "done": true}'
DISABLED = '"error": {"errors": [{"reason": "accessNotConfigured"}], '
LIES = {
    "hub-ids": (f"GET /hub/api/models/{ABSENT_HUB_ID}", None, "{}", 200),
    "first-revision-before-its-grant": ("PATCH /run/v2/.*/services/localcloud-try", None, REFUSED, 400),
    "service-disabled-without-errors": ("GET /cloudbilling/", r'"error": \{', DISABLED, None),
    "tpu-delete-needs-force": (r"DELETE /tpu/.*/queuedResources/[^?]+$", None, OPERATION, 200),
    "run-l4-driver": ("POST /logging/v2/entries:list", r"Version: 535\.129\.03", "Version: 580.65.06", None),
    TOMORROW: ("GET /run/v2/.*us-east4/services$", None, "{}", 200),
    "node-patch": ("GET /tpu/.*/nodes/localcloud-try", r'"gemma": "2"', '"gemma": "1"', None),
    "queued-run-ends": ("POST /tpu/.*/queuedResources", r"(?s).*already exists.*", OPERATION, 200),
    "tpu-guest-attributes-namespace": ("POST /tpu/.*getGuestAttributes", r'"items": \[.*?\]', '"items": []', None),
    "tpu-boot-disk-left": ("POST /tpu/.*getGuestAttributes", "image 18G", "image 61G", None),
    "os-login-shuts-out-metadata-keys": ("POST /tpu/.*getGuestAttributes", "keys-ignored", "keys-admitted", None),
    "tpu-machine-writes-its-log": ("POST /logging/v2/entries:list", None, "{}", 200),
    "tpu-container-reaches-the-chips": ("POST /tpu/.*getGuestAttributes", PHASE, FAILED, None),
    "run-network-without-direct-vpc": ("POST /logging/v2/entries:list", "took 136.86", "took 20.51", None),
}
"""Entry -> the calls that lie (method and path), what is replaced in the response (None: everything), by what, and the status."""


class Liar:
    """A proxy in front of the local cloud that changes responses."""

    def __init__(self, target):
        self.target, self.lies, self.calls = target, [], 0
        self.before = lambda call, body: None  # called before each request is passed on
        liar = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                liar.answer(self)

            do_POST = do_PATCH = do_DELETE = do_PUT = do_HEAD = do_GET  # noqa: N815 - http.server's names

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def answer(self, request):
        self.calls += 1
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        headers = {
            k: v for k, v in request.headers.items() if k.lower() not in {"host", "accept-encoding", "content-length"}
        }
        self.before(f"{request.command} {request.path}", body)
        url = self.target + request.path
        reply = requests.request(request.command, url, data=body, headers=headers, timeout=120, allow_redirects=False)
        status, content = reply.status_code, reply.content
        for calls, pattern, new, code in self.lies:
            if not re.match(calls, f"{request.command} {request.path}"):
                continue
            text = content.decode()
            changed = new if pattern is None else re.sub(pattern, lambda _, new=new: new, text)
            if changed != text:
                content, status = changed.encode(), code or status
        request.send_response(status)
        kept = {
            k: v
            for k, v in reply.headers.items()
            if k.lower()
            not in {"transfer-encoding", "content-length", "connection", "date", "server", "content-encoding"}
        }
        for name, value in kept.items():
            request.send_header(name, value)
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(content)


@pytest.fixture(scope="module")
def evening(tmp_path_factory):
    folder = tmp_path_factory.mktemp("evening")
    (folder / "world.yaml").write_text("base: prepared\n")
    with open_workspace(folder, "--scenario", str(folder / "world.yaml"), serving_speed="200") as opened:
        opened.post(f"serviceusage/v1/projects/{PROJECT}/services/cloudbilling.googleapis.com:disable", {})
        cloud = opened.environment["LOCALCLOUD_URL"]
        opened.liar = Liar(cloud)
        opened.liar.before = partial(_let_only_the_bare_run_end, opened)
        for name, value in opened.environment.items():
            if name not in {"LOCALCLOUD_URL", "GCE_METADATA_HOST"} and value.startswith(cloud):
                opened.environment[name] = value.replace(cloud, opened.liar.url)
        yield opened
        opened.liar.server.shutdown()


_number = itertools.count()


@pytest.fixture
def tried(evening):
    """Run `try` with a journal of its own, and return its report by entry. `only`: the entries."""
    out = evening.folder / f"tried-{next(_number)}.txt"

    def go(*words, only=(), expect=0):
        named = [word for name in only for word in ("--only", name)]
        asked = ("--project", PROJECT, "--yes", "--out", out, "--json", *words, *named)
        answer = evening.run(sys.executable, "-m", "localcloud", "try", *asked, expect=expect)
        report = json.loads(answer.out[answer.out.index("{") :])
        return {row["id"]: row for row in report["trials"]}, report

    go.out = out
    return go


def _let_only_the_bare_run_end(opened, call, body):
    """Let simulated time end the run of a machine without metadata (the entry about its end), and real time those of all others.

    The scenario changes before the request for the machine is passed on, so no machine is measured by both clocks.
    """
    if re.match(r"POST /tpu/.*/queuedResources\?", call):
        opened.change_scenario({"tpu": {"accelerate_run_duration": b'"metadata"' not in body}})


@contextmanager
def lying(evening, name):
    """Let the cloud lie about an entry."""
    evening.liar.lies = [LIES[name]]
    if name == "tpu-container-reaches-the-chips":  # the lie has a detail of its own
        evening.liar.lies.insert(0, ("POST /tpu/.*getGuestAttributes", '"key": "detail"', '"key": "other"', None))
    yield
    evening.liar.lies = []


def left(evening):
    """What trials and their stacks left: resources of theirs, but for a network that Google holds, and APIs that are off."""
    found = [name for part in ("localcloud-try-", "try-tpu", "try-l4") for name in evening.made(part)]
    run = evening.get("serviceusage", f"v1/projects/{PROJECT}/services/run.googleapis.com")
    files = [str(path) for path in (evening.folder / "project").glob("Pulumi.try-*.yaml")]
    return (
        sorted({each for each in found if not _is_record(each)})
        + files
        + ([run["state"]] if run["state"] != "ENABLED" else [])
    )


def _is_record(name):
    """Return whether a name is of what a teardown keeps by design: operations, deleted roles, and the network of a deleted service."""
    return any(part in name for part in ("/operations/", "/roles/", "networks/gemma-try-l4"))


def test_one_command_tries_thirteen_and_the_second_run_the_last(evening, tried):
    found, report = tried("--budget-usd", "3.9", only=CRITICAL)
    verdicts = {name: row["verdict"] for name, row in found.items()}
    assert verdicts == {**dict.fromkeys(CRITICAL, "as assumed"), TOMORROW: "tomorrow"}, found
    assert (report["usd"], report["left"], report["over_budget"]) == (3.9, [], [])
    assert left(evening) == []
    evening.advance(24 * 3600)
    found, report = tried("--second-run")
    assert {name: row["verdict"] for name, row in found.items()} == {TOMORROW: "as assumed"}
    written = tried.out.read_text()
    assert {*re.findall(r"- `(.+)`: ", written)} == CRITICAL.keys()
    assert [word for word in (PROJECT, "localcloud-try-") if word in written] == []
    assert written.startswith("14 of 14 critical assumptions tried, at most 3.90 USD.")


def test_every_critical_entry_has_a_lie():
    assert LIES.keys() == CRITICAL.keys()


@pytest.mark.parametrize("name", LIES)
def test_each_lie_of_the_cloud_is_found_and_named(evening, tried, name):
    with lying(evening, name):
        found, report = tried("--budget-usd", "3.9", only=[name], expect=1 if name != TOMORROW else None)
    row = found[name]
    assert row["verdict"] == "differs", row
    text = tried.out.read_text()
    assert f"- `{name}`: " in text
    assert CRITICAL[name].if_false in text
    print(f"{name}: {row['answered']}")
    assert report["left"] == []


@pytest.mark.parametrize("seed", range(4))
def test_a_kill_at_a_random_moment_leaves_nothing_after_the_next_run(evening, tried, seed):
    moment = random.Random(seed)  # noqa: S311 - a moment, not a secret
    only = ["run-l4-driver", TOMORROW, "node-patch", "tpu-machine-writes-its-log"]
    words = [word for name in only for word in ("--only", name)]
    asked = ("--project", PROJECT, "--yes", "--out", tried.out, "--budget-usd", "9", *words)
    started = evening.begin(sys.executable, "-m", "localcloud", "try", *asked)
    time.sleep(moment.uniform(2, 40))  # the moment of the kill
    if moment.random() < 0.5:
        started.kill()
    else:
        os.killpg(started.pid, signal.SIGKILL)
    started.wait()
    evening.run(sys.executable, "-m", "localcloud", "try", "--project", PROJECT, "--out", tried.out, "--clean-up")
    assert left(evening) == []
