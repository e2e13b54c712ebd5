"""Add resources to a deployment in the form that a refresh expects.

If all inputs are known, they are the outputs too. Otherwise the outputs are empty, which a refresh reads as an import
(pulumi/pulumi-terraform-bridge, pkg/tfbridge/provider.go, Read).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from uuid import uuid4

from gemma_serving.contracts.fields import as_mapping, as_sequence
from gemma_serving.contracts.resource_types import CAPACITY_TYPE
from gemma_serving.engine.exported_state import UNKNOWN, ResourceState, StackDeployment

REDACTED: Final = "[secret]"
_LEFT_OUT: Final = ("propertyDependencies", "deletedWith", "sourcePosition", "stackTrace", "initErrors")


def contains_text(value: object, *texts: str) -> bool:
    """Return whether a value of a preview has one of these texts, in any nested value."""
    if isinstance(value, str):
        return any(text in value for text in texts)
    return any(contains_text(item, *texts) for item in (*as_mapping(value).values(), *as_sequence(value)))


def candidates(deployment: StackDeployment, declared: Iterable[ResourceState]) -> Sequence[ResourceState]:
    """Return the resources that may exist: those that the program creates, and those whose creation was interrupted."""
    found = {
        each.urn: each for each in declared if each.raw.get("custom") and not each.type.startswith("pulumi:providers:")
    }
    found |= {one.resource.urn: one.resource for one in deployment.pending if one.kind == "creating"}
    return [each for urn, each in found.items() if urn not in deployment.urns]


def is_complete(resource: ResourceState) -> bool:
    """Return whether all inputs are known, apart from secrets."""
    return not contains_text(resource.inputs, UNKNOWN)


def without_unknown(deployment: StackDeployment) -> StackDeployment:
    """Return the deployment without outputs that `up` did not learn, such as an endpoint after `pulumi up --target`. The next `up` writes them."""
    resources = [
        one.changed(outputs={key: value for key, value in one.outputs.items() if not contains_text(value, UNKNOWN)})
        if contains_text(one.outputs, UNKNOWN)
        else one
        for one in deployment.resources
    ]
    return deployment.changed(resources=resources)


def with_resource(
    deployment: StackDeployment,
    resource: ResourceState,
    identifier: str,
    outputs: Mapping[str, object],
    declared: Mapping[str, ResourceState],
) -> StackDeployment:
    """Return the deployment with a resource, its parents and its provider."""
    deployment = _with_ancestors(deployment, resource.parent, declared)
    deployment, provider = _with_provider(deployment, str(resource.raw.get("provider") or ""), declared)
    known = _known(resource)
    if known == resource.inputs:
        entry = resource.changed(id=identifier, outputs={**as_mapping(_without_defaults(known)), **outputs})
    elif resource.type == CAPACITY_TYPE:  # its provider imports by full name and reads the inputs
        entry = resource.changed(id=str(outputs["name"]), inputs={}, outputs={})
    else:
        entry = resource.changed(id=identifier, inputs=known, outputs={})
    return _added(deployment, entry.changed(provider=provider or None))


def _known(resource: ResourceState) -> dict[str, object]:
    return {key: each for key, each in resource.inputs.items() if not contains_text(each, UNKNOWN, REDACTED)}


def _without_defaults(value: object) -> object:
    if as_mapping(value):
        return {key: _without_defaults(item) for key, item in as_mapping(value).items() if key != "__defaults"}
    return [_without_defaults(item) for item in as_sequence(value)] if as_sequence(value) else value


def _added(deployment: StackDeployment, resource: ResourceState) -> StackDeployment:
    """Return the deployment with a resource that depends on its other resources. `up` writes all."""
    dependencies = [urn for urn in as_sequence(resource.raw.get("dependencies")) if urn in deployment.urns]
    entry = resource.changed(dependencies=dependencies, **dict.fromkeys(_LEFT_OUT))
    return deployment.changed(resources=[*deployment.resources, entry])


def _with_ancestors(deployment: StackDeployment, urn: str, declared: Mapping[str, ResourceState]) -> StackDeployment:
    """Return the deployment with a component and its ancestors. Components have no id and exist only in the program."""
    if not urn or urn in deployment.urns or urn not in declared:
        return deployment
    component = declared[urn]
    deployment = _with_ancestors(deployment, component.parent, declared)
    return _added(deployment, component.changed(inputs=_known(component), outputs={}))


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
    program = declared.get(urn, ResourceState({}))
    deployment = _with_ancestors(deployment, program.parent, declared)
    outputs = {key: value for key, value in program.inputs.items() if not key.startswith("__")}
    entry = ResourceState({"urn": urn, "custom": True, "id": fresh, "type": urn.split("::")[2]}).changed(
        inputs=program.inputs or None, outputs=outputs or None, parent=program.parent or None
    )
    return deployment.changed(resources=[*deployment.resources, entry]), f"{urn}::{fresh}"
