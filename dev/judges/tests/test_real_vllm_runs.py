"""`python -m dev.judges.real_vllm`: what it reads, what it refuses, and that no server is left. No vLLM is installed here; its files are recorded."""

import json
import os
import signal
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from dev.judges.real_vllm import __main__ as command
from dev.judges.real_vllm import server
from dev.judges.real_vllm.bench import (
    POINTS,
    BenchMeasurement,
    measure_point,
    their_run,
)
from dev.judges.real_vllm.environment import MODEL, RealVllmError, RealVllmHome
from dev.judges.real_vllm.judge import RealVllmPart, compare_point, count_faults
from dev.judges.real_vllm.smoke import (
    ADAPTERS,
    FEATURES,
    RANK,
    arguments,
    responses_faults,
    smoke_faults,
    write_adapter,
)
from dev.judges.tests.processes import is_gone
from dev.judges.tests.real_vllm_run import measured
from gemma_serving.contracts.features import ServedFeatures
from gemma_serving.contracts.fields import from_json
from localcloud.vllm.arguments import parse
from localcloud.vllm.places import adapter_problem
from localcloud.vllm.settings import read
from tests.polling import until

ROOT = Path(__file__).resolve().parents[3]
RECORDED = ROOT / "tests" / "fixtures" / "vllm_bench"
COUNTERS = {
    "requests": 64.0,
    "input_tokens": 16389.0,
    "output_tokens": 4096.0,
    "ttft": 2.6,
    "e2el": 36.0,
    "decode": 33.4,
}
CORES = server.split_cores(tuple(os.sched_getaffinity(0)))


def recorded(name):
    return json.loads((RECORDED / name).read_text())


def test_a_result_of_vllm_bench_serve_is_read_with_the_surplus_that_its_log_declares():
    run = their_run(recorded("closed-c4.json"), (RECORDED / "closed-c4.log").read_text(), COUNTERS)
    assert (run.requests, run.failed, run.input_tokens, run.output_tokens) == (64, 0, 16389, 4096)
    assert run.surplus_tokens == 5
    assert run.figures["tpot"] == pytest.approx(10.2798, abs=1e-4)
    assert run.figures["throughput"] == pytest.approx(366.497, abs=1e-3)
    fewer = their_run(recorded("closed-c4.json"), "there were 2 fewer tokens than expected", COUNTERS)
    assert fewer.surplus_tokens == -2
    assert their_run(recorded("closed-c4.json"), "", COUNTERS).surplus_tokens == 0


@pytest.mark.parametrize("part", ["smoke", "features"])
def test_the_recorded_report_is_what_random_weights_must_get(part):
    assert smoke_faults(recorded(f"{part}.json"), part) == []
    assert from_json(ServedFeatures, FEATURES).adapters == ("sql", "poems")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda checks: checks[3].update(verdict="passed"), "'chat' must be failed, but is passed"),
        (lambda checks: checks[10].update(verdict="failed"), "'max-model-len' must be passed, but is failed"),
        (lambda checks: checks.pop(4), "the check 'streaming' is missing"),
        (lambda checks: checks.append({**checks[0], "name": "new"}), "the check 'new' is new"),
    ],
)
def test_a_smoke_check_that_comes_out_otherwise_is_a_fault(change, said):
    report = recorded("smoke.json")
    change(report["checks"])
    (found,) = smoke_faults(report, "smoke")
    assert said in found


def test_a_stream_of_responses_must_have_the_text_of_the_response_in_one_piece():
    """Events as vLLM 0.32.0 sends them, without the fields that are not read."""
    whole = {
        "output": [{"type": "reasoning"}, {"type": "message", "content": [{"type": "output_text", "text": "Hi."}]}]
    }
    events = [{"type": "response.created"}, *({"type": "response.output_text.delta", "delta": part} for part in "Hi.")]
    ended = [*events, {"type": "response.completed", "response": whole}]

    def faults(events, whole=whole):
        return responses_faults(
            whole, "".join(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in events)
        )

    assert faults(ended) == []
    assert faults(events) == ["features: /v1/responses ends with response.output_text.delta"]
    assert faults([*events[:-1], ended[-1]]) == ["features: the stream of /v1/responses has 'Hi' instead of 'Hi.'"]
    assert "returned no text" in faults(ended, {"output": []})[0]


def test_the_simulated_server_starts_with_the_arguments_of_features(tmp_path):
    def refused(rank):
        for name, weight in ADAPTERS.items():
            write_adapter(tmp_path / name, rank=rank, weight=weight)
        return adapter_problem(parse(["vllm", "serve", *arguments("simulated/tiny", tmp_path)]), read({}))

    assert refused(RANK) is None
    problem = refused(RANK * 2)
    assert f"LoRA rank {RANK * 2} is greater than max_lora_rank {RANK}." in str(problem)


