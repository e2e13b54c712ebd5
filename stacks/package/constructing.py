"""Construct a component of the package from the inputs that a program sent."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import pulumi
from pulumi.errors import InputPropertiesError

from gemma_serving.components.model_bucket import ModelBucket
from gemma_serving.components.stored_secret import HuggingFaceToken
from gemma_serving.contracts.fields import camel_case, to_json
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.question.types import Plan
from gemma_serving.planning.settings.fields import own_fields
from gemma_serving.stacks.package.input_wording import without_commands
from gemma_serving.stacks.package.inputs import detail, input_named, plain, read_inputs
from gemma_serving.stacks.package.schema import COMPONENTS, output_kinds
from gemma_serving.stacks.package.servers import cloud_run_server, tpu_server

_Made = tuple[pulumi.ComponentResource, Plan | None]
_SERVERS: Final[Mapping[str, Callable[..., _Made]]] = {
    "CloudRunGpuService": cloud_run_server,
    "TpuQueuedResource": tpu_server,
}


class Constructed(NamedTuple):
    """A declared component, and its outputs by their names in the schema."""

    component: pulumi.ComponentResource
    outputs: Mapping[str, object]


def construct(
    kind: str, name: str, inputs: Mapping[str, Any], options: pulumi.ResourceOptions | None = None
) -> Constructed:
    """Declare a component and its resources. Raises InputPropertiesError before it declares any."""
    given = plain(inputs)
    try:
        made, plan = _made(kind, name, given, options)
    except PlanningError as error:
        sentence = str(error)
        reason = detail(input_named(sentence, given) or kind, without_commands(sentence))
        raise InputPropertiesError(f'{kind} "{name}" is invalid. Nothing was declared.', [reason]) from None
    return Constructed(made, dict(_outputs(kind, made, plan)))


def _made(kind: str, name: str, given: Mapping[str, Any], options: pulumi.ResourceOptions | None) -> _Made:
    inputs = COMPONENTS[kind].inputs
    if kind in _SERVERS:
        keys = {field.file_key for field in own_fields(inputs)}
        own = {"project": _default_project(options), **{key: value for key, value in given.items() if key in keys}}
        if own["project"] is None:
            reason = "it is required without `gcp:project`, and with a provider of `gcp` in the options. Set it."
            raise InputPropertiesError(
                f'{kind} "{name}" has invalid inputs. Nothing was declared.', [detail("project", reason)]
            )
        return _SERVERS[kind](name, own, {key: given[key] for key in given.keys() - keys}, options)
    read = read_inputs(inputs, given, f'{kind} "{name}"')
    return (ModelBucket if kind == "ModelBucket" else HuggingFaceToken)(name, read, options), None


def _default_project(options: pulumi.ResourceOptions | None) -> str | None:
    """Return `gcp:project` of the program, unless a provider in the options may have another project."""
    has_provider = options is not None and "gcp" in (options.providers or {})
    return None if has_provider else pulumi.Config("gcp").get("project")


def _outputs(kind: str, made: pulumi.ComponentResource, plan: Plan | None) -> Iterator[tuple[str, object]]:
    """Yield the outputs. Those of a bucket or a secret wait for its grants: a server whose account cannot read them never starts."""
    grants: list[pulumi.Resource] = getattr(made, "grants", [])
    for name in output_kinds(COMPONENTS[kind]):
        waited = pulumi.Output.all(getattr(made, name), *(grant.urn for grant in grants))
        yield camel_case(name), waited.apply(lambda known: known[0])
    if plan is not None:
        yield "plan", to_json(plan.summary())
