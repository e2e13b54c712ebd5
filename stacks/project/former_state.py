"""Refusal of a state that a version before 0.4 wrote, before any resource is declared."""

from collections.abc import Mapping
from typing import Final

import pulumi
from tenacity import retry, retry_if_exception_message, stop_after_delay, wait_random_exponential

from contracts.errors import CommandRefusedError
from contracts.fields import as_mapping

LAST_COMMIT: Final = "5f021563"
"""Last commit before 0.4. It tears down every stack that it or an earlier one deployed."""
_READ_S: Final = 20.0
"""Maximum time until a state that is being written can be read."""
_FORMER_TYPE: Final = "gcp:projects/service:Service"
"""Stacks before 0.4 declared their APIs. Later stacks do not."""


def require_current_state(stack: str) -> None:
    """Raise CommandRefusedError if the stack's own state was written before 0.4."""
    name = f"{pulumi.get_organization()}/{pulumi.get_project()}/{stack}"
    # Outputs of the stack itself do not suffice: the state of an `up` that failed has resources, but no outputs.
    types = {as_mapping(each).get("type") for each in as_mapping(_resources(name).get("outputs")).values()}
    if _FORMER_TYPE in types:
        raise CommandRefusedError(
            f"Stack {stack} was deployed by a version before 0.4, and this version does not change it. Run `git checkout {LAST_COMMIT}`, "
            f"tear it down with `gemma teardown {stack}`, then return to this version and deploy it again."
        )


@retry(
    retry=retry_if_exception_message(match=r"(?s).*failed to load checkpoint"),
    wait=wait_random_exponential(multiplier=0.1, max=2),
    stop=stop_after_delay(_READ_S),
    reraise=True,
)
def _resources(stack: str) -> Mapping[str, object]:
    """Return the resources in a state. A reader finds a local file empty while the engine writes it."""
    return as_mapping(pulumi.runtime.invoke("pulumi:pulumi:readStackResourceOutputs", {"stackName": stack}).value)
