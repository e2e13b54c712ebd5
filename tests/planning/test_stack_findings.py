"""The shipped stacks follow the planner's own advice, or accept a finding with the reason beside it, and cost what their files say."""

import re
from pathlib import Path

import pytest

from gemma_serving.contracts.settings_files import shipped_files
from gemma_serving.planning.cost.subject import examine
from gemma_serving.planning.data.checkpoints import with_owner
from gemma_serving.planning.data.images import IMAGES
from gemma_serving.planning.memory.host_memory import with_margin_gib
from gemma_serving.planning.planner import original_note, plan
from gemma_serving.planning.settings.paths import value_at, with_changes
from gemma_serving.planning.settings.question import Question
from gemma_serving.planning.settings.workload import DEFAULT_WORKLOAD
from gemma_serving.planning.solve.candidates import checkpoints_of, question_of, rentable_accelerators, servings_of
from gemma_serving.stacks.loading import from_file
from gemma_serving.stacks.planned import to_question

ROOT = Path(__file__).resolve().parents[2]
FILES = shipped_files(ROOT)


def deployed(path):
    return to_question(from_file(path, project="my-project"))


def planned(path):
    return plan(deployed(path))


def unaccepted(found):
    return [finding.id for finding in found.findings if finding.severity != "info" and finding.id not in found.accepted]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_stack_comes_with_a_finding_that_it_does_not_accept(path):
    assert unaccepted(planned(path)) == []


def test_a_comment_about_host_memory_has_the_figures_of_its_finding():
    needs = re.compile(r"# Loading needs ([\d.]+) GiB of host memory, and ([\d.]+) GiB should stay free\.")
    stated = {path: found.groups() for path in FILES if (found := needs.search(path.read_text(encoding="utf-8")))}
    assert len(stated) == 2
    for path, figures in stated.items():
        peak_gib = planned(path).memory.load_peak_host_gib
        assert figures == (f"{peak_gib:.1f}", f"{with_margin_gib(peak_gib) - peak_gib:.1f}")


def test_a_stack_on_an_individuals_repack_says_so_everywhere_and_what_googles_own_checkpoint_costs():
    pages = [(ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/reference/stacks.md")]
    repacked = {path: note for path in FILES if (note := original_note(examine(deployed(path))))}
    assert [path.name for path in repacked] == [
        "Pulumi.l4-qat-002.yaml",
        "Pulumi.l4-qat.yaml",
        "Pulumi.tpu-v6e1-26b-w4a16.yaml",
    ]
    for path, note in repacked.items():
        (price,) = re.findall(r"does not fit on \S+; it fits on RTX PRO 6000 on Cloud Run \((\$[\d.]+)/h\)", note)
        assert all(f"{price} per hour" in page for page in pages)
        assert "(an individual's repack)" in path.read_text(encoding="utf-8").splitlines()[1]
        assert with_owner(planned(path).model).endswith("(an individual's repack)")
        rows = [
            row for page in pages for row in page.splitlines() if row.startswith(f"| `{path.stem.partition('.')[2]}` ")
        ]
        assert rows
        assert all("an individual's repack" in row for row in rows)


def test_no_finding_is_in_every_stack():
    """What is true of every stack is a part of the plan or a sentence of a page: nobody reads a finding that is always there."""
    found = [{finding.id for finding in planned(path).findings} for path in FILES]
    assert set.intersection(*found) == set()


def test_every_stack_says_how_to_receive_its_alerts():
    for path in FILES:
        stack = path.name.removeprefix("Pulumi.").removesuffix(".yaml")
        command = f"pulumi config set --path gemma-serving:alerts.email you@example.com --stack {stack}."
        head = path.read_text(encoding="utf-8").partition("\nconfig:\n")[0]
        assert f"# Only the console and gemma alerts show alerts. To receive them, run {command}" in head.splitlines()


@pytest.mark.parametrize("image", [image for image, row in IMAGES.items() if row.shipped])
def test_the_way_out_on_one_chip_and_the_search_start_as_the_shipped_stack(image: str):
    ((model, row),) = IMAGES[image].shipped["v6e-1"].items()
    shipped = next(
        stack for stack in map(deployed, FILES) if (stack.settings.model, stack.accelerator_name) == (model, "v6e-1")
    )
    assert {path: value_at(shipped, path) for path in row} == row
    asked = Question().changed(model="google/gemma-4-31B-it", accelerator="v6e-1")
    (way,) = (way for found in plan(asked).findings for way in found.remedies if way.changes.get("model") == model)
    moved, own = plan(with_changes(asked, way.changes)), plan(shipped)
    assert (moved.vllm, moved.startup.total_s) == (own.vllm, own.startup.total_s)
    (served,) = servings_of(checkpoints_of(model))
    ((place,),) = rentable_accelerators((), accelerator="v6e-1")
    searched = plan(question_of(served, place, DEFAULT_WORKLOAD, None))
    assert searched.startup.total_s == own.startup.total_s
