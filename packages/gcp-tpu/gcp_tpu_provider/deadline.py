"""Warnings before a machine's run expires, shown by preview and update."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from gcp_tpu_provider import wire
from gcp_tpu_provider.diff import is_dead
from gcp_tpu_provider.durations import readable

LEAST_LEFT = timedelta(minutes=30)
LEAST_SHARE_LEFT = 0.1
"""A warning is shown if less than this share of the run duration is left, or less than LEAST_LEFT."""


def deadline_warning(outputs: Mapping[str, Any], now: datetime, *, renews: bool = False) -> str:
    """Return a warning that Google will soon delete the machine or has already deleted it. Empty if none is needed.

    `renews`: the next update requests a second machine, or continues waiting for it.
    """
    state = cast("wire.Properties", wire.reveal(dict(outputs)))
    text = state.get("deadline")
    if not isinstance(text, str) or not text or is_dead(state):
        return ""
    try:
        deadline = datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        return ""
    run_s = state.get("maxRunDurationS")
    share = timedelta(seconds=float(run_s) * LEAST_SHARE_LEFT) if isinstance(run_s, int | float) else timedelta()
    left = deadline - now
    if left > max(LEAST_LEFT, share):
        return ""
    at = f"{deadline:%Y-%m-%d %H:%M} UTC"
    if left <= timedelta():
        return f"The run of {state.get('name')} expired at {at}. Run `pulumi up --refresh` to request capacity again."
    step = (
        "Run `pulumi up` before then to renew it."
        if renews
        else "After that, run `pulumi up --refresh` to request capacity again."
    )
    return f"Google will delete the machine of {state.get('name')} at {at}, in {readable(left.total_seconds())}. {step}"
