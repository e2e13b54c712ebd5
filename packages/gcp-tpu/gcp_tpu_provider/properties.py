"""Every property of the resource, read from schema.json. Checks, diff and reference follow from it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from gcp_tpu_provider import TOKEN
from gcp_tpu_provider.compute_request import CLOUD_SCOPE, CLOUD_TPU, COMPUTE_ENGINE
from gcp_tpu_provider.forms import IN_AN_ORDER
from gcp_tpu_provider.tpu_api import PROVISIONING_MODELS

ChangeEffect: TypeAlias = Literal["replace", "live", "policy", "words", "zones"]
"""Effect of a changed input: `replace` the queued resource; patch the `live` node; nothing in the cloud for a waiting `policy`;
no change for `words`, which are text for users; or, for `zones`, replace only if the zone in use is no longer listed."""
Schema: TypeAlias = Mapping[str, Any]
MIN_BOOT_DISK_GB: Final = 100
"""Google's default size. Smaller disks must fit the runtime image, whose size Google does not document."""
DEAD_STATE: Final = "state"
"""Output that the diff names if a queued resource can never serve again."""
_EFFECTS: Final[Mapping[str, ChangeEffect]] = {
    **dict.fromkeys(("zones", "zone"), "zones"),
    **dict.fromkeys(("enableExternalIps", "description", "labels", "tags", "metadata"), "live"),
    "nextSteps": "words",
}
"""Effects of inputs that do not replace the resource. All others only affect waiting."""
_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "provisioningModel": tuple(PROVISIONING_MODELS),
    "api": (CLOUD_TPU, COMPUTE_ENGINE),
    "waitFor": ("accepted", "active", "ready"),
    "CapacityForm.provisioningModel": IN_AN_ORDER,
}
_LEAST: Final[Mapping[str, int]] = {
    "bootDiskSizeGb": MIN_BOOT_DISK_GB,
    **dict.fromkeys(("maxRunDurationS", "validUntilDurationS", "waitPerZoneS", "waitTotalS"), 1),
    "Ready.timeoutS": 1,
    "CapacityForm.waitS": 1,
}
"""Minimum values, in the unit that the name ends with."""
_LISTS: Final = {"scopes": [CLOUD_SCOPE]}
"""Defaults that are lists, because Pulumi's schema has defaults of plain types only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Property:
    """An input (with the effect of a change), an output, or a field of an object type."""

    name: str
    schema: Schema
    change: ChangeEffect
    required: bool
    owner: str = ""
    """Object type of a field, such as `CapacityForm`; empty for a property of the resource."""

    @property
    def description(self) -> str:
        """Description, with the choices."""
        return str(self.schema["description"])

    @property
    def default(self) -> Any:  # noqa: ANN401 - a property's value
        """Default, or None."""
        return self.schema.get("default", _LISTS.get(self.name))

    @property
    def choices(self) -> tuple[str, ...]:
        """Allowed values; empty if there is no list of them."""
        return _CHOICES.get(self._key, ())

    @property
    def least(self) -> int | None:
        """Minimum value; None without one."""
        return _LEAST.get(self._key)

    @property
    def _key(self) -> str:
        return f"{self.owner}.{self.name}" if self.owner else self.name


@cache
def package_schema() -> str:
    """Return the package schema as JSON, for `pulumi package get-schema` and SDK generators."""
    return Path(__file__).with_name("schema.json").read_text(encoding="utf-8")


@cache
def _parsed() -> Mapping[str, Any]:
    return json.loads(package_schema())


def _properties(described: Mapping[str, Schema], required: list[str], owner: str = "") -> Mapping[str, Property]:
    return {
        name: Property(
            name=name,
            schema=schema,
            change="replace" if schema.get("replaceOnChanges") else _EFFECTS.get(name, "policy"),
            required=name in required,
            owner=owner,
        )
        for name, schema in described.items()
    }


@cache
def inputs() -> Mapping[str, Property]:
    """Return the inputs of the resource by name."""
    resource = _parsed()["resources"][TOKEN]
    return _properties(resource["inputProperties"], resource["requiredInputs"])


@cache
def outputs() -> Mapping[str, Property]:
    """Return the outputs that are not inputs, by name."""
    resource = _parsed()["resources"][TOKEN]
    return {name: item for name, item in _properties(resource["properties"], []).items() if name not in inputs()}


@cache
def object_types() -> Mapping[str, tuple[str, Mapping[str, Property]]]:
    """Return the description and the fields of each object type by its short name."""
    kinds = {token.rpartition(":")[2]: kind for token, kind in _parsed()["types"].items()}
    return {
        name: (kind["description"], _properties(kind["properties"], kind["required"], name))
        for name, kind in kinds.items()
    }


def fields_of(schema: Schema) -> Mapping[str, Property]:
    """Return the fields of the object type that a schema refers to."""
    return object_types()[str(schema["$ref"]).rpartition(":")[2]][1]
