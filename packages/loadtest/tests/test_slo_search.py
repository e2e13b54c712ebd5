"""The search for the highest load that keeps limits: its test, its steps, and what it finds on a server of known capacity."""

import json
import random
import shutil
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import settings

from loadtest.__main__ import main
from loadtest.forecast import Band
from loadtest.generator.load import arrivals
from loadtest.measure import Objective, point_text
from loadtest.records import EndLoad, StopLoad
from loadtest.reports.report import write_reports
from loadtest.slo_search import (
    Search,
    ShareTest,
    StepTest,
    backlog_s,
    bisection_for,
    confirming_requests,
    found_json,
)
from loadtest.store import read_results, read_run
from loadtest.tests.model_pool import ModelPool, ModelServer
from loadtest.tests.test_sweep_runs import bench
from loadtest.traffic.points import Sweep

SWEEP = Sweep(
    concurrency=(), request_rate=(8.0,), input_tokens=(32,), output_tokens=(11,), requests=None, duration_s=None, seed=1
)


def verdict_of(miss_rate, seed, share=0.99, most=1000):
    test, rng = ShareTest(share=share), random.Random(seed)  # noqa: S311 - draws of a test, no secret
    for _ in range(most):
        missed = rng.random() < miss_rate
        test.missed, test.kept = test.missed + missed, test.kept + (not missed)
        if test.verdict is not None:
            break
    return test.forced, test.kept + test.missed


def test_the_sequential_test_errs_as_seldom_as_it_says_and_stops_early():
    for miss_rate, wrong in ((0.005, "misses"), (0.02, "keeps")):
        verdicts = [verdict_of(miss_rate, seed) for seed in range(400)]
        assert sum(verdict == wrong for verdict, _ in verdicts) <= 0.07 * 400  # 5 % and the noise of 400 draws
    assert verdict_of(0.0, 1) == ("keeps", 194)
    assert verdict_of(1.0, 1) == ("misses", 3)
    assert max(count for _, count in (verdict_of(0.01, seed) for seed in range(50))) <= 1000


def test_verdicts_count_in_the_order_of_sending():
    step = StepTest(test=ShareTest(share=0.99), skipped=0)
    assert step.take([(index, True) for index in range(3, 400)]) is None  # the first three are not known yet
    assert (step.test.kept, step.test.missed) == (0, 0)
    assert isinstance(step.take([(0, False), (1, False), (2, False)]), StopLoad)
    assert step.ended == "misses"
    calm = StepTest(test=ShareTest(share=0.99), skipped=100)
    assert calm.take([(index, True) for index in range(250)]) is None
    assert isinstance(calm.take([(index, True) for index in range(250, 400)]), EndLoad)
    assert calm.test.kept == 194
    # The first answers of an overloaded server are quick; they do not count.
    late = StepTest(test=ShareTest(share=0.99), skipped=100)
    assert isinstance(late.take([(index, index < 100) for index in range(200)]), StopLoad)
    assert (late.test.kept, late.test.missed) == (0, 3)
    hopeless = StepTest(test=ShareTest(share=0.99), skipped=5000)
    assert isinstance(hopeless.take([(index, index < 30) for index in range(50)]), StopLoad)


@pytest.mark.parametrize("limit", [0.3, 2.3, 77.0])
def test_bisection_ends_within_five_percent(limit):
    search = bisection_for((), (1.0,))
    while (level := search.next_level()) is not None:
        search.learn(level, "keeps" if level <= limit else "misses")
    assert search.kept <= limit < search.missed <= search.kept * 1.06
    assert search.steps <= 16


def test_bisection_of_users_is_exact_and_stays_between_its_ends():
    search = bisection_for((1, 64), ())
    levels = []
    while (level := search.next_level()) is not None:
        levels.append(level)
        search.learn(level, "keeps" if level <= 13 else "misses")
    assert (search.kept, search.missed) == (13, 14)
    assert all(level.is_integer() and 1 <= level <= 64 for level in levels)
    everything = bisection_for((2, 8), ())
    while (level := everything.next_level()) is not None:
        everything.learn(level, "keeps")
    assert (everything.kept, everything.missed) == (8, None)


def test_the_test_begins_when_a_backlog_shows():
    assert backlog_s(Objective(ttft_s=1.0, e2e_s=3.0)) == 20.0
    assert backlog_s(Objective(tpot_s=0.05)) == 0.0
    assert backlog_s(Objective(e2e_s=30.0)) == 60.0


