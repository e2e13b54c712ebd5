"""The start-up script, unchanged, on a machine of fakes."""

import ast
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from gemma_serving import vm_agent
from gemma_serving.components.container_starter import STARTER_SECTIONS
from gemma_serving.components.startup_script import (
    PLAIN_FILE,
    SECTIONS,
    agent_program,
    startup_script,
)
from gemma_serving.contracts.compile_cache import programs_key
from gemma_serving.contracts.serving_document import document_hash, parse_document
from gemma_serving.vm_agent.base import STATE_FOLDER, STATE_FOLDER_VARIABLE, TMPFS
from tests.polling import until
from tests.vm_agent.in_process import calls, seen
from tests.vm_agent.machine import CANARY, IMAGE, Machine, document, free_port
from tests.vm_agent.packed import unpacked

AGENT = Path(vm_agent.__file__).parent
METADATA_VALUE_LIMIT_BYTES = 256 * 1024
"""Largest metadata value that Compute Engine accepts (256 KiB; Compute Engine, "About VM metadata", limitations)."""
LARGEST_SCRIPT_BYTES = 160_000
"""Above this the script has to be fetched from elsewhere: Google's limit is near."""


SECRET = "projects/p/secrets/s/versions/3"


def with_secret(root: Path, **changes: str) -> Machine:
    machine = Machine(root, **changes)
    machine.secrets[SECRET] = CANARY.encode()
    return machine


@pytest.fixture
def machine(tmp_path: Path):
    """The machine of an agent in a process of its own, as systemd starts it."""
    machine = with_secret(tmp_path)
    yield machine
    machine.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory):
    """A machine that has served its document: tests look at it and change nothing."""
    machine = with_secret(tmp_path_factory.mktemp("served"))
    compiles = machine.root / "gemma-serving.stuck"
    compiles.touch()
    text_hash = machine.set_document(document(free_port()))
    machine.boot()
    until(lambda: is_phase(machine, "compiling", text_hash), "the server compiles")
    compiles.unlink()
    until(lambda: is_phase(machine, "ready", text_hash), "the server is ready")
    yield machine
    machine.close()


def is_phase(machine: Machine, phase: str, text_hash: str) -> bool:
    guest = machine.guest()
    return guest.get("phase") == phase and guest.get("document-hash") == text_hash


def test_the_script_is_constant_small_enough_for_metadata_and_python_3_10():
    script = startup_script()
    assert script.startswith("#!/usr/bin/env python3\n")
    assert script.isascii()
    assert len(script) < LARGEST_SCRIPT_BYTES < METADATA_VALUE_LIMIT_BYTES
    ast.parse(script, feature_version=(3, 10))
    tree = ast.parse(agent_program(), feature_version=(3, 10))
    imported = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    assert {name.partition(".")[0] for name in imported} <= set(sys.stdlib_module_names)
    assert SECTIONS[-1] == "gemma_serving.vm_agent.entry"
    carried = {"gemma_serving.vm_agent.path_guard"}  # as a text, for the server's container
    assert {f"gemma_serving.vm_agent.{path.stem}" for path in AGENT.glob("[!_]*.py")} == {*_of_the_agent(), *carried}
    ast.parse((AGENT / "path_guard.py").read_text(encoding="utf-8"), feature_version=(3, 10))


def _of_the_agent() -> set[str]:
    return {name for name in (*SECTIONS, *STARTER_SECTIONS) if name.startswith("gemma_serving.vm_agent.")}


def test_the_script_holds_the_joined_program_and_is_the_same_in_every_process():
    """A preview on another machine must not show a change: the text depends on nothing but the program."""
    assert unpacked(startup_script()) == agent_program()
    code = "from gemma_serving.components.startup_script import startup_script as s; import hashlib; print(hashlib.sha256(s().encode()).hexdigest())"
    seeds = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert seeds == [f"{hashlib.sha256(startup_script().encode()).hexdigest()}\n"] * 2


def test_a_disk_that_takes_no_file_does_not_stop_the_program(machine: Machine):
    (machine.root / "state").write_text("not a folder")
    assert machine.boot().returncode == 0


