"""The last answer in a stack's state, for a request that Google no longer lists."""

from datetime import datetime

from gemma_serving.contracts.fields import as_mapping, as_sequence
from gemma_serving.engine.state import StackState
from gemma_serving.planning.cost.provisioning import PROVISIONING_MODELS
from gemma_serving.scripts.capacity.places import ExistingRequest
from gemma_serving.scripts.stack.costs import form_in_use
from gemma_serving.scripts.status.api import serving


def recorded_answer(state: StackState) -> ExistingRequest | None:
    """Return the state of the stack's queued resource as of the last `gemma up`; None if the stack's state has none."""
    found = serving(state)
    if found is None or "/queuedResources/" not in str(found.outputs.get("name") or ""):
        return None
    used = form_in_use(found.inputs, found.outputs)
    history = [as_mapping(item) for item in as_sequence(found.outputs.get("stateHistory"))]
    at = str(history[-1].get("at") or "") if history else ""
    return ExistingRequest(
        name=str(found.outputs["name"]),
        stack=state.stack,
        state=str(found.outputs.get("state") or "UNKNOWN"),
        created=datetime.fromisoformat(at or "1970-01-01T00:00:00Z"),
        detail=str(found.outputs.get("stateMessage") or ""),
        model=next((model for model in PROVISIONING_MODELS if model == used), None),
        is_recorded=True,
    )
