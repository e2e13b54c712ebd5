"""The language host stand-in, asked over its own protocol."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from google.protobuf import empty_pb2
from google.protobuf.struct_pb2 import Struct
from pulumi.runtime.proto import language_pb2, language_pb2_grpc

from tools.engine import language_host

RUNNER = """
import json, os, sys
print("args", sys.argv[1:])
config = json.loads(os.environ["PULUMI_CONFIG"])
sys.exit(int(config.get("p:exit", "0")))
"""


@pytest.fixture
def host(tmp_path):
    runner = tmp_path / "runner.py"
    runner.write_text(RUNNER)
    process = subprocess.Popen(
        [sys.executable, "-P", language_host.__file__, "--exec", str(runner), "127.0.0.1:1"],
        stdout=subprocess.PIPE,
        text=True,
    )
    port = process.stdout.readline().strip()
    channel = grpc.insecure_channel(f"127.0.0.1:{port}")
    yield process, language_pb2_grpc.LanguageRuntimeStub(channel)
    channel.close()
    process.terminate()
    process.wait(timeout=60)
    process.stdout.close()


def run_request(tmp_path, **config):
    return language_pb2.RunRequest(
        project="p",
        stack="s",
        pwd=str(tmp_path),
        config=config,
        monitor_address="127.0.0.1:2",
        info=language_pb2.ProgramInfo(root_directory=str(tmp_path), program_directory=str(tmp_path), entry_point="."),
    )


@pytest.mark.parametrize(
    ("code", "bail", "error"), [("0", False, ""), ("32", True, ""), ("3", False, "exited with code 3")]
)
def test_a_programs_end_is_told_as_the_engine_expects_it(host, tmp_path, code, bail, error):
    answer = host[1].Run(run_request(tmp_path, **{"p:exit": code}), timeout=30)
    assert answer.bail is bail
    assert error in answer.error


def test_it_says_what_it_is(host):
    about = host[1].About(language_pb2.AboutRequest(), timeout=60)
    assert about.metadata["host"] == "stand-in of tools.engine"
    assert host[1].GetPluginInfo(empty_pb2.Empty(), timeout=60).version
    assert not host[1].GetRequiredPackages(language_pb2.GetRequiredPackagesRequest(), timeout=60).packages


def test_it_installs_nothing_for_a_plugin_folder(host):
    """The engine asks before it starts a folder with PulumiPlugin.yaml; `make setup` has installed the packages."""
    assert not list(host[1].InstallDependencies(language_pb2.InstallDependenciesRequest(), timeout=60))


def test_dependencies_of_the_program_are_listed(host):
    answer = host[1].GetProgramDependencies(language_pb2.GetProgramDependenciesRequest(), timeout=30)
    assert "pulumi" in {dependency.name for dependency in answer.dependencies}


def test_a_plugin_runs_with_its_output_streamed_and_its_exit_code_told(host, tmp_path):
    (tmp_path / "__main__.py").write_text("import sys; print('port'); print('warn', file=sys.stderr); sys.exit(4)")
    request = language_pb2.RunPluginRequest(
        kind="resource",
        pwd=str(tmp_path),
        info=language_pb2.ProgramInfo(root_directory=str(tmp_path), program_directory=str(tmp_path)),
    )
    chunks = list(host[1].RunPlugin(request, timeout=30))
    assert b"".join(chunk.stdout for chunk in chunks) == b"port\n"
    assert b"".join(chunk.stderr for chunk in chunks) == b"warn\n"
    assert chunks[-1].exitcode == 4


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_quietly_on_a_signal(number):
    process = subprocess.Popen(
        [sys.executable, "-P", language_host.__file__, "--exec", "x", "127.0.0.1:1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.stdout.readline()
    os.kill(process.pid, number)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "Traceback" not in stderr


def test_the_interpreter_is_the_projects_own_where_it_names_one(tmp_path):
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("")
    options = Struct()
    options.update({"virtualenv": "venv"})
    info = language_pb2.ProgramInfo(root_directory=str(tmp_path), options=options)
    assert language_host.interpreter(info) == str(python)
    assert language_host.interpreter(language_pb2.ProgramInfo(root_directory=str(tmp_path))) == sys.executable
    assert Path(sys.executable).exists()