def test_no_two_sections_define_the_same_name():
    defined: list[str] = []
    for node in ast.parse(agent_program()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined.append(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            defined += [target.id for target in targets if isinstance(target, ast.Name)]
    assert sorted(set(defined)) == sorted(defined)


def test_a_boot_without_a_document_says_that_it_waits_for_one_and_writes_the_program_for_people(machine: Machine):
    assert (PLAIN_FILE["folder"], PLAIN_FILE["variable"]) == (STATE_FOLDER, STATE_FOLDER_VARIABLE)
    plain = machine.root / "state" / PLAIN_FILE["name"]
    booted = machine.boot()
    assert booted.returncode == 0, booted.stderr
    until(lambda: "gemma-serving-document" in machine.guest().get("detail", ""), "the agent says what it waits for")
    assert machine.guest()["phase"] == "starting"
    unit = json.loads((machine.root / "systemd-run.log").read_text())
    assert "--unit=gemma-serving-agent" in unit
    assert "--property=Restart=always" in unit
    assert plain.read_text() == agent_program()
    plain.write_text("another release")
    machine.cut_power()
    machine.boot()
    until(lambda: plain.read_text() == agent_program(), "the next boot writes it again")


def test_a_document_becomes_a_ready_server_and_every_phase_is_told(served: Machine):
    text = served.attributes["gemma-serving-document"]
    phases = [phase for phase, seen_hash in served.moments() if seen_hash == document_hash(text)]
    told = [phase for phase in phases if phase != "fetching weights"]  # in parallel, and the last of both is told
    assert told == ["starting", "pulling image", "loading", "compiling", "ready"]
    assert served.guest()["updated-at"].endswith("Z")
    assert served.guest()["detail"] == ""
    (run,) = calls(served, "run")
    assert {"-d", "--net=host", "--shm-size=10240m", "--cap-drop=ALL", "--ulimit=memlock=-1"} <= set(run)
    assert "--privileged" not in run
    assert not [word for word in run if word.startswith("--volume=/dev/shm")]
    assert served.guest()["container"].endswith("no-cgroups has no version 2 control groups")
    assert {"--log-driver=json-file", "--log-opt=max-size=100m", "--log-opt=max-file=3"} <= set(run)
    assert run[run.index(IMAGE) :] == [
        IMAGE,
        "serve",
        "google/gemma-4-E2B-it",
        f"--port={json.loads(text)['port']}",
        "--max-model-len=16384",
    ]
    assert "--entrypoint=vllm" in run
    assert {f"--volume={served.root}/huggingface:/mnt/huggingface", "--env=HF_HOME=/mnt/huggingface"} <= set(run)
    key = programs_key(parse_document(text))
    assert f"--volume=/mnt/compile_cache/{key}:/dev/shm/vllm_cache" in run


def test_the_secret_reaches_the_server_through_a_private_file_in_memory_and_is_nowhere_else(served: Machine):
    assert seen(served)[0]["env"]["HF_TOKEN"] == CANARY
    log = (served.root / "docker.log").read_text()
    assert "env file 0o600 in /dev/shm" in log
    assert CANARY not in log
    assert "vm-token" not in log
    assert CANARY not in (served.root / "agent.log").read_text()
    assert CANARY not in json.dumps(served.published)
    env_file = next(word for word in calls(served, "run")[0] if word.startswith("--env-file=")).partition("=")[2]
    assert not Path(env_file).exists()


def test_a_pull_from_artifact_registry_logs_in_outside_dockers_own_configuration(served: Machine):
    login = next(call for call in served.docker_calls() if call[0] == "login")
    assert login[1:] == ["--username=oauth2accesstoken", "--password-stdin", "https://us-docker.pkg.dev"]
    folder = next(line for line in (served.root / "docker.log").read_text().splitlines() if line.startswith("login in"))
    assert folder.split(" in ")[1].startswith(f"{TMPFS}/")
    assert not Path(folder.split(" in ")[1]).exists()


def test_a_crash_is_told_with_the_servers_last_lines_also_in_cloud_logging_and_without_the_secret(machine: Machine):
    port = free_port()
    text_hash = machine.set_document(document(port, args=["m", f"--port={port}", "--crash"]))
    machine.boot()
    until(lambda: is_phase(machine, "retrying", text_hash), "the crash is reported")
    detail = machine.guest()["detail"]
    assert "ValueError: no such flag" in detail
    assert "the token is [masked]" in detail
    assert detail.endswith("ValueError: no such flag (exit code 3)")
    until(lambda: "ValueError: no such flag" in machine.log_lines("server"), "the server's lines are written")
    until(lambda: any("retrying" in line for line in machine.log_lines("agent")), "the phase is written")
    assert "the token is [masked]" in machine.log_lines("server")
    assert any("retrying. ValueError: no such flag (exit code 3)" in line for line in machine.log_lines("agent"))
    assert CANARY not in json.dumps([machine.published, machine.shipped]) + (machine.root / "agent.log").read_text()


def test_a_restarted_agent_takes_over_the_running_server_and_writes_no_line_twice(machine: Machine):
    text_hash = machine.set_document(document(free_port()))
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        machine.boot()  # whatever a shell starts in the background ignores Ctrl-C; the agent still ends when it is stopped
    finally:
        signal.signal(signal.SIGINT, before)
    until(lambda: is_phase(machine, "ready", text_hash), "the server is ready")
    printed = machine.vm.log("gemma-serving").read_text().splitlines()
    until(lambda: machine.log_lines("server") == printed, "the server's lines are written")
    machine.stop_agent()
    machine.published.clear()
    machine.boot()
    until(lambda: is_phase(machine, "ready", text_hash), "the second agent sees the server")
    until(lambda: len(machine.log_lines("agent")) > len(set(machine.log_lines("agent"))), "it writes again")
    assert machine.log_lines("server") == printed
    assert len(calls(machine, "run")) == 1


def pythons() -> list[str]:
    """This interpreter, and Python 3.10 where the machine has one that starts: the TPU machine's version."""
    candidates = [shutil.which("python3.10"), *Path.home().glob(".pyenv/versions/3.10.*/bin/python3.10")]
    answers = {
        str(path): subprocess.run([path, "--version"], capture_output=True, check=False) for path in candidates if path
    }
    return [sys.executable, *(path for path, answer in answers.items() if answer.stdout.startswith(b"Python 3.10."))]


@pytest.mark.parametrize("python", pythons())
def test_the_script_needs_nothing_but_a_standard_library(tmp_path: Path, python: str):
    load = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='checked')"
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(startup_script())
        file.flush()
        argv = [python, "-I", "-S", "-c", load, file.name]
        folder = {PLAIN_FILE["variable"]: str(tmp_path)}
        done = subprocess.run(argv, env=folder, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("python", pythons()[1:])
def test_the_program_serves_on_the_python_of_a_tpu_machine(tmp_path: Path, python: str):
    machine = Machine(tmp_path, python=python)
    try:
        text_hash = machine.set_document(document(free_port(), secretEnv={}))
        machine.boot()
        until(lambda: is_phase(machine, "ready", text_hash), "the server is ready")
    finally:
        machine.close()