@pytest.fixture
def simulated_bench(tmp_path):
    """The simulated server under the model's name, in place of vLLM."""
    port, log = server.free_port(), tmp_path / "server.log"
    words = ["vllm", "serve", "simulated/tiny", "--served-model-name", MODEL, "--host", server.HOST]
    words += ["--port", str(port), "--max-model-len", "1024"]
    program = [sys.executable, "-m", "localcloud.vllm", *words]
    with server.running_program(program, ROOT, os.environ, log, CORES.clients) as process:
        url = f"http://{server.HOST}:{port}"
        server.wait_until_ready(process, url, log)
        made = RealVllmHome(folder=tmp_path)
        made.results.mkdir()
        yield BenchMeasurement(home=made, url=url, cores=CORES)


def test_a_run_on_the_simulated_server_has_the_servers_counts_and_marks_what_is_beyond_the_share(simulated_bench):
    mine = simulated_bench.ours(POINTS[1], "c4-1")
    assert count_faults("c4", POINTS[1].asked, [(mine, mine)]) == []
    rows = {row.figure: row for row in compare_point("c4", [(mine, mine)])}
    assert [name for name, row in rows.items() if row.own is None] == ["throughput"]
    # A busy machine may make the client late. Its result then says so.
    assert rows["ttft"].unmarked == 0 or mine.invalid_reasons


class Tools:
    """Both tools, without a server: every run is listed, and `invalid` are the numbers of our runs that say so of themselves."""

    def __init__(self, invalid=()):
        self.listed = []
        self.invalid = invalid
        self.ran = 0

    def ours(self, point, label):
        self.listed.append(f"ours {label}")
        number, self.ran = self.ran, self.ran + 1
        reasons = ("the client's loop was late",) if number in self.invalid else ()
        return measured(requests=16, command=f"command {number}", invalid_reasons=reasons)

    def theirs(self, point, label, command):
        self.listed.append(f"theirs {command}")
        return measured(requests=16)


def test_rounds_alternate_the_tools_and_run_each_printed_command_once():
    tools = Tools()
    outcome = measure_point(POINTS[1], 6, tools.ours, tools.theirs)
    assert [each.partition(" ")[0] for each in tools.listed] == ["ours", *["ours", "theirs", "theirs", "ours"] * 3]
    assert [each for each in tools.listed if "theirs" in each] == [f"theirs command {number}" for number in range(6)]
    assert outcome.faults == ()
    assert "- c4: 6 rounds of 16 requests, 256 in, 64 out" in outcome.lines


def test_a_point_without_a_valid_round_is_a_fault_and_ends():
    tools = Tools(invalid=range(100))
    outcome = measure_point(POINTS[1], 6, tools.ours, tools.theirs)
    assert tools.ran == 13
    assert "c4: our benchmark reports no valid round: round 1: the client's loop was late" in outcome.faults[0]


@pytest.fixture
def home(tmp_path):
    """A home whose `vllm` is the script that a test writes."""
    made = RealVllmHome(folder=tmp_path)
    for folder in (made.programs, made.models, made.results):
        folder.mkdir(parents=True)
    return made


def write_vllm(home, text):
    path = home.programs / "vllm"
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(0o755)


SERVER = """
import http.server, pathlib, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path("pids").write_text(f"{__import__('os').getpid()} {child.pid}")
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


@pytest.mark.parametrize("ending", [KeyboardInterrupt, RealVllmError, None])
def test_the_server_and_its_children_end_whatever_happens(home, ending):
    write_vllm(home, SERVER)

    def serve():
        with server.running_server(home, CORES, "server"):
            pids = [int(each) for each in (home.models / "pids").read_text().split()]
            assert [os.sched_getaffinity(pid) for pid in pids] == [CORES.server] * 2
            found.extend(pids)
            if ending is not None:
                raise ending

    found: list[int] = []
    with pytest.raises(ending) if ending else nullcontext():
        serve()
    assert len(found) == 2
    until(lambda: all(map(is_gone, found)), "the server and its child end")
    assert os.sched_getaffinity(0) == CORES.server | CORES.clients


def test_one_part_runs_alone_and_its_faults_are_the_exit_code(monkeypatch, tmp_path, capsys):
    part = RealVllmPart(lines=("a line",), faults=("a fault",))
    monkeypatch.setattr(command, "prepare", lambda home: None)
    monkeypatch.setattr(command, "PARTS", {"exposure": lambda home, cores: part, "features": None})
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary"))
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    assert command.main(["--part", "exposure", "--folder", str(tmp_path)]) == 1
    for number, handler in before.items():
        signal.signal(number, handler)
    text = capsys.readouterr().out
    assert "a line\n\n- FAULT: a fault\n" in text
    assert (tmp_path / "summary").read_text() == (tmp_path / "results" / "report.md").read_text() == text
