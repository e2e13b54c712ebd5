"""Outputs of other stacks of this project, read from their states before any resource is declared."""

from collections.abc import Mapping, Sequence
from typing import Final, cast

import pulumi

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.fields import ContractError, camel_case, from_json
from gemma_serving.contracts.outputs import GatewayNetwork

_NETWORK: Final = camel_case("gateway_network")
"""Output of a gateway."""


def deployed_outputs(stack: str) -> Mapping[str, object] | None:
    """Return the outputs of another stack; None if it does not exist. Raises CommandRefusedError."""
    name = f"{pulumi.get_organization()}/{pulumi.get_project()}/{stack}"
    try:
        # A StackReference is a resource in each preview, and its values known only after the findings.
        found = cast(
            "Mapping[str, object] | None", pulumi.runtime.invoke("pulumi:pulumi:readStackOutputs", {"name": name}).value
        )
    except Exception as error:  # noqa: BLE001 - the SDK raises plain exceptions for invokes
        if "unknown stack" in str(error):
            return None
        raise CommandRefusedError(
            f"The outputs of stack {stack} cannot be read: {str(error).strip().rstrip('.')}. Run `pulumi stack output --stack {stack}` to see why."
        ) from None
    outputs = (found or {}).get("outputs")
    return cast("Mapping[str, object]", outputs) if isinstance(outputs, Mapping) else {}


def network_of_gateway(gateway: str, *, project: str, regions: Sequence[str], downloads: bool) -> GatewayNetwork:
    """Return the network of a gateway. Raises CommandRefusedError if machines with these needs cannot use it.

    `downloads`: whether they download from the internet.
    """
    key = f'gemma-serving:tpu.gateway = "{gateway}"'
    outputs = deployed_outputs(gateway)
    try:
        network = from_json(GatewayNetwork, (outputs or {}).get(_NETWORK), path=_NETWORK)
    except ContractError:
        what = "does not exist" if outputs is None else "has no network yet, or has another target"
        raise CommandRefusedError(
            f"{key}: stack {gateway} {what}. Run `gemma up {gateway}` with target gateway, then try again."
        ) from None
    other = network.network.split("/")[1]
    if other != project:
        raise CommandRefusedError(
            f"{key}: the gateway is in project {other}, but this stack in {project}. Set gcp:project to the same project in both."
        )
    absent = [region for region in regions if region not in network.regions]
    if absent:
        raise CommandRefusedError(
            f"{key}: its network has no subnetwork in {', '.join(absent)}. Add the region to gemma-serving:gateway.regions in "
            f"Pulumi.{gateway}.yaml and run `gemma up {gateway}`, or remove its zones from gemma-serving:tpu.zones."
        )
    if downloads and not network.internet_egress:
        raise CommandRefusedError(
            f"{key}: its network has no Cloud NAT, but the TPU VM downloads from the internet. Set gemma-serving:gateway.internetEgress: true in "
            f"Pulumi.{gateway}.yaml and run `gemma up {gateway}`."
        )
    return network
