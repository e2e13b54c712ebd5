"""What Google still holds of a torn-down stack: a subnetwork in which Cloud Run has not released its addresses, and its network.

Cloud Run releases them one to two hours after the last service is gone (docs.cloud.google.com/run/docs/configuring/vpc-direct-vpc, "Delete a
subnet", 2026-11). Until then Google deletes neither. They cost nothing: networks and internal addresses have no price.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from gemma_serving.cloud.google_api import GoogleApi, GoogleListError
from gemma_serving.cloud.kinds import NETWORK, SUBNETWORK, Item, list_in
from gemma_serving.cloud.search import names, omitted_places
from gemma_serving.contracts.errors import ScriptError
from gemma_serving.contracts.fields import as_mapping, as_sequence
from gemma_serving.contracts.search_results import FoundResource, Inventory

HOLD: Final = timedelta(hours=2)
"""The longest time for which Google holds a subnetwork after its last service."""
GRACE: Final = timedelta(hours=1)
"""Time after `HOLD` in which Google may be late (assumed). What exists later is leaked."""
_WORKLOADS: Final = ("jobs", "workerPools")
"""Collections of Cloud Run that can use a subnetwork too. The search lists the services."""


@dataclass(slots=True, kw_only=True)
class HeldResources:
    """Subnetworks and networks that only Google holds, the addresses that are the reason, and the lists that could not be read."""

    resources: list[FoundResource] = field(default_factory=list[FoundResource])
    addresses: list[str] = field(default_factory=list[str])
    unknown: list[str] = field(default_factory=list[str])

    @property
    def proof(self) -> str:
        """What was read, as two sentences."""
        return (
            "No service, job, worker pool, machine or other resource uses them. "
            f"Their only addresses are Cloud Run's: {', '.join(self.addresses)}."
        )


def held_in(api: GoogleApi, inventory: Inventory, found: Sequence[FoundResource]) -> HeldResources:
    """Return which of the `found` resources only Google holds. Nothing is held unless every list was read."""
    held = HeldResources()
    for network in found if not inventory.unknown else ():
        if network.kind != NETWORK or as_sequence(network.document.get("peerings")):
            continue
        inside = [item for item in found if item.kind == SUBNETWORK and names(item.document, network.name)]
        own = {network.name, *(item.name for item in inside)}
        if not own <= inventory.users.keys() or not own.issuperset(
            user for name in own for user in inventory.users[name]
        ):
            continue
        try:
            addresses = [_only_of_run(api, item) for item in inside]
        except (GoogleListError, ScriptError) as error:
            held.unknown.append(f"Could not check whether Google holds network {network.id}: {error}")
            continue
        if inside and all(addresses):
            held.resources += [*inside, network]
            held.addresses += [name for one in addresses for name in one]
    return held


def reserved_in(api: GoogleApi, found: Sequence[FoundResource]) -> frozenset[str]:
    """Return the full names of the subnetworks with addresses of Cloud Run, and of their networks: Google deletes none of them now."""
    reserved: set[str] = set()
    for item in found:
        with suppress(GoogleListError, ScriptError):  # otherwise Google's answer to the deletion tells
            if item.kind == SUBNETWORK and is_reserved(api, item.name):
                networks = (one.name for one in found if one.kind == NETWORK)
                reserved |= {item.name, *(name for name in networks if names(item.document, name))}
    return frozenset(reserved)


def is_reserved(api: GoogleApi, subnetwork: str) -> bool:
    """Return whether Cloud Run has addresses in a subnetwork, by its full name. Raises GoogleListError and ScriptError."""
    return any(map(_is_of_run, _addresses(api, subnetwork)))


def _only_of_run(api: GoogleApi, subnetwork: FoundResource) -> Sequence[str]:
    """Return the names of a subnetwork's addresses if all are Cloud Run's and no job or worker pool uses it; otherwise none. Raises."""
    place = f"v2/projects/{subnetwork.project}/locations/{subnetwork.location}"
    for collection in _WORKLOADS:
        if any(names(item, subnetwork.name) for item in _listed(api, "run", f"{place}/{collection}", collection)):
            return ()
    addresses = _addresses(api, subnetwork.name)
    return [str(item.get("name")) for item in addresses] if all(map(_is_of_run, addresses)) else ()


def _addresses(api: GoogleApi, subnetwork: str) -> Sequence[Item]:
    path = f"compute/v1/{subnetwork.partition('/subnetworks/')[0]}/addresses"
    return [item for item in _listed(api, "compute", path, "items") if names(item, subnetwork)]


def _is_of_run(address: Item) -> bool:
    """Return whether Cloud Run reserved an address: by its purpose (compute.v1, Address) and its name, as Google's refusal has it."""
    return address.get("purpose") == "SERVERLESS" and str(address.get("name")).startswith("serverless-")


def _listed(api: GoogleApi, service: str, path: str, key: str) -> Sequence[Item]:
    """Return a whole list. Raises GoogleListError, and ScriptError for an incomplete one."""
    pages = [*api.pages(service, path)]
    if omitted := [place for page in pages for place in omitted_places(page)]:
        raise ScriptError(f"{', '.join(omitted)} could not be reached")
    return [as_mapping(item) for page in pages for item in list_in(page, key)]
