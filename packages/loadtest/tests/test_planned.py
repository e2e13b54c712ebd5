"""The line with the plan on planted sweeps is as planted, in the terminal, the report and JSON, and so are the other marks of a sweep."""

import json
from dataclasses import replace
from html import escape

import pytest

from loadtest.__main__ import main
from loadtest.planned import plan_match
from loadtest.progress import outcome
from loadtest.reports.facts import sweep_facts
from loadtest.reports.report import write_reports
from loadtest.settings import ForecastBand, SweepSettings
from loadtest.store import read_run
from loadtest.subcommands import CallingProgram, as_json, conclude
from loadtest.tests.model_pool import ModelPool, ModelServer
from loadtest.tests.test_reports import folder, result
from loadtest.tests.test_sweep_runs import bench
from loadtest.traffic.points import Sweep, beyond_cache, plan_points
from loadtest.traffic.spec import FIXED_LENGTHS, Traffic

GRID = Sweep(
    concurrency=(2, 16), request_rate=(), input_tokens=(32, 2000), output_tokens=(8,), requests=32, duration_s=None, seed=1
)  # fmt: skip


def load(level, tok_per_s, *, planned=6000.0, **more):
    """A load of 256 and 32 tokens with this output rate and a plan of 5,000 to 7,000."""
    band = {"low": 5000.0, "typical": planned, "high": 7000.0}
    forecast = None if planned is None else {"output_throughput": band}
    return result(level, 256, **more) | {"output_throughput": tok_per_s, "forecast": forecast}


def steady(tok_per_s):
    return {"steady": {"start_s": 0.0, "end_s": 9.0, "output_throughput": tok_per_s}}


LINE = "64 users, 256 in, 32 out: planned 6,000 tok/s (5,000 to 7,000), measured"
CASES = [
    ("the highest rate", [load(8, 800.0), load(64, 6400.0), load(128, 6000.0)], f"{LINE} 6,400 tok/s, ratio 1.07"),
    ("an invalid one is higher", [load(64, 3000.0), load(128, 9000.0, valid=False)], f"{LINE} 3,000 tok/s, ratio 0.50"),
    ("repeats", [load(64, 6000.0), load(64, 6600.0, repeat=1)], f"{LINE} 6,300 tok/s, ratio 1.05"),
    ("one repeat is invalid", [load(64, 6000.0), load(64, 6600.0, repeat=1, valid=False)], None),
    ("steady windows", [load(64, 1.0) | steady(6600.0), load(8, 2.0) | steady(8.0)], f"{LINE} 6,600 tok/s, ratio 1.10"),
    ("a window of one load", [load(64, 6600.0), load(8, 2.0) | steady(9000.0)], f"{LINE} 6,600 tok/s, ratio 1.10"),
    ("no forecast", [load(64, 6400.0, planned=None)], None),
    ("a forecast of nothing", [load(64, 6400.0, planned=0.0)], None),
    ("nothing measured", [], None),
]
"""Name, results and line."""


