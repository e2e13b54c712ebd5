"""The price file of a stack: JSON with prices of your own, as `planning.data.prices` takes them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final, cast

from planning.data.prices import PriceBook
from planning.errors import PlanningError
from planning.numbers import read_json

ROOT: Final = Path(__file__).resolve().parents[1]
"""The folder of the settings file, from which a relative path counts."""


def book_of(path: str | None) -> PriceBook | None:
    """Return the prices of the file that the settings name; None if they name none.

    Raises:
        PlanningError: if the file cannot be read, or has a mistake.
    """
    if path is None:
        return None
    try:
        document = read_json((ROOT / path).read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanningError(
            f"prices names {path}, which cannot be read: {error.strerror}; paths count from the folder of Pulumi.yaml."
        ) from None
    except ValueError as error:
        raise PlanningError(f"prices names {path}, which is not JSON: {error}.") from None
    if not isinstance(document, dict):
        raise PlanningError(f"prices names {path}, which must hold one JSON object.")
    return PriceBook.from_mapping(cast("Mapping[str, object]", document))
