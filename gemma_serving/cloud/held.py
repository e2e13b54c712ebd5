"""Resources of a torn-down stack that Google holds: a subnetwork in which Cloud Run has not released its addresses, and its network.

Cloud Run releases them one to two hours after the last service is gone (docs.cloud.google.com/run/docs/configuring/vpc-direct-vpc, "Delete a
subnet", 2026-11). Until then Google deletes neither. They cost nothing: networks and internal addresses have no price.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final

from gemma_serving.cloud.google_api import GoogleApi, listed
from gemma_serving.cloud.kinds import NETWORK, SUBNETWORK, Item, list_in
from gemma_serving.cloud.search import names
from gemma_serving.contracts.fields import as_mapping
from gemma_serving.contracts.search_results import FoundResource, Inventory

HOLD: Final = timedelta(hours=2)
"""The longest time for which Google holds a subnetwork after its last service."""
GRACE: Final = timedelta(hours=1)
"""Time after `HOLD` in which Google may be late (assumed). What exists later is leaked."""


def held_in(api: GoogleApi, inventory: Inventory, found: Sequence[FoundResource]) -> Mapping[str, Sequence[str]]:
    """Return the full names of the `found` resources that only Google holds, with the addresses that are the reason.

    Nothing is held unless every list was read. Raises GoogleListError and ScriptError if Google does not list the addresses.
    """
    held: dict[str, Sequence[str]] = {}
    for network in found if not inventory.unknown else ():
        inside = [item.name for item in found if item.kind == SUBNETWORK and names(item.document, network.name)]
        own = {network.name, *inside}
        users = {user for name in own for user in inventory.users.get(name, ["not listed"])}
        if network.kind != NETWORK or not inside or network.document.get("peerings") or users - own:
            continue
        addresses = [addresses_in(api, name) for name in inside]
        if all(one and all(map(_is_of_run, one)) for one in addresses):
            reason = [str(item.get("name")) for one in addresses for item in one]
            held |= dict.fromkeys(own, reason)
    return held


def addresses_in(api: GoogleApi, subnetwork: str) -> Sequence[Item]:
    """Return the reserved addresses of a subnetwork, by its full name. Raises ScriptError for an incomplete list."""
    found = listed(api, "compute", f"compute/v1/{subnetwork.partition('/subnetworks/')[0]}/addresses")
    items = [as_mapping(item) for page in found.whole() for item in list_in(page, "items")]
    return [item for item in items if names(item, subnetwork)]


def _is_of_run(address: Item) -> bool:
    """Return whether Cloud Run reserved an address: by its purpose (compute.v1, Address) and its name, as Google's refusal has it."""
    return address.get("purpose") == "SERVERLESS" and str(address.get("name")).startswith("serverless-")
