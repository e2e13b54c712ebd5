"""Pull requests to write comments about: a base of three stacks, and one change each.

`python -m tests.scripts.preview.cases` plans them and stores the plans, so that a comment changes only where its own code does.
"""

import json
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from gemma_serving.contracts.settings_files import settings_file
from gemma_serving.engine.steps import ResourceChange, ShownChange
from gemma_serving.scripts.preview.plans import StackDescription, describe_checkout
from gemma_serving.scripts.preview.previews import StackPreview

ROOT = Path(__file__).resolve().parents[3]
HERE = Path(__file__).parent
PLANS, GOLDEN = HERE / "plans", HERE / "golden"
STACKS = ("l4-qat", "tpu-v6e1", "tpu-v6e4")
DATE = "2026-10-01"
ZONES = "zones: [us-east5-a, us-east5-b, europe-west4-a, southamerica-west1-a]"
"""Zones of tpu-v6e4 before each change, as in the recorded previews: one known zone is left to add."""
CAPACITY = "gcp-tpu:index:QueuedResource"

Edit = Callable[[Path], None]


def replaced(stack: str, old: str, new: str) -> Edit:
    """Return an edit of a stack's file."""

    def edit(folder: Path) -> None:
        path = folder / f"Pulumi.{stack}.yaml"
        text = path.read_text()
        assert old in text, f"{path.name} has no {old}"
        path.write_text(text.replace(old, new))

    return edit


def both(*edits: Edit) -> Edit:
    """Return several edits as one."""

    def edit(folder: Path) -> None:
        for one in edits:
            one(folder)

    return edit


def add(folder: Path) -> None:
    shutil.copy(ROOT / "examples" / "stacks" / "Pulumi.rtx6000-31b.yaml", folder)


def remove(folder: Path) -> None:
    (folder / "Pulumi.tpu-v6e1.yaml").unlink()


CASES: Mapping[str, Edit] = {
    "flag": replaced("tpu-v6e4", "maxModelLen: 16384", "maxModelLen: 8192"),
    "zone": replaced("tpu-v6e4", "zones: [us-east5-a, us-east5-b,", "zones: [us-east5-b,"),
    "zone-added": replaced("tpu-v6e4", ZONES, f"{ZONES[:-1]}, asia-northeast1-b]"),
    "accelerator": both(
        replaced("tpu-v6e4", "acceleratorType: v6e-4", "acceleratorType: v6e-8"),
        replaced("tpu-v6e4", "tensorParallelSize: 4", "tensorParallelSize: 8"),
    ),
    "new-stack": add,
    "no-change": lambda _: None,
    "blocked": replaced("tpu-v6e4", "google/gemma-4-E2B-it", "google/gemma-4-31B-it"),
    "model-switch": both(
        replaced("tpu-v6e4", "google/gemma-4-E2B-it", "google/gemma-4-E4B-it"),
        replaced("l4-qat", "xbill9/gemma-4-26B-A4B-it-qat-q4_0-w4a16-ct", "google/gemma-4-12B-it-qat-w4a16-ct"),
    ),
    "removed-stack": remove,
}


ARGUMENTS = ShownChange(
    path='metadata["gemma-serving-document"].args', before="--max-model-len=16384", after="--max-model-len=8192"
)
SLICE = ShownChange(path="acceleratorType", before="v6e-4", after="v6e-8", replaces=True)


def capacity(
    op: str, *properties: str, forced: tuple[str, ...] = (), changes: tuple[ShownChange, ...] = ()
) -> ResourceChange:
    return ResourceChange(
        op=op, type=CAPACITY, name="capacity", properties=properties, forced_by=forced, changes=changes
    )


def deployed(stack: str, *changes: ResourceChange, error: str | None = None) -> StackPreview:
    return StackPreview(stack=stack, changes=changes, unchanged=30 - len(changes), error=error)


PREVIEWS: Mapping[str, tuple[StackPreview, ...]] = {
    "flag": (
        deployed("tpu-v6e4", capacity("update", "metadata", changes=(ARGUMENTS,))),
        deployed("l4-qat"),
        deployed("tpu-v6e1"),
    ),
    "zone-added": (StackPreview(stack="tpu-v6e4", changes=(capacity("create"),), simulated=True, new_stack=True),),
    "accelerator": (
        deployed(
            "tpu-v6e4",
            capacity("replace", "acceleratorType", "metadata", forced=("acceleratorType",), changes=(SLICE,)),
        ),
        deployed("l4-qat"),
        deployed("tpu-v6e1"),
    ),
}
"""The engine's previews: of deployed stacks, and of stacks without a state, as a fork has them. The others have plans only."""


def planned(edit: Edit) -> Mapping[str, StackDescription]:
    """Plan the three stacks with an edit."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for stack in STACKS:
            shutil.copy(settings_file(stack, ROOT), folder)
        path = folder / "Pulumi.tpu-v6e4.yaml"
        path.write_text(re.sub(r"zones: \[.*\]", ZONES, path.read_text()))
        edit(folder)
        return describe_checkout(folder, date=DATE)


def store(name: str, plans: Mapping[str, StackDescription]) -> None:
    found = {stack: described.model_dump() for stack, described in plans.items()}
    (PLANS / f"{name}.json").write_text(f"{json.dumps(found, indent=1)}\n")


def write_all() -> None:
    store("base", planned(lambda _: None))
    for name, edit in CASES.items():
        store(name, planned(edit))


if __name__ == "__main__":
    write_all()
