"""The provider of the package: it constructs the components that a program in any language asks for."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pulumi
from pulumi.errors import InputPropertiesError, InputPropertyErrorDetails
from pulumi.provider import ConstructResult, Provider

from gemma_serving import VERSION
from gemma_serving.components.model_bucket import ModelBucket, ModelBucketArgs
from gemma_serving.components.stored_secret import HuggingFaceToken, StoredSecretArgs
from gemma_serving.contracts.fields import camel_case, to_json
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.question.types import Plan
from gemma_serving.planning.settings.fields import Problem, own_fields
from gemma_serving.stacks.package.inputs import plain, read_inputs
from gemma_serving.stacks.package.schema import OWNERSHIP, Component, components, output_names, package_schema
from gemma_serving.stacks.package.servers import cloud_run_server, tpu_server

_Made = tuple[pulumi.ComponentResource, Plan | None]
_SERVERS: Final[Mapping[str, Callable[..., _Made]]] = {"CloudRunServer": cloud_run_server, "TpuServer": tpu_server}


class PackageProvider(Provider):
    """Constructs the real components, so a program may change between import and package without a replacement.

    The SDK's experimental provider passes aliases as messages and drops options such as `ignoreChanges` (pulumi 3.272), so this is the other one.
    """

    def __init__(self) -> None:
        super().__init__(VERSION, json.dumps(package_schema()))

    def construct(
        self,
        name: str,
        resource_type: str,
        inputs: Mapping[str, Any],
        options: pulumi.ResourceOptions | None = None,
    ) -> ConstructResult:
        """Declare a component and its resources. Raises InputPropertiesError before it declares any."""
        kind = resource_type.rpartition(":")[2]
        component = components()[kind]
        try:
            made, plan = _made(kind, component, name, plain(inputs), options)
        except PlanningError as error:
            reason = InputPropertyErrorDetails(property_path=kind, reason=str(error))
            raise InputPropertiesError(f'{kind} "{name}" is invalid. Nothing was declared.', [reason]) from None
        return ConstructResult(made.urn, dict(_state(component, made, plan)))


def _made(
    kind: str, component: Component, name: str, given: Mapping[str, Any], options: pulumi.ResourceOptions | None
) -> _Made:
    if kind in _SERVERS:
        keys = {field.file_key for field in own_fields(component.inputs)}
        own = {key: value for key, value in given.items() if key in keys}
        stated = {key: value for key, value in given.items() if key not in keys}
        return _SERVERS[kind](name, own, stated, options)
    title = f'{kind} "{name}"'
    more = [Problem((OWNERSHIP,), "", "unknown")] if OWNERSHIP in given else []
    if kind == "ModelBucket":
        return ModelBucket(name, read_inputs(ModelBucketArgs, given, title, more), options), None
    return HuggingFaceToken(name, read_inputs(StoredSecretArgs, given, title, more), options), None


def _state(component: Component, made: pulumi.ComponentResource, plan: Plan | None) -> Iterator[tuple[str, object]]:
    """Yield the outputs. Those of a bucket or a secret wait for its grants: a server whose account cannot read them never starts."""
    grants: list[pulumi.Resource] = getattr(made, "grants", [])
    for name in output_names(component):
        output: pulumi.Output[Any] = getattr(made, name)
        waited = pulumi.Output.all(output, *(grant.urn for grant in grants)).apply(lambda known: known[0])
        yield camel_case(name), waited
    if plan is not None:
        yield "plan", to_json(plan.summary())
