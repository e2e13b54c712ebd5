"""Share of right answers beside the speed of a sweep, if `scripts.quality` measured the same deployment."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from contracts.errors import CommandRefusedError
from contracts.fields import as_mapping
from loadtest.store import read_run
from scripts.quality.face import quality_of


def quality_beside(run: Mapping[str, Any]) -> str:
    """Return the share with its interval for the `run.json` of a sweep; empty if there is none to read."""
    stack, deployment = run.get("stack"), run.get("deployment")
    is_simulated = bool(as_mapping(run.get("server")).get("simulated"))
    if is_simulated or not isinstance(stack, str) or not isinstance(deployment, str):
        return ""
    try:
        return quality_of(stack, deployment)
    except CommandRefusedError:
        return ""


def quality_remark(before: Path, after: Path) -> str:
    """Return one sentence about the shares of two sweeps; empty if neither has one."""
    shares = [quality_beside(read_run(folder)) or "unknown" for folder in (before, after)]
    if set(shares) == {"unknown"}:
        return ""
    return (
        f"Right answers of the same deployments: {shares[0]} before, {shares[1]} after. "
        "`python -m scripts.quality compare` tests the difference."
    )
