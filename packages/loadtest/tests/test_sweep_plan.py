import asyncio
import json
from dataclasses import replace
from itertools import pairwise

import pytest

from loadtest.command_line import OptionParser, UsageError, add_options, read_options
from loadtest.errors import SweepError
from loadtest.generator.load import arrival_count, arrivals
from loadtest.generator.pool import workers_for
from loadtest.load_options import LoadTestOptions
from loadtest.store import ResultStore, open_store, read_results
from loadtest.traffic.points import PRESETS, QUICK_MINUTES, Sweep, plan_points
from loadtest.traffic.prompts import POOL, PromptMaker, Recipe, calibrate, fit_recipe


def read(*words):
    parser = OptionParser()
    add_options(parser, LoadTestOptions)
    return read_options(LoadTestOptions, parser.parse_args(words))


SWEEP = Sweep(
    concurrency=(8, 1),
    request_rate=(),
    input_tokens=(16, 4096),
    output_tokens=(32,),
    requests=None,
    duration_s=None,
    seed=5,
)


def test_input_is_clamped_at_max_model_len_and_said_so():
    points, notes = plan_points(SWEEP, 4096)
    assert {p.input_tokens for p in points} == {16, 4064}
    assert notes == ["LEN01: 4096 input + 32 output tokens exceed max-model-len 4096; input clamped to 4064."]
    assert [p.key for p in points] == [
        "closed-c1-i16-o32-n0",
        "closed-c8-i16-o32-n0",
        "closed-c1-i4096-o32-n0",
        "closed-c8-i4096-o32-n0",
    ]
    points, _ = plan_points(replace(SWEEP, input_tokens=(4064, 4096, 8192)), 4096)
    assert [p.input_tokens for p in points] == [4064, 4064]  # measured once


def test_an_output_that_leaves_no_room_is_left_out_and_a_sweep_of_nothing_is_refused():
    points, notes = plan_points(replace(SWEEP, output_tokens=(32, 4096)), 4096)
    assert {p.output_tokens for p in points} == {32}
    assert "leave no space for input" in " ".join(notes)
    with pytest.raises(SweepError, match="no point is left"):
        plan_points(replace(SWEEP, output_tokens=(4096,)), 4096)
    with pytest.raises(SweepError, match="Pass --concurrency or --request-rate"):
        plan_points(replace(SWEEP, concurrency=()), 4096)


def test_every_point_has_a_seed_of_its_own_and_the_same_one_again():
    first, _ = plan_points(replace(SWEEP, repeats=2), None)
    again, _ = plan_points(replace(SWEEP, repeats=2), None)
    assert len({p.seed for p in first}) == len(first) == 8
    assert [p.seed for p in first] == [p.seed for p in again]


def test_prompts_of_two_points_share_no_beginning():
    heads = {PromptMaker(Recipe(words=POOL, count=64, seed=seed)).prompt(i)[:60] for seed in (1, 2) for i in range(500)}
    assert len(heads) == 1000


ODD = {"fox", "zoo", "via", "ski"}


@pytest.mark.parametrize(
    ("overhead", "cost", "wanted", "words", "counted"),
    [
        (9, lambda word: 2 if word in ODD else 1, 128, 119, 128),
        (4, lambda _word: 3, 400, 132, 400),
        (12, lambda _word: 1, 8, 1, 13),
    ],
    ids=["words of several tokens are left out", "a tokenizer of other parts", "shorter than the template"],
)
def test_prompts_have_the_wanted_tokens_or_are_known_to_be_longer(overhead, cost, wanted, words, counted):
    async def count(prompt):
        return overhead + sum(cost(word) for word in prompt.split())

    calibration = asyncio.run(calibrate(count, "tokenize"))
    assert calibration.overhead_tokens == overhead
    assert calibration.tokens_per_word == cost("a")
    assert not ODD & set(calibration.words) or cost("fox") == cost("a")
    recipe, found = asyncio.run(fit_recipe(calibration, count, input_tokens=wanted, seed=1))
    assert (recipe.count, found) == (words, counted)
    assert asyncio.run(count(PromptMaker(recipe).prompt(77))) == counted


