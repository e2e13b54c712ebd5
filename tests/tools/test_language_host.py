"""The language host stand-in, asked over its own protocol."""

import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import grpc
import pytest
from google.protobuf.struct_pb2 import Struct
from pulumi.runtime.proto import language_pb2, language_pb2_grpc

from dev.tools.engine import dependencies, language_host

pytestmark = pytest.mark.long

RUNNER = """
import json, os, sys
print("args", sys.argv[1:])
config = json.loads(os.environ["PULUMI_CONFIG"])
sys.exit(int(config.get("p:exit", "0")))
"""


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    folder = tmp_path_factory.mktemp("host")
    runner = folder / "runner.py"
    runner.write_text(RUNNER)
    process = subprocess.Popen(
        [sys.executable, "-P", language_host.__file__, "--exec", str(runner), "127.0.0.1:1"],
        env={**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "PATH": ""},  # nothing is built there
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


def install(host, folder, *, is_plugin, root=None, **options):
    info = program_info(root or folder, folder, **options)
    request = language_pb2.InstallDependenciesRequest(info=info, is_plugin=is_plugin)
    chunks = list(host[1].InstallDependencies(request, timeout=300))
    return b"".join(chunk.stdout + chunk.stderr for chunk in chunks).decode()


def program_info(root, folder, **options):
    given = Struct()
    given.update(options)
    return language_pb2.ProgramInfo(root_directory=str(root), program_directory=str(folder), options=given)


def requirements_of(folder, text="./tiny-1.0-py3-none-any.whl\n"):
    """Write a wheel that needs no registry, and requirements.txt that names it."""
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / "tiny-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny.py", "SIZE = 3\n")
        wheel.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        wheel.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("tiny-1.0.dist-info/RECORD", "")
    (folder / "requirements.txt").write_text(text)
    return folder


def test_it_never_changes_the_environment_that_it_runs_in(host, tmp_path, subtests):
    """The engine asks before it starts a folder with PulumiPlugin.yaml; `make setup` has installed the packages."""
    checkout = Path(__file__).parents[2]
    provider = checkout / "packages" / "gcp-tpu"
    with subtests.test("a plugin of this checkout"):
        assert install(host, provider, is_plugin=True, virtualenv="../../.venv") == ""
    with subtests.test("one that names no environment"):
        assert install(host, provider, is_plugin=True) == ""
        assert not (provider / "venv").exists()
    with subtests.test("a program that names none"):
        told = install(host, requirements_of(tmp_path / "program"), is_plugin=False)
        assert "set `virtualenv: venv` under `runtime.options` in Pulumi.yaml" in told
        assert not (tmp_path / "program" / "venv").exists()


def test_a_plugin_folder_gets_an_environment_of_its_own_and_runs_in_it(host, tmp_path, subtests):
    folder = requirements_of(tmp_path / "plugin")
    (folder / "__main__.py").write_text("import sys, tiny; print(tiny.SIZE, sys.prefix)")
    told = install(host, folder, is_plugin=True)
    assert f"Creating the virtual environment {folder}/venv\n" in told
    assert "Successfully installed tiny-1.0" in told
    request = language_pb2.RunPluginRequest(kind="resource", pwd=str(tmp_path), info=program_info(folder, folder))
    chunks = list(host[1].RunPlugin(request, timeout=60))
    assert b"".join(chunk.stdout for chunk in chunks).decode() == f"3 {folder}/venv\n"
    with subtests.test("pip's error is shown with its last lines"):
        requirements_of(folder, "./absent-1.0-py3-none-any.whl\n")
        with pytest.raises(grpc.RpcError) as failed:
            install(host, folder, is_plugin=True)
        lines = failed.value.details().splitlines()
        assert lines[0].startswith(
            f"Installing {folder}/requirements.txt failed: `{folder}/venv/bin/python -m pip install"
        )
        assert lines[0].endswith("exited with code 1. Last lines:")
        assert any("absent-1.0-py3-none-any.whl" in line for line in lines[1:])


def test_what_cannot_be_installed_is_refused_and_nothing_is_created(host, tmp_path, subtests):
    folder = requirements_of(tmp_path / "program")
    (folder / "data").mkdir()
    (folder / "data" / "file").write_text("kept")
    for name, options, words in (
        ("another tool", {"virtualenv": "venv", "toolchain": "uv"}, "runtime.options.toolchain is uv"),
        ("a folder with other files", {"virtualenv": "data"}, f"{folder}/data, which is not a virtual environment"),
        ("a file", {"virtualenv": "requirements.txt"}, "requirements.txt, which is not a virtual environment"),
    ):
        with subtests.test(name), pytest.raises(grpc.RpcError, match=words):
            install(host, folder, is_plugin=False, **options)
    assert not (folder / "venv").exists()


def test_a_generated_sdk_is_added_to_the_requirements_once(host, tmp_path, subtests):
    module = tmp_path / "sdks" / "gcp-tpu" / "pulumi_gcp_tpu"
    module.mkdir(parents=True)
    (module / "pulumi-plugin.json").write_text("{}")
    request = language_pb2.LinkRequest(info=program_info(tmp_path, tmp_path))
    request.packages.add(path="sdks/gcp-tpu")
    with subtests.test("no requirements.txt"), pytest.raises(grpc.RpcError, match=r"requirements\.txt not found"):
        host[1].Link(request, timeout=60)
    (tmp_path / "requirements.txt").write_text("# ours\npulumi>=3,<4")
    for _ in range(2):
        answer = host[1].Link(request, timeout=60)
        assert answer.import_instructions.endswith(":\n\n  import pulumi_gcp_tpu as gcp_tpu\n")
        assert (tmp_path / "requirements.txt").read_text() == "# ours\npulumi>=3,<4\nsdks/gcp-tpu\n"


def test_an_sdk_needs_go_to_be_generated(host, tmp_path):
    """The fixture's cache is empty, and nothing is built there."""
    request = language_pb2.GeneratePackageRequest(directory=str(tmp_path / "sdk"), schema="{}", loader_target="x")
    with pytest.raises(grpc.RpcError) as refused:
        host[1].GeneratePackage(request, timeout=60)
    assert (
        "`go`, needed to generate an SDK, is not on PATH. Install Go 1.26 or newer, or Pulumi"
        in refused.value.details()
    )
    assert not (tmp_path / "sdk").exists()


def test_the_steps_of_an_installation(tmp_path, subtests):
    (tmp_path / "requirements.txt").write_text("")
    venv = tmp_path / "venv"

    def commands():
        return [[*step.command[-2:]] for step in dependencies.steps(tmp_path, venv)]

    requirements = ["-r", "requirements.txt"]
    with subtests.test("an environment is created before its packages are installed"):
        assert commands() == [["venv", str(venv)], requirements]
    with subtests.test("an environment without pip, as an interrupted creation leaves it, is created again"):
        (venv / "bin").mkdir(parents=True)
        (venv / "bin" / "python").touch()
        (venv / "pyvenv.cfg").touch()
        assert commands() == [["venv", str(venv)], requirements]
    with subtests.test("a complete one is used"):
        (venv / "lib" / "python3.12" / "site-packages" / "pip").mkdir(parents=True)
        assert commands() == [requirements]


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