def step(level, verdict, usd=None, *, late_ms=0.0, valid=True, confirms=False):
    client = {
        "lag_mean_ms": late_ms,
        "lag_p99_ms": late_ms,
        "send_late_p99_ms": 0.0,
        "cpu_share_max": 0.1,
        "shed": 0,
        "run_queue_share_max": 0.5,
    }
    return {
        "point": {"level": level}, "search": {"verdict": verdict, "kept": 194, "missed": 0, "confirms": confirms}, "usd_per_million_output_tokens": usd,
        "valid": valid, "invalid_reasons": [] if valid else ["why"], "client": client, "mean_ttft_ms": 100.0,
    }  # fmt: skip


LIMITS = Objective(ttft_s=1.0, tpot_s=0.05)
SURE = step(2.3, "keeps", 0.41, confirms=True)
STEPS = [step(1.0, "keeps", 0.9), step(2.3, "keeps", 0.42), SURE, step(2.4, "misses", 0.4)]


def found_of(steps, **more):
    return found_json(steps, **{"name": "l4-qat", "objective": LIMITS, "share": 0.99, "whole": False} | more)


def test_the_sentence_names_the_limits_the_load_the_cost_and_the_forecast_with_its_band():
    found = found_of(STEPS, forecast=Band(low=1.214, typical=2.8, high=3.4))
    assert found["sentence"] == (
        "l4-qat meets TTFT <= 1 s, TPOT <= 0.05 s for 99% of the requests up to 2.3 req/s (between 2.3 and 2.4): 100% of 194 requests met them,"
        " 95% interval 98.06% to 100%; 0.41 USD per million output tokens; the plan expects 2.8 req/s (1.21 to 3.4)"
    )
    assert found["met"] == {"share": 1.0, "low": 0.980583, "high": 1.0, "requests": 194}
    assert (found["forecast"], found["no_forecast"]) == ({"low": 1.214, "typical": 2.8, "high": 3.4}, None)
    assert found["valid"] is True
    assert found["doubts"] == []


def test_a_server_that_nobody_planned_has_no_forecast_and_no_price_and_the_sentence_says_so():
    found = found_of([step(2.0, "keeps", confirms=True), step(2.1, "misses")])
    assert found["sentence"] == (
        "l4-qat meets TTFT <= 1 s, TPOT <= 0.05 s for 99% of the requests up to 2 req/s (between 2 and 2.1): 100% of 194 requests met them,"
        " 95% interval 98.06% to 100%; no price without --usd-per-hour; no forecast"
    )
    assert (found["forecast"], found["no_forecast"]) == (None, "no forecast")


def test_no_load_that_keeps_is_said_so():
    nothing = found_of([step(0.01, "misses")], share=0.9, forecast=Band(low=0.0, typical=0.0, high=0.5))
    assert nothing["sentence"] == (
        "l4-qat meets TTFT <= 1 s, TPOT <= 0.05 s for 90% of the requests at no tested load, not even 0.01 req/s;"
        " the plan expects that no load meets them (0 to 0.5)"
    )
    assert nothing["valid"] is False


def test_a_late_client_never_makes_a_limit_of_the_server():
    late = found_of([SURE, step(2.4, "misses", late_ms=300.0)])
    assert late["valid"] is False
    assert late["doubts"][0].startswith(
        "at 2.4 req/s the client was the limit: the client's event loop was late by 300 ms"
    )
    assert late["doubts"][0] in late["sentence"]
    # At a load far above the lowest that misses, a late client changes nothing.
    assert found_of([*STEPS, step(9.0, "misses", late_ms=300.0)])["valid"] is True
    (doubt,) = found_of([step(2.3, "keeps", valid=False, confirms=True), STEPS[-1]])["doubts"]
    assert doubt == "that point is invalid: why"


def test_a_rate_that_no_longer_step_confirms_is_lowered_or_doubted():
    lowered = found_of([*STEPS[1:2], step(2.3, "misses", confirms=True), step(2.19, "keeps", 0.5, confirms=True)])
    assert (lowered["level"], lowered["missed_at"], lowered["valid"]) == (2.19, 2.3, True)
    doubted = found_of([*STEPS[:2], step(2.3, "misses", confirms=True)])
    assert (doubted["level"], doubted["missed_at"], doubted["valid"]) == (1.0, 2.3, False)
    assert doubted["sentence"].endswith("; no longer step confirmed it")
    users = found_of([step(3, "keeps"), step(4, "misses")], whole=True)
    assert (users["level"], users["valid"]) == (3, True)


