"""Refusal of a state that a version before 0.4 wrote, before any resource is declared."""

from collections.abc import Mapping
from typing import Final

from contracts.errors import CommandRefusedError
from contracts.fields import as_mapping

LAST_COMMIT: Final = "5f021563"
"""Last commit before 0.4. It tears down every stack that it or an earlier one deployed."""
_FORMER_TYPE: Final = "gcp:projects/service:Service"
"""Stacks before 0.4 declared their APIs. Later stacks do not."""


def require_current_state(stack: str, deployed: Mapping[str, object]) -> None:
    """Raise CommandRefusedError if the stack's own resources, by URN, were deployed before 0.4."""
    if any(as_mapping(each).get("type") == _FORMER_TYPE for each in deployed.values()):
        raise CommandRefusedError(
            f"Stack {stack} was deployed by a version before 0.4, and this version does not change it. Run `git checkout {LAST_COMMIT}`, "
            f"tear it down with `gemma teardown {stack}`, then return to this version and deploy it again."
        )
