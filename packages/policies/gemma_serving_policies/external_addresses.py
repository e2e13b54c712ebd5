"""Rule `no-external-addresses`: machines and load balancers have no address on the internet."""

from collections.abc import Iterator, Mapping
from typing import Final

from gemma_serving_policies.rule import (
    Answer,
    Config,
    Rule,
    Violation,
    absent,
    is_true,
    is_unknown,
    not_known,
    violation,
)
from gemma_serving_policies.values import Resource, found_at

SWITCHES: Final = {
    "gcp-tpu:index:QueuedResource": (("enableExternalIps",),),
    "gcp:tpu/v2Vm:V2Vm": (("networkConfig", "enableExternalIps"), ("networkConfigs", "enableExternalIps")),
    "gcp:tpu/v2QueuedResource:V2QueuedResource": (("tpu", "nodeSpecs", "node", "networkConfig", "enableExternalIps"),),
}
"""Inputs that assign an address if they are true."""
_INTERFACES: Final = (("networkInterfaces", "accessConfigs"), ("networkInterfaces", "ipv6AccessConfigs"))
CONFIGS: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = dict.fromkeys(
    (
        "gcp:compute/instance:Instance",
        "gcp:compute/instanceTemplate:InstanceTemplate",
        "gcp:compute/regionInstanceTemplate:RegionInstanceTemplate",
        "gcp:compute/instanceFromTemplate:InstanceFromTemplate",
        "gcp:compute/instanceFromMachineImage:InstanceFromMachineImage",
    ),
    _INTERFACES,
)
"""Inputs with one element per address."""
KINDS: Final = {
    "gcp:compute/address:Address": "addressType",
    "gcp:compute/globalAddress:GlobalAddress": "addressType",
    "gcp:compute/forwardingRule:ForwardingRule": "loadBalancingScheme",
    "gcp:compute/globalForwardingRule:GlobalForwardingRule": "loadBalancingScheme",
}
"""Inputs with the kind of address, by default EXTERNAL."""
_EXTERNAL: Final = "EXTERNAL"
_ALLOWED: Final = "an address on the internet is not allowed"


def _check(resource: Resource, config: Config) -> Iterator[Answer]:
    del config
    for keys in SWITCHES.get(resource.type, ()):
        yield from _switch(resource, keys)
    for keys in CONFIGS.get(resource.type, ()):
        for found in found_at(resource.inputs, *keys):
            yield (
                not_known(resource, found)
                if is_unknown(found)
                else Violation(
                    f"{resource.name}: `{found.path}` assigns an address, but {_ALLOWED}; "
                    "remove it, and use Private Google Access or Cloud NAT for outgoing connections."
                )
            )
    if resource.type in KINDS:
        yield from _kind(resource, KINDS[resource.type])


def _switch(resource: Resource, keys: tuple[str, ...]) -> Iterator[Answer]:
    for found in found_at(resource.inputs, *keys):
        if is_unknown(found):
            yield not_known(resource, found)
        elif is_true(found):
            yield violation(resource, found, _ALLOWED, "set it to false, and use a subnet with Private Google Access")


def _kind(resource: Resource, name: str) -> Iterator[Answer]:
    fix = (
        "set it to INTERNAL or remove the address"
        if name == "addressType"
        else "set it to INTERNAL or INTERNAL_MANAGED"
    )
    values = list(found_at(resource.inputs, name))
    if not values:
        yield absent(resource, name, f"its default is {_EXTERNAL}, and {_ALLOWED}", fix)
    for found in values:
        if is_unknown(found):
            yield not_known(resource, found)
        elif str(found.value).startswith(_EXTERNAL):
            yield violation(resource, found, _ALLOWED, fix)


RULE: Final = Rule(
    name="no-external-addresses",
    description="Machines and load balancers have no address on the internet.",
    check=_check,
    own_settings={},
)
