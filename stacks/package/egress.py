"""Check with the program's own provider that a server reaches what it needs from a given subnetwork, or report that this is unknown."""

from collections.abc import Sequence
from typing import Final

import pulumi
import pulumi_gcp as gcp

from gemma_serving.components.checks import Input

HELD_SUBNETWORK: Final = (
    "Cloud Run keeps addresses in the subnetwork for one to two hours after the service is deleted, at no cost. Until then, `pulumi destroy` fails "
    "at the subnetwork (already being used by serverless-ipv4-...): add --continue-on-error, and run it again after two hours."
)


def check_egress(
    made: pulumi.Resource, subnetwork: Input[str], project: str, regions: Sequence[str], *, downloads: bool
) -> None:
    """Warn if a subnetwork in these regions lacks what the server needs, and report if that is unknown.

    It needs Cloud NAT if it `downloads` from elsewhere than Google's APIs, otherwise Private Google Access.
    """
    needs = "Cloud NAT" if downloads else "Private Google Access"
    remote = "the internet, from which it downloads its model or image" if downloads else "Google's APIs"
    why = f"Without it, the server does not reach {remote}."
    if not isinstance(subnetwork, str):
        pulumi.log.info(f"Not checked that subnetwork has {needs}, because it is an output. {why}", made)
        return
    named = f"projects/{project}/regions/%s/subnetworks/{subnetwork}"
    for path in [subnetwork] if "/" in subnetwork else [named % region for region in regions]:
        try:
            has = _has(path, needs, pulumi.InvokeOptions(parent=made))
        except Exception as error:  # noqa: BLE001 - the SDK raises Exception itself
            reason = " ".join(str(error).split())
            pulumi.log.info(f"Could not check that {path} has {needs}: {reason}. {why}", made)
        else:
            if not has:
                pulumi.log.warn(f"{path} has no {needs}. {why}", made)


def _has(path: str, needs: str, options: pulumi.InvokeOptions) -> bool:
    """Return whether a subnetwork has what the server needs; Cloud NAT includes Private Google Access. Raises Exception if that is unknown."""
    *_, project, _, region, _, name = path.split("/")
    found = gcp.compute.get_subnetworks(project=project, region=region, opts=options).subnetworks or ()
    own = next((one for one in found if one.name == name), None)
    if own is None:
        raise LookupError("no such subnetwork is listed")
    routers = gcp.compute.get_routers(project=project, region=region, opts=options).routers
    ranges = {
        nat.source_subnetwork_ip_ranges_to_nat
        for router in routers
        if router.network == own.network
        for nat in router.nats
    }
    if needs != "Cloud NAT" and own.private_ip_google_access:
        return True
    if ranges == {"LIST_OF_SUBNETWORKS"}:
        raise LookupError("a Cloud NAT of its network is for listed subnetworks only")
    return bool(ranges)
