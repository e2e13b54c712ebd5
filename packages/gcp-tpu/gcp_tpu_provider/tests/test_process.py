"""The plugin as the engine starts it: a process that prints its port, speaks gRPC, and ends quietly."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import requests
from google.protobuf import empty_pb2
from google.rpc import status_pb2
from pulumi.runtime.proto import engine_pb2, engine_pb2_grpc, plugin_pb2, provider_pb2, provider_pb2_grpc

from gcp_tpu_provider import TOKEN, VERSION, wire
from gcp_tpu_provider.properties import inputs
from gcp_tpu_provider.tests.google_bodies import google_body
from gcp_tpu_provider.tests.harness import URN, wanted

HOME = Path(__file__).parents[2]
PLUGIN = HOME / "pulumi-resource-gcp-tpu"


@contextmanager
def plugin(**environment: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    process = subprocess.Popen(
        [str(PLUGIN)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )
    assert process.stdout
    port = int(process.stdout.readline())
    try:
        yield process, port
    finally:
        process.kill()
        process.wait()


def stub(port: int) -> Any:
    return provider_pb2_grpc.ResourceProviderStub(grpc.insecure_channel(f"127.0.0.1:{port}"))


class EngineLog(engine_pb2_grpc.EngineServicer):
    def __init__(self) -> None:
        self.lines: list[engine_pb2.LogRequest] = []
        self.waits = threading.Event()
        """A line said that the first zone waits for capacity."""

    def Log(self, request: engine_pb2.LogRequest, context: Any) -> empty_pb2.Empty:  # noqa: N802
        self.lines.append(request)
        if "us-east5-a WAITING" in request.message:
            self.waits.set()
        return empty_pb2.Empty()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_prints_its_port_and_ends_quietly_on_a_signal(number: signal.Signals):
    with plugin() as (process, port):
        assert stub(port).GetPluginInfo(empty_pb2.Empty(), timeout=60) == plugin_pb2.PluginInfo(version=VERSION)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out, err) == (0, "", "")


def test_it_ends_when_the_engine_is_gone():
    starter = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import subprocess,time; print(subprocess.Popen(['{PLUGIN}']).pid, flush=True); time.sleep(600)",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert starter.stdout
    assert starter.stdout.readline().strip().isdigit(), "the plugin's process"
    assert starter.stdout.readline().strip().isdigit(), "its port"
    starter.kill()
    starter.wait()
    # The plugin has the pipe from its starter: the pipe ends when both are gone.
    assert starter.stdout.read() == ""


def test_without_its_packages_it_says_in_one_sentence_what_to_install(tmp_path: Path):
    shutil.copytree(HOME, tmp_path / "provider", ignore=shutil.ignore_patterns("__pycache__"))
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    folder = tmp_path / "provider"
    remedies = {  # in a checkout, in an installed plugin, in a Python environment
        "pulumi-resource-gcp-tpu": "Install the provider's requirements (`make setup`",
        "PulumiPlugin.yaml": f"Repeat it: `pulumi plugin install resource gcp-tpu {VERSION} --reinstall`",
        "__main__.py": "Repeat it: `pip install --force-reinstall ./gcp_tpu_provider-",
    }
    for number, (name, remedy) in enumerate(remedies.items()):
        command = [str(folder / name)] if number == 0 else [str(bare / "bin" / "python"), str(folder)]
        environment = {"PATH": os.environ["PATH"], "VIRTUAL_ENV": str(bare)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert (done.returncode, done.stdout) == (1, "")
        assert f"cannot import grpc. {'' if number == 0 else 'The installation '}" in done.stderr
        assert remedy in done.stderr
        assert "Traceback" not in done.stderr
        (folder / name).unlink()


def test_a_start_loads_neither_the_sdk_nor_what_calls_google_and_knows_that_both_are_there():
    start = "import sys; {}; import gcp_tpu_provider.__main__; print([name for name in {} if name in sys.modules])"
    late = ("pulumi.resource", "aiohttp", "google.auth", "requests", "tenacity")
    answers = {}
    for absent in ("", "tenacity"):
        prepared = f"sys.modules[{absent!r}] = None" if absent else "pass"
        command = [sys.executable, "-c", start.format(prepared, late)]
        answers[absent] = subprocess.run(command, cwd=HOME, capture_output=True, text=True, timeout=120, check=False)
    assert (answers[""].stdout, answers[""].stderr) == ("[]\n", "")
    assert answers["tenacity"].returncode == 1
    assert "cannot import tenacity. Install the provider's requirements" in answers["tenacity"].stderr


def test_the_engine_reads_a_partial_creation_and_its_progress_off_the_wire():
    log = EngineLog()
    engine = grpc.server(futures.ThreadPoolExecutor(2))
    engine_pb2_grpc.add_EngineServicer_to_server(log, engine)
    engine_port = engine.add_insecure_port("127.0.0.1:0")
    engine.start()
    cloud = subprocess.Popen([sys.executable, "-c", WAITING_CLOUD], stdout=subprocess.PIPE, text=True)
    assert cloud.stdout
    base = f"http://127.0.0.1:{cloud.stdout.readline().strip()}/"
    try:
        with plugin(CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU=base, GOOGLE_OAUTH_ACCESS_TOKEN="canary-token") as (_, port):
            provider = stub(port)
            provider.Handshake(
                provider_pb2.ProviderHandshakeRequest(engine_address=f"127.0.0.1:{engine_port}"), timeout=60
            )
            checked = provider.Check(provider_pb2.CheckRequest(urn=URN, news=wire.write(wanted())), timeout=60)
            creation = provider.Create.future(provider_pb2.CreateRequest(urn=URN, properties=checked.inputs))
            creation.add_done_callback(lambda _: log.waits.set())
            log.waits.wait()
            assert not creation.done(), creation.exception()
            provider.Cancel(empty_pb2.Empty(), timeout=60)
            error = creation.exception(timeout=60)
            assert error.code() == grpc.StatusCode.UNKNOWN
            status = status_pb2.Status.FromString(dict(error.trailing_metadata())["grpc-status-details-bin"])
            partial = provider_pb2.ErrorResourceInitFailed()
            assert status.details[0].Unpack(partial)
            assert partial.id == "projects/my-project/queuedResources/serve"
            assert wire.read(partial.properties)["state"] == "WAITING_FOR_RESOURCES"
            answer = requests.get(f"{base}v2alpha1/{partial.id}", timeout=60)
            google_body("tpu.v2alpha1", "QueuedResource", answer.json())
            assert partial.inputs == checked.inputs
            assert "interrupted" in partial.reasons[0]
    finally:
        cloud.kill()
        cloud.wait()
        engine.stop(0)
    assert all(line.ephemeral and line.urn == URN for line in log.lines)
    assert "canary" not in str(log.lines)


WAITING_CLOUD = """
import json
from http.server import BaseHTTPRequestHandler, HTTPServer
made = {}
class Handler(BaseHTTPRequestHandler):
    def do(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.command == "POST":
            made.update(json.loads(body))
        found = self.command == "POST" or made
        waiting = {**made, "createTime": "2026-11-20T08:00:00Z", "state": {"state": "WAITING_FOR_RESOURCES"}}
        answer = {"name": "o"} if self.command == "POST" else waiting if made else {}
        text = json.dumps(answer).encode()
        self.send_response(200 if found else 404)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
    do_GET = do_POST = do
    def log_message(self, *args): pass
server = HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


def test_the_schema_describes_every_property_and_names_what_replaces():
    with plugin() as (_, port):
        answered = stub(port).GetSchema(provider_pb2.GetSchemaRequest(), timeout=60).schema
    schema = json.loads(answered)
    assert schema["version"] == VERSION
    resource = schema["resources"][TOKEN]
    assert resource["inputProperties"].items() <= resource["properties"].items(), "each input stands in both"
    for name, item in inputs().items():
        assert not item.choices or item.description.endswith(
            f"One of {', '.join(f'`{each}`' for each in item.choices)}."
        ), name
    described = [*resource["inputProperties"].values(), *resource["properties"].values()]
    for kind in schema["types"].values():
        described += kind["properties"].values()
    assert all(len(item["description"]) > 8 for item in described)
    references = {item["$ref"] for item in described if "$ref" in item} | {
        item["items"]["$ref"] for item in described if "$ref" in item.get("items", {})
    }
    assert {reference.removeprefix("#/types/") for reference in references} == set(schema["types"])
    assert resource["inputProperties"]["acceleratorType"]["replaceOnChanges"]
    assert "replaceOnChanges" not in resource["inputProperties"]["metadata"]


def test_the_configured_project_is_the_default_and_other_settings_are_refused(monkeypatch: pytest.MonkeyPatch):
    with plugin(GOOGLE_CLOUD_PROJECT="", GOOGLE_PROJECT="", CLOUDSDK_CORE_PROJECT="") as (_, port):
        provider = stub(port)
        refused = provider.CheckConfig(provider_pb2.CheckRequest(news=wire.write({"zone": "z"})), timeout=60)
        assert [item.property for item in refused.failures] == ["zone"]
        provider.Configure(provider_pb2.ConfigureRequest(args=wire.write({"project": "configured-1"})), timeout=60)
        checked = provider.Check(provider_pb2.CheckRequest(urn=URN, news=wire.write(wanted(project=None))), timeout=60)
        assert wire.read(checked.inputs)["project"] == "configured-1"
        assert provider.GetMapping(provider_pb2.GetMappingRequest(key="terraform"), timeout=60).provider == ""
        assert provider.Attach(plugin_pb2.PluginAttach(address="127.0.0.1:9"), timeout=60) == empty_pb2.Empty()
        assert (
            provider.DiffConfig(provider_pb2.DiffRequest(), timeout=60).changes == provider_pb2.DiffResponse.DIFF_NONE
        )


def test_automatic_naming_of_the_pulumi_settings_is_respected():
    autonaming = provider_pb2.CheckRequest.AutonamingOptions
    with plugin() as (_, port):
        provider = stub(port)
        news = wire.write(wanted(queuedResourceId=None))
        enforced = autonaming(proposed_name="chosen", mode=autonaming.ENFORCE)
        checked = provider.Check(provider_pb2.CheckRequest(urn=URN, news=news, autonaming=enforced), timeout=60)
        assert wire.read(checked.inputs)["queuedResourceId"] == "chosen"
        disabled = autonaming(mode=autonaming.DISABLE)
        refused = provider.Check(provider_pb2.CheckRequest(urn=URN, news=news, autonaming=disabled), timeout=60)
        assert [item.property for item in refused.failures] == ["queuedResourceId"]
