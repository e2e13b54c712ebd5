"""The stack's own state, read before any resource is declared."""

from collections.abc import Mapping
from typing import Final

import pulumi
from tenacity import retry, retry_if_exception_message, stop_after_delay, wait_random_exponential

from gemma_serving.contracts.fields import as_mapping

_READ_S: Final = 20.0
"""Maximum time until a state that is being written can be read."""


def deployed_resources(stack: str) -> Mapping[str, object]:
    """Return the resources in the stack's state by URN, each with its `type` and `outputs`; empty for a new stack."""
    name = f"{pulumi.get_organization()}/{pulumi.get_project()}/{stack}"
    # Outputs of the stack itself do not suffice: the state of an `up` that failed has resources, but no outputs.
    return as_mapping(_state(name).get("outputs"))


@retry(
    retry=retry_if_exception_message(match=r"(?s).*failed to load checkpoint"),
    wait=wait_random_exponential(multiplier=0.1, max=2),
    stop=stop_after_delay(_READ_S),
    reraise=True,
)
def _state(stack: str) -> Mapping[str, object]:
    """Return the answer of the engine. A reader finds a local file empty while the engine writes it."""
    return as_mapping(pulumi.runtime.invoke("pulumi:pulumi:readStackResourceOutputs", {"stackName": stack}).value)