def test_a_rate_is_confirmed_by_longer_steps_and_users_are_not():
    search, asked = Search(bisection=bisection_for((), (1.0,))), []
    while (step := search.next_step()) is not None:
        if step.confirms:
            asked.append(step.level)
        search.learn(step, "keeps" if step.level <= (8.8 if step.confirms else 10.0) else "misses")
    assert asked[0] == search.bisection.kept <= 10.0 < asked[0] * 1.06
    assert all(after == pytest.approx(before / 1.05, rel=0.01) for before, after in pairwise(asked))
    assert asked[-1] <= 8.8 < asked[-2]
    never, count = Search(bisection=bisection_for((), (1.0,))), 0
    while (step := never.next_step()) is not None:
        count += step.confirms
        never.learn(step, "misses" if step.confirms or step.level > 10.0 else "keeps")
    assert (count, never.confirmed) == (8, False)
    users = Search(bisection=bisection_for((1, 64), ()))
    while (step := users.next_step()) is not None:
        assert not step.confirms
        users.learn(step, "keeps" if step.level <= 13 else "misses")


def test_a_confirmation_takes_its_requests_unless_they_can_no_longer_keep():
    def verdict(missed, total, most=1000):
        return ShareTest(share=0.99, most=most, kept=total - missed, missed=missed).verdict

    assert verdict(0, 999) is None
    assert verdict(10, 1000) == "keeps"
    assert verdict(11, 11) == "misses"
    assert verdict(10, 10) is None
    assert ShareTest(share=0.99, most=1000, kept=98, missed=2).forced == "misses"
    assert [confirming_requests(rate, 1000) for rate in (0.1, 1.0, 40.0)] == [300, 600, 1000]
    assert confirming_requests(40.0, 60) == 60


@pytest.fixture
def modelled(server, tmp_path, monkeypatch):
    """Run a search on a model of a server. The timed server answers for the model's name and tokens only."""

    def search(model, sweep, late_s=lambda _share: 0.0, **options):
        monkeypatch.setattr("loadtest.sweep.WorkerPool", lambda: ModelPool(model, late_s))
        outcome, results = bench(server.url, tmp_path / "out", sweep, find=True, **options)
        assert outcome.planned == outcome.stored == len(results)  # a search plans a step at a time
        return outcome.found, results

    return search


def examples(few, many):
    """The number of examples of a law: many in the long suite, which has profiles of hypothesis."""
    return many if settings.get_current_profile_name() in {"part", "long"} else few


ANSWERS = {"slots": 4, "ttft_s": 0.02, "tpot_s": 0.008}
"""Four at once for 100 ms each (11 tokens): 40 requests per second."""


@pytest.mark.law
@pytest.mark.parametrize("seed", range(examples(1, 6)))
@pytest.mark.parametrize("ends", [(1.0,), (20.0, 80.0), (0.5, 900.0)])
def test_a_limited_capacity_is_found_within_ten_percent(modelled, seed, ends):
    sweep = replace(SWEEP, request_rate=ends, seed=seed)
    found, results = modelled(ModelServer(**ANSWERS), sweep, objective=Objective(ttft_s=0.5), poisson=False)
    assert found["level"] == pytest.approx(40.0, rel=0.10)
    assert found["level"] < found["missed_at"] <= found["level"] * 1.06
    assert found["valid"], found["doubts"]
    searches = [(result["point"]["level"], result["search"]) for result in results.values()]
    assert [(level, s["verdict"]) for level, s in searches if s["confirms"]][-1] == (found["level"], "keeps")
    assert all(level > found["level"] for level, s in searches if s["verdict"] == "misses")


class Expected:
    """A forecast of 30 requests per second, and of the tokens that are asked for."""

    def level(self, traffic, point, objective, *, whole):
        return Band(low=20.0, typical=30.0, high=40.0)

    def figures(self, traffic, point):
        asked = point.level * point.output_tokens
        return {"output_throughput": Band(low=min(asked, 220.0), typical=min(asked, 330.0), high=min(asked, 440.0))}


