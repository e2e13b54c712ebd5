"""Folder of plans and previews, passed from the step that creates them to the step that posts them."""

from pathlib import Path
from typing import Final

from contracts.errors import CommandRefusedError
from engine.runner import project_folder
from scripts.preview.base import plans_of_checkout
from scripts.preview.comment import comment
from scripts.preview.plans import PlansDocument, describe_checkout, read_plans, write_plans
from scripts.preview.report import read_all

_BASE: Final = Path("plans") / "base.json"
_HEAD: Final = Path("plans") / "head.json"


def compare_plans(folder: Path, checkout: Path | None) -> tuple[PlansDocument | None, PlansDocument]:
    """Plan this checkout and, if given, the base's, and store both."""
    base = plans_of_checkout(checkout) if checkout else None
    head = describe_checkout(project_folder())
    (folder / _BASE).unlink(missing_ok=True)
    if base is not None:
        write_plans(folder / _BASE, base)
    write_plans(folder / _HEAD, head)
    return base, head


def stored_comment(folder: Path) -> str:
    """Return the comment for a folder's previews. Raises CommandRefusedError if it has no plans."""
    if not (folder / _HEAD).is_file():
        raise CommandRefusedError(f"{folder} has no plans. Run `gemma preview run --out {folder}` first.")
    base = read_plans(folder / _BASE) if (folder / _BASE).is_file() else None
    return comment(base, read_plans(folder / _HEAD), read_all(folder))
