"""The first preview: three lines, one about prices, one about accepted findings; and a changed flag with its restart."""

import pulumi
import pytest

from gemma_serving.contracts.resource_types import CAPACITY_TYPE, SERVICE_TYPE
from gemma_serving.contracts.server_change import ChangedValue, ServerChange
from gemma_serving.contracts.settings_files import settings_file
from gemma_serving.planning.planner import plan
from gemma_serving.planning.rules.findings import counted_notes
from gemma_serving.planning.settings.image import image_of_version
from gemma_serving.stacks.hooks import changed_server
from gemma_serving.stacks.hooks.changed_server import change_text
from gemma_serving.stacks.loading import from_file
from gemma_serving.stacks.planned import preview_lines, to_question
from gemma_serving.stacks.settings_wording import StackWording
from tests.contracts.test_server_change import machine
from tests.records import replace
from tests.stacks.conftest import ROOT
from tests.stacks.failed_start import context_of

FLAG = ChangedValue(key="--max-model-len", before="16384", after="8192")


def lines(stack, date, *accepted):
    question = to_question(from_file(settings_file(stack, ROOT), project="my-project"), today=date)
    planned = replace(plan(question), accepted=accepted)
    return [text for text, _ in preview_lines(planned, stack, StackWording(question))]


@pytest.mark.parametrize(
    ("stack", "date", "vulnerabilities", "notes"),
    [("tpu-v6e1", "2026-09-20", 4, 0), ("tpu-v6e1", "2027-06-01", 4, 1), ("l4-12b-qat", "2026-09-20", 2, 1)],
)
def test_vulnerabilities_and_notes_are_one_line_that_counts_them_and_names_the_command(
    stack, date, vulnerabilities, notes
):
    said = lines(stack, date)
    assert [line.split()[0] for line in said[1:3]] == ["Starts", "Costs"]
    counted = " (no public server of bf16 weights on a newer image is known)" if stack.startswith("tpu") else ""
    counted += {0: "", 1: ", 1 note"}[notes]
    assert said[3:] == [f"{vulnerabilities} published vulnerabilities{counted}: `gemma plan {stack} --explain`"]


def test_another_image_has_no_reason_of_the_default():
    question = to_question(from_file(settings_file("tpu-v6e1", ROOT), project="my-project"))
    newer = plan(question.changed(image=image_of_version("0.30.1rc1.dev221+gc8d7a7dd1")))
    assert counted_notes(newer).startswith("2 published vulnerabilities")


def test_accepted_findings_are_on_the_same_line_and_the_cost_stays():
    said = lines("tpu-v6e4", "2026-09-20", "CST05", "FIT07", "WRK10")
    assert said[2].startswith("Costs $5.40/h")
    counted = "4 published vulnerabilities (no public server of bf16 weights on a newer image is known), 1 note"
    assert said[3:] == [f"{counted}, accepted findings FIT07, WRK10: `gemma plan tpu-v6e4`"]
    assert not [line for line in said if line.startswith("FIT07")]


TEXTS = [
    (CAPACITY_TYPE, ServerChange((FLAG,)), "--max-model-len: 16384 -> 8192, restarts in place, about 9 min"),
    (
        CAPACITY_TYPE,
        ServerChange((ChangedValue(key="model", before="a", after="b"),)),
        "model: a -> b, restarts in place, about 9 min",
    ),
    (
        CAPACITY_TYPE,
        ServerChange((ChangedValue(key="--served-model-name", before="a", after="b"),)),
        "--served-model-name: a -> b, restarts in place, about 5 min",
    ),
    (CAPACITY_TYPE, ServerChange(()), ""),
    (
        CAPACITY_TYPE,
        None,
        "The server may change during `up`; it then restarts in place, about 5 min, or 9 min if it compiles again.",
    ),
    (
        SERVICE_TYPE,
        ServerChange((FLAG,)),
        "--max-model-len: 16384 -> 8192, creates a new revision, ready in about 12 min",
    ),
]


@pytest.mark.parametrize(("kind", "change", "text"), TEXTS)
def test_a_change_of_the_server_is_stated_with_its_effect(kind, change, text):
    question = to_question(from_file(ROOT / "Pulumi.tpu-v6e1.yaml", project="my-project"))
    assert change_text(kind, change, plan(question)) == text


@pytest.fixture
def hooks(bound, monkeypatch):
    """The hooks of the program in a preview, or in an `up`."""

    def of(*, preview):
        monkeypatch.setattr(pulumi.runtime, "is_dry_run", lambda: preview)
        settings = from_file(ROOT / "Pulumi.tpu-v6e1.yaml", project="my-project")
        return bound(lambda: changed_server.show_changes(context_of(settings)))

    return of


def test_a_preview_shows_the_flag_that_the_engine_is_about_to_change(hooks, monkeypatch):
    said = []
    monkeypatch.setattr(pulumi.log, "info", said.append)
    in_preview = hooks(preview=True)
    assert in_preview("gcp:storage/bucket:Bucket") is None
    (hook,) = in_preview(CAPACITY_TYPE).before_update
    assert hook.opts.on_dry_run
    hook.callback(
        pulumi.ResourceHookArgs(
            "urn", "", "capacity", CAPACITY_TYPE, old_inputs=machine("--a=1"), new_inputs=machine("--a=2")
        )
    )
    assert said == ["--a: 1 -> 2, restarts in place, about 9 min"]


def test_an_up_registers_no_hook(hooks):
    assert hooks(preview=False)(CAPACITY_TYPE) is None
