"""Rule `allowed-regions`: resources are in listed regions, zones or multi-regions."""

import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Final

from gemma_serving_policies.rule import Answer, Config, Rule, is_unknown, not_known, strings, violation
from gemma_serving_policies.values import GOOGLE, Found, Resource, found_at

SETTING: Final = "allowed"
EVERYWHERE: Final = "*"
PLACES: Final = (
    "location",
    "region",
    "zone",
    "locations",
    "regions",
    "zones",
    "nodeLocations",
    "replicaZones",
    "distributionPolicyZones",
    "storageLocations",
)
"""Inputs with places, in any type of Google's providers, and in the provider itself, whose region is the default of its resources."""
NESTED: Final = {
    "gcp:secretmanager/secret:Secret": ("replication", "userManaged", "replicas", "location"),
    "gcp:storage/bucket:Bucket": ("customPlacementConfig", "dataLocations"),
}
"""Inputs with places inside others."""
GLOBAL: Final = "global"
_ZONE: Final = re.compile(r"^(?P<region>[a-z]+(?:-[a-z]+)+\d+)-[a-z]$")


def _check(resource: Resource, config: Config) -> Iterator[Answer]:
    allowed = strings(config[SETTING])
    if EVERYWHERE in allowed:
        return
    for found in _places(resource):
        if is_unknown(found):
            yield not_known(resource, found)
        elif isinstance(found.value, str) and not _is_allowed(found.value, allowed):
            names = ", ".join(allowed)
            yield violation(
                resource, found, f"only {names} are allowed" if len(allowed) > 1 else f"only {names} is allowed", _FIX
            )


_FIX: Final = "choose an allowed place, or add this one to `allowed` of the rule"


def _places(resource: Resource) -> Iterator[Found]:
    if resource.is_google or resource.type.removeprefix("pulumi:providers:") in GOOGLE:
        for name in PLACES:
            yield from found_at(resource.inputs, name)
    if resource.type in NESTED:
        yield from found_at(resource.inputs, *NESTED[resource.type])


def _is_allowed(place: str, allowed: Sequence[str]) -> bool:
    """Return whether a place, as a name or as a link, or its region matches a listed one."""
    name = place.rpartition("/")[2].lower()
    zone = _ZONE.match(name)
    names = {name, zone["region"] if zone else name}
    return name in {"", GLOBAL} or any(fnmatchcase(each, one.lower()) for each in names for one in allowed)


RULE: Final = Rule(
    name="allowed-regions",
    description="Resources are in the listed regions.",
    check=_check,
    own_settings={
        SETTING: {
            "type": "array",
            "items": {"type": "string", "minLength": 1},
            "minItems": 1,
            "default": (EVERYWHERE,),
            "description": "Regions, zones and multi-regions. `us-*` is each one that starts with `us-`, `*` is everywhere. "
            "A region includes its zones. Global resources are always allowed.",
        }
    },
)