def test_poisson_arrivals_have_the_rate_and_spread_that_they_should_and_even_ones_none():
    poisson = list(arrivals(50.0, 4000, seed=1, poisson=True))
    gaps = [b - a for a, b in pairwise(poisson)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(0.02, rel=0.06)
    assert (sum((g - mean) ** 2 for g in gaps) / len(gaps)) ** 0.5 == pytest.approx(mean, rel=0.1)
    assert list(arrivals(4.0, 4, seed=1, poisson=False)) == pytest.approx([0, 0.25, 0.5, 0.75])
    assert list(arrivals(50.0, 9, seed=1, poisson=True)) == list(arrivals(50.0, 9, seed=1, poisson=True))


def test_one_process_serves_some_streams_and_more_never_outnumber_the_cores():
    assert [workers_for(streams, 8) for streams in (1, 512, 513, 2048, 100_000)] == [1, 1, 2, 4, 8]


@pytest.mark.parametrize("text", ["", "0", "-1", "1,x", "1.5", "1,,2"])
def test_a_wrong_list_of_numbers_is_one_sentence(text):
    with pytest.raises(UsageError, match=r"--concurrency is .* whole numbers of 1 or more"):
        read(f"--concurrency={text}")


def test_lists_and_objectives_are_read_as_people_write_them():
    load = read("--input-tokens", "64, 8,64,16_384", "--request-rate", "2,0.5").load
    assert load.input_tokens == (8, 64, 16_384)
    assert load.request_rate == (0.5, 2.0)
    objective = read("--slo", "ttft=0.5,tpot=0.05").report.slo
    assert (objective.ttft_s, objective.tpot_s, objective.e2e_s) == (0.5, 0.05, None)
    with pytest.raises(UsageError, match="--slo is 'ttfb=1'"):
        read("--slo", "ttfb=1")
    with pytest.raises(UsageError, match="--request-rate"):
        read("--request-rate", "inf")
    with pytest.raises(UsageError, match="does not set stream"):
        read("--extra-body", '{"stream": false}')


@pytest.mark.parametrize(
    ("words", "limited"),
    [
        ("", True),
        ("--preset quick", True),
        ("--preset quick --warm-up 2 --seed 1", True),
        ("--preset grid", False),
        ("--preset quick --concurrency 64", False),
        ("--request-rate 2", False),
        ("--input-tokens 8", False),
        ("--output-tokens 8", False),
        ("--requests 9", False),
        ("--duration 9", False),
        ("--repeats 2", False),
    ],
)
def test_only_the_loads_of_the_preset_have_its_limit(words, limited):
    sweep = read(*words.split()).load.sweep(seed=1)
    assert sweep.limit_s == (PRESETS["quick"].limit_s if limited else None)
    assert 0 < PRESETS["quick"].limit_s < QUICK_MINUTES * 60


RUN = {"url": "u", "model": "m", "seed": 1}


def line(key, completed=1):
    return {"point": {"key": key}, "completed": completed}


def test_a_line_cut_by_a_crash_is_dropped_and_the_point_measured_again(tmp_path):
    with open_store(tmp_path, RUN, resume=False) as store:
        store.append(line("a"))
        store.append(line("b"))
    path = tmp_path / "results.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    with open_store(tmp_path, RUN, resume=True) as store:
        assert set(store.done()) == {"a"}
        store.append(line("b"))
    assert [r["point"]["key"] for r in read_results(tmp_path)] == ["a", "b"]
    assert [json.loads(text)["point"]["key"] for text in path.read_text().splitlines()] == ["a", "b"]


def test_of_two_results_of_a_point_the_later_counts_and_one_without_answers_is_not_done(tmp_path):
    store = ResultStore(tmp_path)
    store.append(line("a", completed=0))
    assert store.done() == {}
    store.append(line("a", completed=3))
    assert read_results(tmp_path) == [line("a", completed=3)]


def test_a_folder_with_results_is_not_overwritten_and_not_mixed_with_another_sweep(tmp_path):
    with open_store(tmp_path, RUN, resume=False) as store:
        store.append(line("a"))
    with pytest.raises(SweepError, match="Add --resume"), open_store(tmp_path, RUN, resume=False):
        pass
    with (
        pytest.raises(SweepError, match='has model "m", but this one has "other"'),
        open_store(tmp_path, RUN | {"model": "other"}, resume=True),
    ):
        pass


def test_two_sweeps_cannot_write_into_one_folder(tmp_path):
    with (
        open_store(tmp_path, RUN, resume=False),
        pytest.raises(SweepError, match="in use by another sweep"),
        open_store(tmp_path, RUN, resume=True),
    ):
        pass


def test_a_damaged_line_in_the_middle_is_refused_with_its_number(tmp_path):
    (tmp_path / "results.jsonl").write_text(json.dumps(line("a")) + "\nrubbish\n" + json.dumps(line("b")) + "\n")
    with pytest.raises(SweepError, match="line 2 is not a result"):
        read_results(tmp_path)


@pytest.mark.parametrize("seed", range(20))
def test_a_draw_of_arrivals_changes_the_pattern_and_never_the_rate(seed):
    assert arrival_count(0.5, None, 30.0) == 15
    assert arrival_count(6.0, 50, 12.0) == 50
    times = arrivals(0.5, 15, seed, poisson=True)
    assert len(times) == 15
    assert times[0] == 0.0
    assert list(times) == sorted(times)
    assert times[-1] < 30.0
