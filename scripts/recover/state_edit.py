"""Add resources to a deployment in the form that a refresh expects: parents and providers first, with an id, without unknown values.

If all inputs are known, they are the outputs too, and a refresh reads the resource as part of the state. Otherwise the outputs are empty, and a
refresh reads it as an import (pulumi/pulumi-terraform-bridge, pkg/tfbridge/provider.go, Read: no properties mean an import).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

from contracts.fields import as_mapping, as_sequence
from contracts.resource_types import CAPACITY_TYPE
from engine.deployment import UNKNOWN, ResourceState, StackDeployment
from scripts.recover.lookup import Found, is_known

REDACTED: Final = "[secret]"
"""Text of a secret in a preview."""

_DEFAULTS: Final = "__defaults"
_PROVIDERS: Final = "pulumi:providers:"
_LEFT_OUT: Final = ("sourcePosition", "stackTrace", "initErrors")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A resource that may exist but is not in the state: an interrupted creation (`pending`) or one that a preview creates."""

    resource: ResourceState
    pending: bool

    @property
    def complete(self) -> bool:
        """True if all inputs are known, apart from secrets."""
        return is_known(dict(self.resource.inputs))


def candidates(deployment: StackDeployment, declared: Iterable[ResourceState]) -> tuple[Candidate, ...]:
    """Return the resources that may exist but are not in the state. Interrupted creations come first: their inputs are complete."""
    interrupted = {
        one.resource.urn: one.resource
        for one in deployment.pending
        if one.kind == "creating" and one.resource.urn not in deployment.urns
    }
    rest = [each for each in declared if each.custom and not each.type.startswith(_PROVIDERS)]
    return (
        *(Candidate(resource=each, pending=True) for each in interrupted.values()),
        *(
            Candidate(resource=each, pending=False)
            for each in rest
            if each.urn not in interrupted and each.urn not in deployment.urns
        ),
    )


def adopted(
    deployment: StackDeployment, resource: ResourceState, found: Found, declared: Mapping[str, ResourceState]
) -> StackDeployment:
    """Return the deployment with a found resource, its parents and its provider."""
    deployment = _with_ancestors(deployment, resource.parent, declared)
    deployment, provider = _with_provider(deployment, resource.provider, declared)
    known = deployment.urns
    entry = _entry(resource, found).changed(
        provider=provider or None,
        dependencies=[urn for urn in resource.dependencies if urn in known],
        propertyDependencies=_known_dependencies(resource, known),
        **{key: None for key in ("deletedWith",) if resource.raw.get(key) not in known},
        **dict.fromkeys(_LEFT_OUT),
    )
    return deployment.changed(resources=[*deployment.resources, entry])


def _entry(resource: ResourceState, found: Found) -> ResourceState:
    if is_known(dict(resource.inputs)) and not _redacted(dict(resource.inputs)):
        return resource.changed(id=found.id, outputs={**_plain(resource.inputs), **found.outputs})
    if resource.type == CAPACITY_TYPE:  # its provider imports by full name and reads the inputs
        return resource.changed(id=str(found.outputs["name"]), inputs={}, outputs={})
    inputs = {key: value for key, value in resource.inputs.items() if is_known(value) and not _redacted(value)}
    return resource.changed(id=found.id, inputs=inputs, outputs={})


def _plain(inputs: Mapping[str, object]) -> dict[str, object]:
    return {key: _without_defaults(value) for key, value in inputs.items() if key != _DEFAULTS}


def _without_defaults(value: object) -> object:
    if as_mapping(value):
        return {key: _without_defaults(item) for key, item in as_mapping(value).items() if key != _DEFAULTS}
    if as_sequence(value):
        return [_without_defaults(item) for item in as_sequence(value)]
    return value


def _redacted(value: object) -> bool:
    if as_mapping(value):
        return any(_redacted(item) for item in as_mapping(value).values())
    return value == REDACTED or any(_redacted(item) for item in as_sequence(value))


def _known_dependencies(resource: ResourceState, known: frozenset[str]) -> dict[str, object]:
    listed = as_mapping(resource.raw.get("propertyDependencies"))
    return {key: [urn for urn in as_sequence(urns) if urn in known] for key, urns in listed.items()}


def _with_ancestors(deployment: StackDeployment, urn: str, declared: Mapping[str, ResourceState]) -> StackDeployment:
    """Return the deployment with a component and its ancestors. Components have no id and exist only in the program."""
    if not urn or urn in deployment.urns or urn not in declared:
        return deployment
    component = declared[urn]
    deployment = _with_ancestors(deployment, component.parent, declared)
    known = deployment.urns
    entry = component.changed(
        inputs={key: value for key, value in component.inputs.items() if is_known(value) and not _redacted(value)},
        outputs={},
        dependencies=[each for each in component.dependencies if each in known],
        propertyDependencies=_known_dependencies(component, known),
        **dict.fromkeys(_LEFT_OUT),
    )
    return deployment.changed(resources=[*deployment.resources, entry])


def _with_provider(
    deployment: StackDeployment, reference: str, declared: Mapping[str, ResourceState]
) -> tuple[StackDeployment, str]:
    """Return the deployment with the provider, and the reference to it. A preview has no id for a provider that is not created yet."""
    urn, _, identifier = reference.rpartition("::")
    if not urn:
        return deployment, ""
    existing = next((each for each in deployment.resources if each.urn == urn and not each.delete), None)
    if existing is not None:
        return deployment, f"{urn}::{existing.id}"
    fresh = str(uuid4()) if identifier in {"", UNKNOWN} else identifier
    program = declared.get(urn)
    deployment = _with_ancestors(deployment, program.parent if program else "", declared)
    entry = ResourceState(
        {
            "urn": urn,
            "custom": True,
            "id": fresh,
            "type": urn.split("::")[2],
            **({"inputs": dict(program.inputs), "outputs": _outputs_of_provider(program)} if program else {}),
            **({"parent": program.parent} if program and program.parent else {}),
        }
    )
    return deployment.changed(resources=[*deployment.resources, entry]), f"{urn}::{fresh}"


def _outputs_of_provider(program: ResourceState) -> dict[str, object]:
    return {key: value for key, value in program.inputs.items() if not key.startswith("__")}
