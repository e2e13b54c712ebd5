"""The shipped stacks follow the planner's own advice, or accept a finding with the reason beside it, and cost what their files say."""

import re
from pathlib import Path

import pytest

from planning import plan
from planning.data.prices import LIST_PRICES
from stacks.loading import from_file
from stacks.planned import to_deployment

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(ROOT.glob("Pulumi.*.yaml"))
ACCEPTED = re.compile(r"((?:^  #.*\n)*)^  gemma-serving:acceptFindings: \[(.*)\]$", re.MULTILINE)
PLANNED = re.compile(
    r"^# Planned: \$([\d.]+)/h.*?\$([\d.]+) per million output tokens.* (\d+) minutes to start\.$", re.MULTILINE
)
STACKS = [path for path in FILES if PLANNED.search(path.read_text(encoding="utf-8"))]


def planned(path):
    return plan(to_deployment(from_file(path, project="my-project")))


def unaccepted(found):
    return [finding.id for finding in found.findings if finding.severity != "info" and finding.id not in found.accepted]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_stack_comes_with_a_finding_that_it_does_not_accept(path):
    assert unaccepted(planned(path)) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_what_a_stack_accepts_it_explains_and_nothing_more(path):
    found = ACCEPTED.search(path.read_text(encoding="utf-8"))
    accepted = found[2].split(", ") if found else []
    assert sorted(accepted) == sorted(planned(path).accepted), "a finding that is no longer there is no longer accepted"
    assert [identifier for identifier in accepted if identifier not in found[1]] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_zones_with_a_known_price_come_before_zones_without(path):
    tpu = from_file(path, project="my-project").tpu
    assumed = [
        LIST_PRICES.tpu_chip_hour(tpu.accelerator_type.partition("-")[0], tpu.provisioning, zone).is_assumed
        for zone in (tpu.zones if tpu else ())
    ]
    assert assumed == sorted(assumed)


def test_the_stacks_of_one_chip_and_of_four_say_what_they_cost():
    assert {path.name for path in STACKS} >= {
        f"Pulumi.{name}.yaml" for name in ("tpu-v6e1-31b-w4a16", "tpu-v6e1-26b-w4a16", "tpu-v6e4-31b")
    }


@pytest.mark.parametrize("path", STACKS, ids=lambda path: path.name)
def test_the_price_and_the_start_in_a_comment_are_those_of_the_plan(path: Path):
    said = PLANNED.search(path.read_text(encoding="utf-8"))
    assert said is not None
    found = planned(path)
    assert found.fits
    assert found.workload is not None
    assert float(said[1]) == round(found.cost.usd_per_hour, 2)
    assert float(said[2]) == round(found.workload.usd_per_million_output_tokens.typical, 2)
    assert int(said[3]) == round(found.startup.total_s / 60)


def test_the_one_chip_is_a_fourth_of_the_four_and_dearer_for_each_token():
    one, four = (planned(ROOT / f"Pulumi.{name}.yaml") for name in ("tpu-v6e1-31b-w4a16", "tpu-v6e4-31b"))
    assert one.cost.usd_per_hour == pytest.approx(four.cost.usd_per_hour / 4)
    assert one.workload is not None
    assert four.workload is not None
    dear, cheap = (each.usd_per_million_output_tokens.typical for each in (one.workload, four.workload))
    text = (ROOT / "Pulumi.tpu-v6e1-31b-w4a16.yaml").read_text(encoding="utf-8")
    assert f"${dear:.2f} per million output tokens for eight users, compared with ${cheap:.2f} there" in text
