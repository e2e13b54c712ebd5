"""Ids of dry runs, so the user can approve one and the command refuses another."""

import hashlib
import json

from gemma_serving.contracts.errors import CommandRefusedError


def dry_run_id(shown: object) -> str:
    """Return the id of a dry run's output."""
    text = json.dumps(shown, sort_keys=True, default=str)
    return f"plan-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def require_same_dry_run(given: str | None, now: str, *, command: str) -> None:
    """Refuse if a plan id is given and a dry run now has another id. Raises CommandRefusedError."""
    if given is not None and given != now:
        raise CommandRefusedError(
            f"{given[:60]} is stale: a dry run now has the id {now}. Nothing was changed. Run `{command} --dry-run` and review it."
        )
