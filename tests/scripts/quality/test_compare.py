"""Runs compare only on the questions that all of them answered, with the same set, and never simulated with real ones."""

import json
from dataclasses import replace

import pytest

from contracts.errors import CommandRefusedError
from planning.question.types import Band
from scripts.cli.command import run_command
from scripts.cli.measured.schema import BenchPoint, DeploymentRecord, Identity, PlannedFigures
from scripts.cli.measured.store import change_measured
from scripts.quality.__main__ import COMMAND
from scripts.quality.compare import MeasuredSpeed, compare
from scripts.quality.items import all_items, digest
from scripts.quality.results import SCHEMA_VERSION, JudgedAnswer, QualityHeader, QualityResult, ServedDeployment
from scripts.quality.speed import measured_speed
from scripts.quality.store import QualityStore


def result(name, *, wrong=(), unknown=(), ids=None, every=False, simulated=None, **served):
    """A run of a stack, right but for some questions by number."""
    few = all_items() if every else all_items()[:40]
    items = few if ids is None else [one for one in all_items() if one.id in ids]
    verdicts = dict.fromkeys(wrong, "wrong") | dict.fromkeys(unknown, "unknown")
    answers = tuple(
        JudgedAnswer(
            id=one.id, kind=one.kind, verdict=verdicts.get(number, "right"), asked=one.ask, expected="x", found="y", fault="",
            text="", prompt_tokens=10, completion_tokens=5, elapsed_s=0.5,
        )
        for number, one in enumerate(items)
    )  # fmt: skip
    whole = {
        "settings_sha256": f"hash of {name}",
        "stack": name,
        "checkpoint": "google/gemma-4-12B-it",
        "weights": "bf16",
        "kv_cache": "fp8",
        "accelerator": "L4",
    }
    header = QualityHeader(
        schema_version=SCHEMA_VERSION, date="2026-11-22T10:00:00+00:00", url="http://x", set_sha256=digest(all_items()),
        planned=len(answers), thinking=False,
        served=ServedDeployment(
            model="gemma", max_model_len=4096, vllm_version="0.28.0", simulated=simulated, usd_per_hour=1.42,
            image_digest="sha256:1", **(whole | served),
        ),
    )  # fmt: skip
    return QualityResult(folder=f"results/{name}/a-quality", header=header, answers=answers)


def compared(*results):
    return compare(results, [None] * len(results))


def test_a_difference_counts_only_if_it_is_more_than_chance():
    found = compared(result("a"), result("b", wrong=range(5)), result("c", wrong=range(12)))
    assert [row.verdict for row in found.rows] == [None, "unclear", "worse"]
    assert [(row.lost, row.won) for row in found.rows[1:]] == [(5, 0), (12, 0)]
    assert found.rows[1].p == pytest.approx(0.0625)
    assert found.is_worse
    found = compared(result("a", wrong=range(12)), result("b"))
    assert (found.rows[1].verdict, found.rows[1].won, found.is_worse) == ("better", 12, False)


def test_pairs_decide_and_not_the_shares():
    """Two runs with the same share that fail on different questions do not differ; one that fails on a part of the other's does."""
    same = compared(result("a", wrong=range(8)), result("b", wrong=range(8, 16)))
    assert (same.rows[1].verdict, same.rows[1].p) == ("unclear", 1.0)
    nested = compared(result("a", wrong=range(8)), result("b", wrong=range(14)))
    assert (nested.rows[1].verdict, nested.rows[1].lost, nested.rows[1].won) == ("worse", 6, 0)


def test_only_common_questions_count():
    short = [one.id for one in all_items()[:10]]
    found = compared(result("a", wrong=range(20, 40), unknown=[0]), result("b", ids=short))
    assert found.common == 9
    assert [row.total.value for row in found.rows] == [1.0, 1.0]
    with pytest.raises(CommandRefusedError, match="no answered question in common"):
        compared(result("a"), result("b", ids=[all_items()[50].id]))


def test_runs_that_do_not_compare_are_refused():
    one = result("a")
    other = replace(result("b"), header=replace(result("b").header, set_sha256="0"))
    for pair, said in (
        ((one,), "One run named"),
        ((one, one), "named twice"),
        ((one, other), "asked other questions"),
        ((one, result("c", simulated="planted")), "SIMULATED server. They mean nothing"),
    ):
        with pytest.raises(CommandRefusedError, match=said):
            compared(*pair)
    assert compared(result("a", simulated="x"), result("b", simulated="x")).is_simulated


def record(name, *, rates, digest_="sha256:1", simulated=None):
    band = Band(low=1.0, typical=2.0, high=3.0)
    points = tuple(
        BenchPoint(date="2026-11-22T11:00:00+00:00", input_tokens=1000, output_tokens=200, users=users, output_tok_per_s=rate)
        for users, rate in rates.items()
    )  # fmt: skip
    planned = PlannedFigures(
        kv_blocks=1, kv_tokens=1, startup_s=1, serving_start_s=1, usd_per_hour=1.42, decode_tok_per_s=band
    )
    identity = Identity(image_digest=digest_, settings_sha256=f"hash of {name}", simulated=simulated)
    return DeploymentRecord(
        identity=identity, first_seen="2026-11-22T10:00:00+00:00", model="m", accelerator="L4", platform="cloud-run", settings={},
        planned=planned, bench=points,
    )  # fmt: skip


def test_speed_is_that_of_the_same_deployment(monkeypatch, tmp_path):
    monkeypatch.setattr("scripts.cli.measured.store.project_folder", lambda: tmp_path)
    served = result("a").header.served
    assert measured_speed(served) is None
    others = (record("a", rates={8: 900}, digest_="sha256:2"), record("a", rates={8: 800}, simulated="planted"))
    change_measured("a", lambda file: replace(file, deployments=(record("a", rates={1: 60, 64: 700}), *others)))
    assert measured_speed(served) == MeasuredSpeed(output_tok_per_s=700, load="64 users, 1000 tokens in, 200 out")
    assert measured_speed(replace(served, simulated="planted")).output_tok_per_s == 800
    assert measured_speed(replace(served, stack=None)) is None


def test_the_command_compares_folders_and_the_newest_runs_of_stacks(monkeypatch, tmp_path, capsys):
    for module in ("scripts.cli.measured.store", "scripts.quality.store"):
        monkeypatch.setattr(f"{module}.project_folder", lambda: tmp_path)
    for one in (result("a"), result("b", wrong=range(12))):
        store = QualityStore(folder=tmp_path / "results" / one.name / "t-quality")
        store.start(one.header, resume=False)
        for answer in one.answers:
            store.append(answer)
    assert run_command(COMMAND, ["compare", "a", str(tmp_path / "results/b/t-quality"), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["common"], [row["verdict"] for row in found["rows"]]) == (40, [None, "worse"])
    assert run_command(COMMAND, ["compare", "b", "a"]) == 0
    text = capsys.readouterr().out
    assert "better" in text
    assert "No benchmark of this deployment of a is stored. Run `python -m scripts.bench --stack a`." in text
    assert run_command(COMMAND, ["compare", "a", "nothing"]) == 2
    assert "nothing is neither the folder of a run" in capsys.readouterr().err
