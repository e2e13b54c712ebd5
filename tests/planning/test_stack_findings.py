"""The shipped stacks follow the planner's own advice, or accept a finding with the reason beside it."""

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