class Far(Expected):
    """A forecast of half and of five times the rate that the server sustains."""

    def __init__(self, typical):
        self.typical = typical

    def level(self, traffic, point, objective, *, whole):
        return Band(low=self.typical / 2, typical=self.typical, high=2 * self.typical)


def test_a_search_starts_near_the_forecast_or_a_probe_and_is_continued_from_there(modelled, tmp_path, subtests):
    """The server answers 40 requests per second. A probe of 16 users completes them all, and the search starts at three quarters."""
    model, none = ModelServer(**ANSWERS), replace(SWEEP, request_rate=())
    limits = {"objective": Objective(ttft_s=0.5), "poisson": False}
    one_by_one, _ = modelled(model, replace(SWEEP, request_rate=(1.0,)), **limits)
    shutil.rmtree(tmp_path / "out")
    for name, options, first, origin in (
        ("probe", {}, 30.0, "a probe of 16 users"),
        ("forecast", {"forecast": Expected()}, 30.0, "the plan's forecast"),
        ("a low forecast", {"forecast": Far(20.0)}, 20.0, "the plan's forecast"),
        ("a high forecast", {"forecast": Far(200.0)}, 200.0, "the plan's forecast"),
    ):
        with subtests.test(name):
            found, results = modelled(model, none, **limits, **options)
            assert read_run(tmp_path / "out")["search_start"] == {
                "level": pytest.approx(first, rel=0.03),
                "from": origin,
            }
            assert next(iter(results.values()))["point"]["level"] == pytest.approx(first, rel=0.03)
            assert found["level"] == pytest.approx(40.0, rel=0.10)
            assert found["valid"], found["doubts"]
            assert found["steps"] < one_by_one["steps"]
            # A forecast that changed later starts no other search.
            again, _ = modelled(model, none, resume=True, **limits, **options | {"forecast": Far(3.0)})
            assert (again["level"], again["steps"]) == (found["level"], found["steps"])
        shutil.rmtree(tmp_path / "out")


@pytest.fixture(scope="module")
def long_run_rate():
    """The highest rate of random arrivals that keeps the limit for 99 % of 50,000 requests, without any test."""
    model, low, high = ModelServer(**ANSWERS), 20.0, 40.0
    while high > low * 1.01:
        middle = (low + high) / 2
        records = model.at_rate(arrivals(middle, 50_000, 11, poisson=True), 11)
        keeps = sum(record.ttft_s > 0.5 for record in records) <= 0.01 * len(records)
        low, high = (middle, high) if keeps else (low, middle)
    return low


@pytest.mark.law
@pytest.mark.parametrize("seed", range(examples(2, 8)))
def test_the_rate_that_is_found_for_random_arrivals_keeps_the_limits_in_the_long_run(modelled, long_run_rate, seed):
    """Without the steps that confirm, seeds found up to 16 % more."""
    sweep = replace(SWEEP, request_rate=(1.0,), seed=seed)
    found, _ = modelled(ModelServer(**ANSWERS), sweep, objective=Objective(ttft_s=0.5))
    assert found["level"] == pytest.approx(long_run_rate, rel=0.10)
    assert found["level"] == pytest.approx(40.0, rel=0.20)  # the capacity, of which random arrivals leave a part
    assert found["valid"], found["doubts"]


@pytest.mark.parametrize("poisson", [True, False])
def test_unlimited_capacity_is_never_called_saturated(modelled, poisson):
    model = ModelServer(ttft_s=0.02, tpot_s=0.008)
    sweep = replace(SWEEP, request_rate=(2.0, 400.0))
    found, results = modelled(model, sweep, objective=Objective(ttft_s=0.1), poisson=poisson)
    assert (found["level"], found["missed_at"]) == (400.0, None)
    assert ", the highest tested load: " in found["sentence"]
    assert [result["saturation"]["over"] for result in results.values()] == [False] * len(results)


@pytest.mark.parametrize("late_from", [30.0, 50.0])
def test_a_client_that_is_late_above_a_rate_gives_no_valid_capacity(modelled, late_from):
    """The server has no limit; what misses is the client."""
    sweep = replace(SWEEP, request_rate=(2.0, 400.0))
    found, _ = modelled(
        ModelServer(ttft_s=0.02, tpot_s=0.008),
        sweep,
        objective=Objective(ttft_s=0.1),
        late_s=lambda share: 0.2 if share.rate_per_s > late_from else 0.0,
    )
    assert found["level"] < late_from
    assert found["valid"] is False
    assert "the client was the limit" in found["sentence"]


