"""The verdict on planted sweeps is as planted, in the terminal, the report and JSON."""

import json
from dataclasses import replace
from html import escape

import pytest

from loadtest.__main__ import main
from loadtest.measure import Objective
from loadtest.reports.facts import sweep_facts
from loadtest.reports.report import write_reports
from loadtest.settings import ForecastBand
from loadtest.store import read_run
from loadtest.tests.model_pool import ModelPool, ModelServer
from loadtest.tests.test_reports import folder, result, scored
from loadtest.tests.test_sweep_runs import bench
from loadtest.traffic.points import Sweep, beyond_cache, plan_points
from loadtest.traffic.spec import FIXED_LENGTHS, Traffic
from loadtest.verdict import sweep_verdict as verdict_of

LEVELS = (1, 8, 64, 128)
SLO = {"ttft_s": 0.12, "tpot_s": 0.05, "e2e_s": None}
"""Met by the loads up to 64 users of `planted`, whose TTFT is 0.063, 0.067, 0.095 and 0.127 s without noise."""
RUN = {"usd_per_hour": 3.6, "slo": SLO, "slo_share": 0.99}

GRID = Sweep(
    concurrency=(2, 16), request_rate=(), input_tokens=(32, 2000), output_tokens=(8,), requests=32, duration_s=None, seed=1
)  # fmt: skip


def planted(*levels, rate=100.0, full_from=None, **more):
    """Loads whose output rate grows with the load up to `full_from` users."""
    return [
        result(level, 256, requests=320, wobble=0.01)
        | {"output_throughput": rate * min(level, full_from or level), **more}
        for level in levels or LEVELS
    ]


def late(level):
    """A load at which the client was late."""
    reason = "the client's event loop was late by 900 ms at the 99th percentile, more than 50 ms; use more --workers"
    return result(level, 256, requests=320) | {"valid": False, "invalid_reasons": [reason]}


def sweep_verdict(run, results):
    return verdict_of(run, scored(run, results))


BAND = {"forecast": {"output_throughput": {"low": 5000.0, "typical": 6000.0, "high": 7000.0}}}
USERS = {"mode": "closed", "input_tokens": 256, "output_tokens": 32, "low": 90.0, "typical": 100.0, "high": 120.0}
WANTED = "TTFT <= 0.12 s, TPOT <= 0.05 s for 99% of the requests"
BEST = f"Meets {WANTED} up to 64 users (256 in, 32 out), 6,400 good tok/s"
CASES = [
    # 64 users have 6,400 tok/s, all good: 3.6 / 3600 / 6400 x 1e6.
    ("the highest load within", RUN, planted(), f"{BEST}, 0.156 USD per million good tokens; 128 users miss TTFT by 7%."),
    ("no price", RUN | {"usd_per_hour": None}, planted(), f"{BEST}, no price without --usd-per-hour; 128 users miss TTFT by 7%."),
    ("all loads within", RUN | {"slo": {"ttft_s": 9.0}}, planted(),
     ("Meets TTFT <= 9 s for 99% of the requests up to 128 users (256 in, 32 out), 1.28e+04 good tok/s, 0.0781 USD per million good tokens,"
     " the highest valid load.")),
    ("no load meets them", RUN | {"slo": {"ttft_s": 0.01}}, planted(),
     "Meets TTFT <= 0.01 s for 99% of the requests at no measured load: 1 user misses TTFT by 539%."),
    ("failed requests miss them", RUN, planted(1, 8) + planted(64, good_share=0.5),
     (f"Meets {WANTED} up to 8 users (256 in, 32 out), 800 good tok/s, 1.25 USD per million good tokens; at 64 users, failed requests miss them"
     " (50.0% are good).")),
    ("no good token", RUN | {"slo_share": 0.5}, planted(64, output_throughput=0.0),
     ("Meets TTFT <= 0.12 s, TPOT <= 0.05 s for 50% of the requests up to 64 users (256 in, 32 out), 0 good tok/s,"
     " no price without --usd-per-hour, the highest valid load.")),
    ("no limits", {"usd_per_hour": 3.6}, planted(),
     "Highest output rate at 128 users (256 in, 32 out), 1.28e+04 tok/s, 0.0781 USD per million output tokens."),
    ("as planned", RUN, planted(**BAND),
     f"{BEST}, 0.156 USD per million good tokens; 128 users miss TTFT by 7%; 7% above the plan's 6,000 tok/s (5,000 to 7,000)."),
    ("fewer users than planned", RUN | {"forecast_levels": [USERS]}, planted(**BAND),
     (f"{BEST}, 0.156 USD per million good tokens; 128 users miss TTFT by 7%; 36% below the plan's 100 users (90 to 120), 7% above the plan's"
     " 6,000 tok/s (5,000 to 7,000).")),
    ("nothing valid", RUN, [late(64)], f"Unknown whether it meets {WANTED}, because no load is valid."),
    ("no limits and nothing valid", {}, [late(64)], "No load is valid."),
    ("nothing measured", {}, [], "No load is valid."),
]  # fmt: skip
"""Name, run.json, results and sentence."""


