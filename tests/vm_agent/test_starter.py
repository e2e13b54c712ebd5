"""The starter of a Cloud Run container: what it copies and restores before the server, and what it saves when that is ready."""

import hashlib
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gemma_serving.components.container_starter import container_command, starter_program
from gemma_serving.contracts.container_start import ContainerStart, GraphCache, graphs_folder, parse_start
from gemma_serving.contracts.path_guard import GUARD_ARGUMENT, GUARD_MODULE
from gemma_serving.contracts.serving_document import BucketWeights
from gemma_serving.vm_agent import path_guard
from gemma_serving.vm_agent.clock import AgentClock
from gemma_serving.vm_agent.cloud import MetadataClient
from gemma_serving.vm_agent.starter import restore_graphs, save_graphs, wait_for_connections
from tests.polling import until
from tests.vm_agent.machine import CANARY, Machine, free_port
from tests.vm_agent.packed import unpacked
from tests.vm_agent.test_compile_cache import KEY_VERSION, SECRET_KEY, put, tar_of

ARGUMENT_LIMIT_BYTES = 32 * 1024
"""Maximum length of an argument. Cloud Run documents no such limit; this is its limit for the value of an environment variable,
assumed for arguments. Linux allows 128 KiB (MAX_ARG_STRLEN, execve(2))."""
FOLDER = "compile-cache/nvidia-l4/0123"
PREFIX = f"{FOLDER}/"
SERVER = """
import http.server, os, sys
print("server", os.getpid(), sys.argv[1:], flush=True)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404); self.send_header("Content-Length", "0"); self.end_headers()
    def log_message(self, *_): pass
http.server.HTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    machine = Machine(tmp_path)
    machine.secrets[KEY_VERSION] = SECRET_KEY.encode()
    for name, value in machine.environment.items():
        monkeypatch.setenv(name, value)
    yield machine
    machine.close()


@pytest.fixture
def cache(tmp_path: Path) -> GraphCache:
    return GraphCache(f"gs://models/{FOLDER}", str(tmp_path / "graphs" / "vllm"), KEY_VERSION)


def fill(cache: GraphCache) -> None:
    for name in ("torch_compile_cache/a1/rank_0_0/model", "modelinfos/one.json"):
        path = Path(cache.path) / name
        path.parent.mkdir(parents=True)
        path.write_bytes(name.encode())


def kept(machine: Machine) -> list[str]:
    return [name for name in machine.objects if name.startswith(FOLDER)]


class TestGraphs:
    def test_a_second_instance_archives_nothing(self, machine: Machine, cache: GraphCache):
        fill(cache)
        put(machine, b"the first one's", prefix=PREFIX)
        save_graphs(MetadataClient(), cache)
        assert len(kept(machine)) == 1

    @pytest.mark.parametrize(
        ("data", "signed", "says"),
        [
            (tar_of({"a": b"x"}), b"longer" * 200, "do not match its name, so it is not used"),
            (b"no archive at all", None, "The server is not affected."),
            (tar_of({"a": bytes(range(256)) * 64})[:700], None, "The server is not affected."),
            (tar_of({"inside": b"x", "../../outside": b"x"}), None, "The server is not affected."),
        ],
        ids=["other-bytes", "no-archive", "cut-short", "outside"],
    )
    def test_an_archive_that_is_not_whole_is_ignored(  # noqa: PLR0917 - a table
        self,
        machine: Machine,
        cache: GraphCache,
        capsys: pytest.CaptureFixture[str],
        data: bytes,
        signed: bytes | None,
        says: str,
    ):
        put(machine, data, prefix=PREFIX, signed=signed)
        assert not restore_graphs(MetadataClient(), cache)
        assert says in capsys.readouterr().err
        assert not (Path(cache.path).parent.parent / "outside").exists()
        assert list(Path(cache.path).parent.rglob("*")) == [], "no server meets half an archive"

    def test_what_others_put_into_the_folder_is_not_read_and_the_next_instance_archives_its_own(
        self, machine: Machine, cache: GraphCache, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ):
        program = tar_of({"a": b"foreign"})
        machine.objects[f"{FOLDER}/{hashlib.sha256(program).hexdigest()}.tar.gz"] = program
        put(machine, program, prefix=PREFIX, key="f0" * 32)
        assert not restore_graphs(MetadataClient(), cache)
        assert "2 of the objects in gs://models/" in capsys.readouterr().err
        assert machine.ranges == []
        fill(cache)
        save_graphs(MetadataClient(), cache)
        there = GraphCache(cache.uri, str(tmp_path / "elsewhere" / "vllm"), cache.key)
        assert restore_graphs(MetadataClient(), there)

    @pytest.mark.parametrize("work", ["restore", "save"])
    def test_a_bucket_that_fails_never_stops_the_server(
        self, machine: Machine, cache: GraphCache, capsys: pytest.CaptureFixture[str], work: str
    ):
        fill(cache)
        machine.denied |= {"GET", "POST"}
        {"restore": restore_graphs, "save": save_graphs}[work](MetadataClient(), cache)
        said = capsys.readouterr().err
        assert "The server is not affected. Grant the service's account roles/storage.objectUser" in said

    def test_a_server_that_compiled_nothing_archives_nothing(self, machine: Machine, cache: GraphCache):
        Path(cache.path).mkdir(parents=True)
        save_graphs(MetadataClient(), cache)
        assert kept(machine) == []


class LateNetwork(AgentClock):
    """Its first `refused` connections to `port` are refused; each pause of the program is a second."""

    def __init__(self, port: int, refused: int):
        self.port, self.left, self.at_s = port, refused, 0.0
        self.listener: socket.socket | None = None

    def now(self) -> float:
        return self.at_s

    def sleep(self, seconds: float) -> None:
        self.at_s += seconds
        self.left -= 1
        if self.left == 0:
            self.listener = socket.create_server(("127.0.0.1", self.port))


@pytest.mark.parametrize(
    ("refused", "ends_s", "said"), [(70, 70, ""), (999, 150, "No connection to 127.0.0.1 worked within 150 s.")]
)
def test_the_first_connections_of_an_instance_may_be_refused_for_more_than_a_minute(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], refused: int, ends_s: int, said: str
):
    clock = LateNetwork(free_port(), refused)
    monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE", f"http://127.0.0.1:{clock.port}/")
    wait_for_connections(clock)
    if clock.listener is not None:
        clock.listener.close()
    assert clock.now() == ends_s
    assert said in "".join(capsys.readouterr())


class TestProgram:
    """The joined program, run as the container runs it: `python3 -c TEXT ARGUMENT COMMAND...`."""

    def run(
        self, machine: Machine, tmp_path: Path, start: ContainerStart, *command: str, **variables: str
    ) -> subprocess.Popen[str]:
        words = [sys.executable, *container_command()[1:], start.text(), *command]
        environment = {**os.environ, **machine.environment, "PORT": str(free_port()), **variables}
        return subprocess.Popen(
            words, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def test_it_becomes_the_server_after_the_copy_and_archives_when_that_is_ready(
        self, machine: Machine, cache: GraphCache, tmp_path: Path
    ):
        machine.objects["e2b/config.json"] = b"{}"
        fill(cache)
        machine.objects["lora-0/adapter_config.json"] = b"[]"
        part = BucketWeights("gs://models/lora-0", str(tmp_path / "lora-0"))
        start = ContainerStart(BucketWeights("gs://models/e2b", str(tmp_path / "weights")), cache, (part,))
        process = self.run(machine, tmp_path, start, sys.executable, "-c", SERVER, "serve", "--flag")
        try:
            assert process.stdout is not None
            # The same process, so that signals and the exit code are the server's own.
            assert process.stdout.readline() == f"server {process.pid} ['serve', '--flag']\n"
            assert (tmp_path / "weights/config.json").read_bytes() == b"{}"
            assert (tmp_path / "lora-0/adapter_config.json").read_bytes() == b"[]"
            until(lambda: kept(machine) != [], "an archive")
        finally:
            process.terminate()
            _, said = process.communicate(timeout=60)
        assert "No signed archive of compiled graphs is in gs://models/compile-cache/" in said
        assert CANARY not in said
        assert SECRET_KEY not in said
        assert SECRET_KEY not in " ".join([*container_command(), start.text()])

    def test_the_path_guard_is_first_on_the_path_of_the_server_that_names_it(self, machine: Machine, tmp_path: Path):
        code = f"import {GUARD_MODULE} as g, os; print(g.__file__, g.PathGuard.__name__, os.environ['PYTHONPATH'])"
        for named, found in ((GUARD_ARGUMENT, True), ("--other", False)):
            words = (sys.executable, "-c", code if found else "import os; print(os.environ['PYTHONPATH'])", named)
            process = self.run(machine, tmp_path, ContainerStart(), *words, PYTHONPATH="/of/the/image")
            out, said = process.communicate(timeout=60)
            assert process.returncode == 0, said
            if not found:
                assert out == "/of/the/image\n"
                continue
            file, name, path = out.split()
            assert (name, path) == ("PathGuard", f"{Path(file).parent}:/of/the/image")
            assert Path(file).read_text() == (Path(path_guard.__file__)).read_text()

    def test_without_weights_the_server_is_not_started(self, machine: Machine, tmp_path: Path):
        start = ContainerStart(BucketWeights("gs://models/nothing", str(tmp_path / "weights")), None)
        process = self.run(machine, tmp_path, start, sys.executable, "-c", "print('started')")
        out, said = process.communicate(timeout=60)
        assert (process.returncode, out) == (1, "")
        assert "Cannot start the server: No object under gs://models/nothing/. Stage the model first." in said
        assert "Traceback" not in said

    def test_the_programs_text_is_short_enough_for_one_argument(self):
        text = container_command()[2]
        assert len(text.encode()) < ARGUMENT_LIMIT_BYTES
        assert unpacked(text) == starter_program()
        assert "from contracts" not in starter_program()
        assert "from vm_agent" not in starter_program()


def test_a_start_is_read_back_as_it_was_written():
    whole = ContainerStart(
        BucketWeights("gs://b/m", "/mnt/weights/m"), GraphCache("gs://b/c/k", "/mnt/graphs/vllm", KEY_VERSION)
    )
    parts = ContainerStart(parts=(BucketWeights("gs://b/lora-0", "/mnt/weights/lora-0"),))
    starts = (whole, ContainerStart(), ContainerStart(whole.weights, None), ContainerStart(None, whole.graphs), parts)
    for start in starts:
        assert parse_start(start.text()) == start


def test_graphs_are_shared_by_servers_that_compile_the_same():
    image = f"r/v@sha256:{'a' * 64}"
    flags = ("--port=8000", "--max-model-len=8192", "--load-format=runai_streamer")
    same = graphs_folder(image, "nvidia-l4", "m", flags)
    assert same.startswith("nvidia-l4/")
    assert graphs_folder(image.replace("r/v", "other/v"), "nvidia-l4", "m", ("--port=80", flags[1])) == same
    for image_, gpu, model, given in (
        (image.replace("a", "b"), "nvidia-l4", "m", flags),
        (image, "nvidia-rtx-pro-6000", "m", flags),
        (image, "nvidia-l4", "n", flags),
        (image, "nvidia-l4", "m", ("--max-model-len=4096",)),
    ):
        assert graphs_folder(image_, gpu, model, given) != same
