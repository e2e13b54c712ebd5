"""The plugin as the engine starts it: a process that prints its port, speaks gRPC, and ends quietly."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import empty_pb2
from pulumi.runtime.proto import engine_pb2, plugin_pb2, provider_pb2, provider_pb2_grpc

from gcp_tpu_provider import TOKEN, VERSION, wire
from gcp_tpu_provider.engine_log import EngineLog
from gcp_tpu_provider.properties import inputs
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


def test_a_line_of_progress_replaces_the_one_before_and_a_warning_stays():
    sent: list[engine_pb2.LogRequest] = []

    class Stub:
        async def Log(self, line: engine_pb2.LogRequest, timeout: float) -> None:  # noqa: N802, ASYNC109 - as in gRPC
            sent.append(line)

    row = EngineLog(_stub=Stub())
    asyncio.run(row.show(URN, "waits"))
    asyncio.run(row.warn(URN, "ends"))
    assert [(line.urn, line.message, line.ephemeral) for line in sent] == [(URN, "waits", True), (URN, "ends", False)]


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