@pytest.mark.parametrize(("results", "line"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_the_line_has_the_planned_and_the_measured_rate_and_their_ratio(results, line):
    match = plan_match(results)
    assert (match.text if match else None) == line


@pytest.mark.parametrize("more", [{}, steady(6600.0)], ids=["whole point", "steady window"])
def test_the_progress_of_a_point_has_the_rate_that_the_plan_is_compared_with(more):
    point = load(64, 6400.0) | more
    assert f"{plan_match([point]).measured:.1f} tok/s" in outcome(point)


class Plan:
    """A forecast of 100 tokens per second and user."""

    def figures(self, _traffic, point):
        rate = ForecastBand(low=80.0 * point.level, typical=100.0 * point.level, high=120.0 * point.level)
        return {"output_throughput": rate}


def test_a_sweep_with_a_forecast_has_the_line_in_the_terminal_in_json_and_in_the_report(
    calm, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("loadtest.sweep.WorkerPool", lambda: ModelPool(ModelServer(ttft_s=0.02, tpot_s=0.0097)))
    sweep = replace(GRID, input_tokens=(32,), concurrency=(2, 6), requests=60)
    outcome, results = bench(calm.url, tmp_path, sweep, forecast=Plan())
    assert [each["forecast"]["output_throughput"]["typical"] for each in results.values()] == [200.0, 600.0]
    settings = SweepSettings(url=calm.url, model=None, out=tmp_path)
    files = conclude(settings, outcome, CallingProgram(name="loadtest", words=["loadtest"]))
    match = plan_match(list(results.values()))
    assert match.text.startswith("6 users, 32 in, 8 out: planned 600 tok/s (480 to 720), measured ")
    assert f"loadtest: {match.text}\n" in capsys.readouterr().err
    assert as_json(settings, outcome, files)["plan"] == {
        "point": "6 users, 32 in, 8 out",
        "low": 480.0,
        "typical": 600.0,
        "high": 720.0,
        "measured": match.measured,
        "ratio": pytest.approx(match.measured / 600, abs=1e-4),
    }
    assert escape(match.text) in (tmp_path / "report.html").read_text()
    machine = read_run(tmp_path)["client_machine"]
    assert machine["cores"] >= 1
    assert machine.keys() == {"system", "architecture", "processor", "cores", "python", "load_1min"}


def test_the_first_screen_has_the_line_with_the_plan_and_the_header(tmp_path):
    run = {
        "usd_per_hour": 3.6,
        "hosting": {"accelerator": "v6e-4", "zone": "us-east5-b", "image": "vllm/vllm-tpu@sha256:" + "a" * 64},
        "server": {"version": "0.32.0"},
        "client_machine": {"system": "Linux", "architecture": "x86_64", "processor": "EPYC", "cores": 2, "python": "3.12", "load_1min": 1.5},
    }  # fmt: skip
    path = folder(tmp_path / "r", [load(64, 6400.0)], run=run)
    write_reports(path)
    header = (
        "hardware: v6e-4 · zone: us-east5-b · price: 3.6 USD per hour · image: vllm/vllm-tpu@sha256:aaaaaaaaaaaa"
        " · release: vLLM 0.32.0 · client: Linux x86_64, 2 cores of EPYC, load 1.5, Python 3.12"
    )
    html = (path / "report.html").read_text()
    first_screen = html[html.index("</h1>") : html.index("<h2")]
    assert first_screen.index(f'<p class="plan">{LINE} 6,400 tok/s, ratio 1.07</p>') < first_screen.index(header)
    assert sweep_facts({}, [result(1, 16)]).header[0] == "hardware: unknown"
    write_reports(folder(tmp_path / "s", [load(64, 6400.0, planned=None)]))
    assert 'class="plan"' not in (tmp_path / "s" / "report.html").read_text()


def test_points_beyond_the_kv_cache_are_measured_and_marked(calm, tmp_path, monkeypatch):
    # The server has 16,000 tokens. 16 users need 16 x (2,000 + 4), and wait for the one that runs.
    monkeypatch.setattr("loadtest.sweep.WorkerPool", lambda: ModelPool(ModelServer(ttft_s=0.02, tpot_s=0.008, slots=1)))
    outcome, results = bench(calm.url, tmp_path, replace(GRID, concurrency=(1, 16)))
    beyond = results["closed-c16-i2000-o8-n0"]
    assert (outcome.left_out, len(results), beyond["completed"]) == ((), 4, 32)
    (note,) = (note for note in beyond["notes"] if "KV cache" in note)
    assert note == "it needs 32,064 tokens of the KV cache, which has 16,000"
    assert not any(
        "KV cache" in text for key in set(results) - {beyond["point"]["key"]} for text in results[key]["notes"]
    )
    assert note in (write_reports(tmp_path), (tmp_path / "report.html").read_text())[1]


def test_what_exceeds_a_kv_cache():
    points, _ = plan_points(GRID, None)
    largest = max(points, key=lambda point: point.level * point.input_tokens)
    assert not beyond_cache(largest, FIXED_LENGTHS, None)
    assert not beyond_cache(largest, FIXED_LENGTHS, 32_064)
    assert beyond_cache(largest, FIXED_LENGTHS, 32_063)
    assert not beyond_cache(largest, Traffic(prefix_share=0.9), 6_000)
    assert not beyond_cache(replace(largest, mode="open"), FIXED_LENGTHS, 2_000)


@pytest.mark.parametrize("late_s", [0.0, 3.0])
def test_a_run_without_valid_points_is_no_success(calm, tmp_path, monkeypatch, capsys, late_s):
    monkeypatch.setattr(
        "loadtest.sweep.WorkerPool", lambda: ModelPool(ModelServer(ttft_s=0.02, tpot_s=0.008), lambda _: late_s)
    )
    words = ["--url", calm.url, "--concurrency", "2,4", "--input-tokens", "32", "--output-tokens", "8", "--requests", "32", "--warm-up", "0"]  # fmt: skip
    code = main([*words, "--out", str(tmp_path / "a"), "--json"])
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert list(found)[:2] == ["schema_version", "plan"]
    assert found["plan"] is None
    if not late_s:
        assert (code, found["findings"], found["invalid"]) == (0, [], 0)
        return
    assert (code, found["invalid"]) == (1, 2)
    assert found["findings"][0] == "None of 2 points is valid."
    late = [finding for finding in found["findings"] if "the client's event loop was late by" in finding]
    assert {finding.partition(":")[0] for finding in late} == {"2 users, 32 in, 8 out", "4 users, 32 in, 8 out"}
    assert len(found["findings"]) > 4
    for number, finding in enumerate(found["findings"]):
        assert (f"finding: {finding}\n" in printed.err) == (number < 4)
    assert f"more findings in the report: {len(found['findings']) - 4}\n" in printed.err
    assert main([*words, "--out", str(tmp_path / "b"), "--allow-invalid"]) == 0