@pytest.mark.parametrize(("limit_s", "users"), [(0.1, 4), (0.2, 8), (0.35, 16)])
def test_users_are_found_exactly(modelled, limit_s, users):
    """Users are answered in rounds of four, each of 100 ms, and the first token takes 20 ms more."""
    sweep = replace(SWEEP, request_rate=(), concurrency=(1, 64))
    found, results = modelled(ModelServer(**ANSWERS), sweep, objective=Objective(ttft_s=limit_s))
    assert found["unit"] == "users"
    assert (found["level"], found["missed_at"]) == (users, users + 1)
    assert len(results) == found["steps"] <= 16


def test_the_report_has_the_sentence_the_load_and_the_forecast_and_a_continued_search_measures_nothing(
    modelled, tmp_path
):
    model, sweep = ModelServer(**ANSWERS), replace(SWEEP, request_rate=(20.0, 80.0))
    options = {"objective": Objective(ttft_s=0.5), "usd_per_hour": 3.6, "poisson": False, "forecast": Expected()}
    found, results = modelled(model, sweep, **options)
    assert found == read_run(tmp_path / "out")["found"]
    band = found["forecast"]
    assert 0 < band["low"] < band["typical"] < band["high"]
    assert (
        f"; the plan expects {band['typical']:.3g} req/s ({band['low']:.3g} to {band['high']:.3g})" in found["sentence"]
    )
    write_reports(tmp_path / "out")
    page = (tmp_path / "out" / "report.html").read_text()
    assert found["sentence"].replace("<", "&lt;") in page
    low, typical, high = (f"{band[end]:,.4g}" for end in ("low", "typical", "high"))
    assert f"the plan expects {typical} req/s ({low} to {high})" in page
    for result in results.values():
        planned = result["forecast"]["output_throughput"]
        assert result["search"]["forecast_output_tok_per_s"] == planned
        said = f"planned {planned['typical']:,.4g} tok/s ({planned['low']:,.4g} to {planned['high']:,.4g})"
        assert f"{point_text(result['point'] | {'repeat': 0})}: {said}" in page
    assert " req/s</b><span>highest load that meets the limits" in page
    again, _ = modelled(model, sweep, resume=True, **options)
    assert again == found
    assert len(read_results(tmp_path / "out")) == found["steps"]


def test_a_search_by_url_against_a_server_of_limited_capacity(start_server, tmp_path, capsys):
    """Over sockets the bounds are wide: a busy machine makes the server slower, and a late client makes the result invalid."""
    server = start_server("--ttft-s", "0.02", "--tpot-s", "0.008", "--capacity", "4")
    words = ["--url", server.url, "--find", "slo", "--slo", "ttft=0.1", "--slo-share", "0.9", "--request-rate", "20,80"]
    words += ["--input-tokens", "32", "--output-tokens", "11", "--requests", "100"]
    words += ["--even-arrivals", "--warm-up", "0", "--json"]
    code = main([*words, "--out", str(tmp_path)])
    captured = capsys.readouterr()
    found = json.loads(captured.out)["found"]
    assert code == (0 if found["valid"] else 1)
    assert found["sentence"] in captured.err
    assert found["sentence"].startswith("timed meets TTFT <= 0.1 s for 90% of the requests ")
    assert found["sentence"].endswith("no forecast") or not found["valid"]
    # No machine makes the server faster than 40 requests per second.
    assert found["level"] is None or found["level"] <= 40 * 1.1
    if found["valid"] and server.control()["late_max_s"] < 0.05:
        assert found["level"] >= 20


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--find", "slo"], "requires --slo"),
        (["--find", "knee"], "--find is 'knee'; it must be slo"),
        (["--find", "slo", "--slo", "ttft=1", "--duration", "5"], "--find slo and --duration cannot be combined"),
        (["--find", "slo", "--slo", "tpot=0.05", "--input-tokens", "8"], "needs a limit of ttft or e2e"),
        (["--find", "slo", "--slo", "ttft=1"], "Pass one value of --input-tokens, such as --input-tokens 128"),
    ],
)
def test_a_search_that_cannot_be_is_refused(words, why, capsys, tmp_path):
    code = main(["--url", "http://127.0.0.1:9", "--out", str(tmp_path / "o"), *words])
    assert code == 2
    assert why in capsys.readouterr().err
