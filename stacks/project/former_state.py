"""Refusal of a state that a version before 0.4 wrote, before any resource is declared."""

from typing import Final

import pulumi

from contracts.fields import as_mapping

LAST_COMMIT: Final = "5f021563"
"""Last commit before 0.4. It can update and tear down every stack that it or an earlier commit deployed."""
_FORMER_TYPE: Final = "gcp:projects/service:Service"
"""Every stack before 0.4 declared its APIs. No later stack does, and a state of a stack has no other resources."""


class FormerStateError(ValueError):
    """The stack's state was written before 0.4. The message names the commit that tears it down."""


def require_current_state(stack: str) -> None:
    """Raise FormerStateError if the stack's own state was written before 0.4. `up` would delete and change what that version created."""
    name = f"{pulumi.get_organization()}/{pulumi.get_project()}/{stack}"
    # Outputs of the stack itself do not suffice: the state of an `up` that failed has resources, but no outputs.
    found = as_mapping(pulumi.runtime.invoke("pulumi:pulumi:readStackResourceOutputs", {"stackName": name}).value)
    types = {as_mapping(each).get("type") for each in as_mapping(found.get("outputs")).values()}
    if _FORMER_TYPE in types:
        raise FormerStateError(
            f"Stack {stack} was deployed by a version before 0.4, and this version changes nothing of it: run `git checkout {LAST_COMMIT}`, "
            f"tear it down with `python -m scripts.teardown --stack {stack}`, then return to this version and deploy it again."
        )
