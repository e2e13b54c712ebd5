"""The network of a deleted stack that Google holds, or has released: its state has only that. Nothing here deletes it."""

from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final

from gemma_serving.cloud.clock import GOOGLE_CLOCK
from gemma_serving.cloud.google_api import GoogleListError, connect
from gemma_serving.cloud.held import HOLD, addresses_in
from gemma_serving.cloud.kinds import NETWORK, SUBNETWORK, by_name
from gemma_serving.contracts.errors import ScriptError
from gemma_serving.contracts.parallel import each_within
from gemma_serving.contracts.three_answers import Absent, Answer, Present, Unknown
from gemma_serving.engine.state import StackState

_ANSWER_LIMIT_S: Final = 5.0
_NETWORK: Final = by_name(NETWORK).type_
_SUBNETWORK: Final = by_name(SUBNETWORK).type_
NOT_ASKED: Final = Unknown("Google was not queried")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldNetwork:
    """The network and the subnetworks that are all that the state of a stack has."""

    stack: str
    subnetworks: tuple[str, ...]
    """Full names of the subnetworks, in which Google has its addresses."""
    written: datetime
    """Time at which the state was written, after the deletion of the service, by this machine's clock."""

    @property
    def until(self) -> datetime:
        """Time until which Google holds them at most."""
        return GOOGLE_CLOCK.at(self.written) + HOLD

    def sentence(self, is_held: Answer[None]) -> str:
        """Return what is left of the stack, its price and its end in local time. `is_held`: absent if Google has released it."""
        deletes = f"`gemma teardown {self.stack}` deletes it, $0."
        match is_held:
            case Present():
                return f"Deleted. Google holds its network until about {self.until.astimezone():%H:%M}, $0."
            case Absent():
                return f"Deleted. Google has released its network: {deletes}"
            case Unknown(why=why):
                held = f"which Google holds until {self.until.astimezone():%H:%M} at most"
                return f"Deleted, except its network, {held} ({why.rstrip('.')}). Then {deletes}"


def held_network(state: StackState) -> HeldNetwork | None:
    """Return the network that is all that a state has; None if it has other resources, or no subnetwork."""
    types = {str(item.get("type")) for item in state.resources if item.get("custom")}
    names = tuple(str(item.get("id")) for item in state.resources if item.get("type") == _SUBNETWORK)
    if state.pending or not names or not state.written or not types <= {_NETWORK, _SUBNETWORK}:
        return None
    return HeldNetwork(stack=state.stack, subnetworks=names, written=datetime.fromisoformat(state.written))


def is_held(network: HeldNetwork) -> Answer[None]:
    """Return whether Google holds a network. Unknown: it did not answer for each subnetwork."""
    asks = [partial(_has_addresses, name) for name in network.subnetworks]
    answers = each_within(asks, workers=len(asks), limit_s=_ANSWER_LIMIT_S)
    if any(held for held, _ in answers):
        return Present(None)
    errors = [str(error) for held, error in answers if held is None]
    return Unknown(errors[0]) if errors else Absent()


def _has_addresses(subnetwork: str) -> bool:
    """Return whether a subnetwork has reserved addresses. Raises ScriptError."""
    try:
        return bool(addresses_in(connect(subnetwork.split("/")[1]), subnetwork))
    except GoogleListError as error:
        raise ScriptError(f"Google returned an error: {error}") from None
