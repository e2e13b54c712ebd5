"""The newest share of right answers of a deployment, for tables of other commands."""

from scripts.quality.store import runs_of
from scripts.quality.tables import share_text


def quality_of(stack: str, deployment: str) -> str:
    """Return the share of the newest complete run without thinking on a real server of this deployment; empty without one.

    Raises CommandRefusedError for a run that cannot be read.
    """
    runs = (one for one in runs_of(stack) if one.header.served.deployment == deployment)
    usual = (one for one in runs if one.represents_stack and not one.header.thinking)
    found = next((one for one in usual if one.header.served.simulated is None), None)
    return "" if found is None else share_text(found.share())
