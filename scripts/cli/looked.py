"""A dry run has an id, so that a person can agree to what it showed: with `--plan ID` the command refuses if it would do something else now."""

import hashlib
import json
from collections.abc import Mapping
from typing import Final

from contracts.errors import CommandRefusedError

_DIGITS: Final = 16


def look_id(shown: Mapping[str, object]) -> str:
    """Return the id of what a dry run showed."""
    text = json.dumps(shown, sort_keys=True, default=str)
    return f"plan-{hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]}"


def require_looked(given: str | None, now: str, *, command: str) -> None:
    """Refuse if a plan is given and the dry run has another id now. Raises CommandRefusedError."""
    if given is not None and given != now:
        raise CommandRefusedError(
            f"{given[:60]} is stale: a dry run shows something else now ({now}). Nothing was changed. Run `{command} --dry-run` and read it."
        )