def test_loads_are_compared_over_the_same_part_of_their_points():
    """The window of 1 user is the only one, and is faster than its whole point."""
    one, four = planted(1, 4, rate=100.0)
    best = sweep_verdict({}, [one | {"steady": {"start_s": 0.0, "end_s": 9.0, "output_throughput": 900.0}}, four]).best
    assert (best.level, best.output_tok_per_s) == (4, 400.0)


def test_the_sentence_has_the_load_the_price_the_miss_and_the_plan(subtests):
    for name, run, results, sentence in CASES:
        with subtests.test(name):
            assert sweep_verdict(run, results).sentence == sentence


def test_the_verdict_has_the_values_of_its_sentence():
    found = sweep_verdict(RUN | {"forecast_levels": [USERS]}, planted(**BAND))
    assert (found.best.level, found.best.unit, found.best.good_share) == (64, "users", 1.0)
    assert (found.best.good_tok_per_s, found.best.usd_per_million_good_tokens) == (6400.0, 0.15625)
    assert (found.missed.level, found.missed.metric) == (128, "ttft")
    assert (found.plan.measured, found.plan.typical) == (6400.0, 6000.0)
    assert (found.plan_level.measured, found.plan_level.low) == (64, 90.0)
    none = sweep_verdict(RUN, [late(64)])
    assert (none.best, none.missed, none.plan, none.plan_level) == (None, None, None, None)


class Plan:
    """A forecast of 100 tokens per second and user, and of 6 users within the limits."""

    def level(self, _traffic, _point, _objective, *, whole):
        return ForecastBand(low=5.0, typical=6.0, high=7.0) if whole else None

    def figures(self, _traffic, point):
        rate = ForecastBand(low=80.0 * point.level, typical=100.0 * point.level, high=120.0 * point.level)
        return {"output_throughput": rate} if point.concurrency else {}


def test_every_sweep_has_the_forecast_and_the_client_machine(calm, tmp_path, monkeypatch):
    monkeypatch.setattr("loadtest.sweep.WorkerPool", lambda: ModelPool(ModelServer(ttft_s=0.02, tpot_s=0.0097)))
    sweep = replace(GRID, input_tokens=(32,), concurrency=(2, 6), requests=60)
    limits = Objective(ttft_s=1.0)
    _, results = bench(calm.url, tmp_path / "a", sweep, forecast=Plan(), objective=limits)
    run = read_run(tmp_path / "a")
    band = {"low": 5.0, "typical": 6.0, "high": 7.0}
    assert run["forecast_levels"] == [{"mode": "closed", "input_tokens": 32, "output_tokens": 8, **band}]
    assert run["slo_share"] == 0.99
    assert [each["forecast"]["output_throughput"]["typical"] for each in results.values()] == [200.0, 600.0]
    verdict = sweep_verdict(run, list(results.values()))
    assert (verdict.plan_level.measured, verdict.plan_level.typical) == (6, 6.0)
    assert verdict.plan.typical == 600.0
    assert run["client_machine"]["cores"] >= 1
    assert run["client_machine"].keys() == {"system", "architecture", "processor", "cores", "python", "load_1min"}
    bench(
        calm.url,
        tmp_path / "b",
        replace(sweep, concurrency=(), request_rate=(5.0,)),
        forecast=Plan(),
        objective=limits,
    )
    assert read_run(tmp_path / "b")["forecast_levels"] == []


def test_the_first_screen_has_the_verdict_and_the_header(tmp_path):
    run = RUN | {
        "hosting": {"accelerator": "v6e-4", "zone": "us-east5-b", "image": "vllm/vllm-tpu@sha256:" + "a" * 64},
        "server": {"version": "0.32.0"},
        "client_machine": {"system": "Linux", "architecture": "x86_64", "processor": "EPYC", "cores": 2, "python": "3.12", "load_1min": 1.5},
    }  # fmt: skip
    path = folder(tmp_path / "r", planted(), run=run)
    write_reports(path)
    sentence = sweep_verdict(read_run(path), planted()).sentence
    header = (
        "hardware: v6e-4 · zone: us-east5-b · price: 3.6 USD per hour · image: vllm/vllm-tpu@sha256:aaaaaaaaaaaa"
        " · release: vLLM 0.32.0 · client: Linux x86_64, 2 cores of EPYC, load 1.5, Python 3.12"
    )
    html = (path / "report.html").read_text()
    first_screen = html[html.index("</h1>") : html.index("<svg")]
    assert first_screen.index(f'<p class="verdict">{escape(sentence)}') < first_screen.index(header)
    assert sweep_facts({}, planted()).header[0] == "hardware: unknown"


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
    assert list(found)[:2] == ["schema_version", "verdict"]
    assert f"verdict: {found['verdict']['sentence']}\n" in printed.err
    if not late_s:
        assert (code, found["findings"], found["invalid"]) == (0, [], 0)
        return
    assert (code, found["invalid"]) == (1, 2)
    assert found["findings"][0] == "None of 2 points is valid."
    assert any(
        "the client's event loop was late by" in finding and "all 2 points" in finding for finding in found["findings"]
    )
    for finding in found["findings"]:
        assert f"finding: {finding}\n" in printed.err
    assert found["verdict"]["best"] is None
    assert main([*words, "--out", str(tmp_path / "b"), "--allow-invalid"]) == 0
