"""The limit and the best public figure of each stage of a start, for all shipped stacks."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from gemma_serving.contracts.settings_files import shipped_files
from gemma_serving.planning.cost.subject import Subject, examine
from gemma_serving.planning.solve.explain import explain
from gemma_serving.planning.speed.start_limits import (
    FIGURES,
    NEEDS_REASON,
    PATHS,
    WHOLE,
    StageLimit,
    figure_of,
    stage_limits,
)
from gemma_serving.stacks.loading import from_file
from gemma_serving.stacks.planned import to_question

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = {path.stem.removeprefix("Pulumi."): path for path in shipped_files(ROOT)}


def subject_of(stack: str) -> Subject:
    return examine(to_question(from_file(SHIPPED[stack], project="my-project")))


def faults(limits: tuple[StageLimit, ...], platform: str) -> Iterator[str]:
    for one in limits:
        if figure_of(one.name, platform) is None:
            yield f"{one.name} on {platform}: add a row to start_limits.json, without `best` if no public figure is known"
        elif one.best_s and one.name != WHOLE and one.takes_s > NEEDS_REASON * one.best_s and not one.reason:
            yield f"{one.name} takes {one.takes_s:.0f} s, its best figure {one.best_s:.0f} s: add the reason to start_limits.json"


@pytest.mark.parametrize("stack", SHIPPED)
def test_a_stage_far_above_its_best_public_figure_has_a_reason(stack: str):
    subject = subject_of(stack)
    assert [*faults(stage_limits(subject.resolved, subject.startup), subject.resolved.platform)] == []


def test_a_missing_reason_and_a_new_stage_are_found():
    subject = subject_of("l4-12b-qat")
    limits = stage_limits(subject.resolved, subject.startup)
    planted = (replace(limits[0], reason=""), replace(limits[-2], name="another stage"), limits[-1])
    assert [fault.partition(" takes")[0].partition(" on ")[0] for fault in faults(planted, "cloud-run")] == [
        "compile and warm-up",
        "another stage",
    ]


@pytest.mark.parametrize("stack", SHIPPED)
def test_the_table_names_the_longest_stage_first_and_fits_80_columns(stack: str):
    subject = subject_of(stack)
    lines = dict(explain(subject))["Start-up"]
    limits = stage_limits(subject.resolved, subject.startup)
    place = next(at for at, line in enumerate(lines) if line.startswith("seconds"))
    table = lines[place : place + len(limits) + 1]
    assert lines[0].startswith(f"{max(subject.startup.stages, key=lambda one: one.takes_s).name} takes longest")
    assert [re.split(r"\s{2,}", line)[0].rstrip(" .0123456789") for line in table[1:]] == [one.name for one in limits]
    assert all(len(f"  {line}") <= 80 for line in table)
    json.dumps([one.to_json() for one in limits])


def test_a_limit_is_the_bytes_over_the_rate_of_their_path():
    subject = subject_of("l4-12b-qat")
    limits = {one.name: one for one in stage_limits(subject.resolved, subject.startup)}
    assert limits["weights from the bucket"].limit_s == pytest.approx(subject.weights.checkpoint / 2e9)
    assert limits["compile and warm-up"].limit_s is None
    assert limits[WHOLE].limit_s == limits["weights from the bucket"].limit_s


def test_every_figure_has_a_source_with_its_date():
    sources = [*(source for _, source in PATHS.values())]
    sources += [row.source for row in FIGURES.values() if row.best]
    assert [source for source in sources if not re.search(r"[,;] (read )?20\d\d(-\d\d)*\)$", source)] == []
