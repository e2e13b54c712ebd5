"""What a stack's file says that it costs is what its plan says."""

import re
from pathlib import Path

import pytest

from planning import plan
from stacks.loading import from_file
from stacks.planned import to_deployment

ROOT = Path(__file__).resolve().parents[2]
PLANNED = re.compile(
    r"^# Planned: \$([\d.]+)/h.*?\$([\d.]+) per million output tokens.* (\d+) minutes to start\.$", re.MULTILINE
)
STACKS = [path for path in sorted(ROOT.glob("Pulumi.*.yaml")) if PLANNED.search(path.read_text(encoding="utf-8"))]


def test_the_stacks_of_one_chip_and_of_four_say_what_they_cost():
    assert {path.name for path in STACKS} >= {
        f"Pulumi.{name}.yaml" for name in ("tpu-v6e1-31b-w4a16", "tpu-v6e1-26b-w4a16", "tpu-v6e4-31b")
    }


@pytest.mark.parametrize("path", STACKS, ids=lambda path: path.name)
def test_the_price_and_the_start_in_a_comment_are_those_of_the_plan(path: Path):
    said = PLANNED.search(path.read_text(encoding="utf-8"))
    assert said is not None
    planned = plan(to_deployment(from_file(path, project="my-project")))
    assert planned.fits
    assert planned.workload is not None
    assert float(said[1]) == round(planned.cost.usd_per_hour, 2)
    assert float(said[2]) == round(planned.workload.usd_per_million_output_tokens.typical, 2)
    assert int(said[3]) == round(planned.startup.total_s / 60)


def test_the_one_chip_is_a_fourth_of_the_four_and_dearer_for_each_token():
    one, four = (
        plan(to_deployment(from_file(ROOT / f"Pulumi.{name}.yaml", project="my-project")))
        for name in ("tpu-v6e1-31b-w4a16", "tpu-v6e4-31b")
    )
    assert one.cost.usd_per_hour == pytest.approx(four.cost.usd_per_hour / 4)
    assert one.workload is not None
    assert four.workload is not None
    dear, cheap = (each.usd_per_million_output_tokens.typical for each in (one.workload, four.workload))
    text = (ROOT / "Pulumi.tpu-v6e1-31b-w4a16.yaml").read_text(encoding="utf-8")
    assert f"${dear:.2f} per million output tokens for eight users, compared with ${cheap:.2f} there" in text
