"""Inputs of the package's components: their own, those from the settings of a stack, and their check before a resource is declared."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, Final, TypeVar, cast

import pulumi
from pulumi.errors import InputPropertiesError, InputPropertyErrorDetails
from pulumi.output import Unknown

from gemma_serving.components.checks import Input, arguments
from gemma_serving.contracts.masking import masked
from gemma_serving.planning.settings import text
from gemma_serving.planning.settings.fields import Block, own_fields
from gemma_serving.planning.settings.reading import InvalidBlockError, Place, Problem, part_at, read_block, read_values
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.stacks.loading import key_path

T = TypeVar("T")

REASONS: Final[Mapping[str, str]] = {
    "the component is the target": "target",
    "a stack declares resources for it": (
        "alerts cloudRun.compileCache dockerHub image.buildContext metrics tpu.compileCache tpu.egress "
        "tpu.tunnelMembers tpu.tunnelRole"
    ),
    "commands read it from a stack": "bucket.parts endpointUrl smoke",
    "`gemma teardown --all --over-limit` enforces it for stacks only": "maxAge maxUsd tpu.idleAfter",
    "use `secrets`": "apiKey apiKeySecret hfToken hfTokenSecret",
    "use `bucketName` and `ModelBucket`": "bucket.existing bucket.protect bucket.retainOnDestroy",
    "use `network` and `subnetwork`": "tpu.existingNetwork",
}
"""Settings of a stack that no component of the package has as an input, by the reason as a clause."""
NOT_OFFERED: Final = {key: reason for reason, keys in REASONS.items() for key in keys.split()}
"""Reason by setting."""


@arguments
class ServerInputs(Block):
    """What both servers take in addition to the settings of a stack. All of it but `project` may be an output."""

    project: text.ProjectId | None = None
    """Id of the Google Cloud project. A change replaces the server. Default: `gcp:project`. Required with a provider of `gcp` in the options."""
    service_account: Input[text.AccountEmail]
    """E-mail address of the account that pulls the image and reads secrets and bucket."""
    secrets: Mapping[text.Variable, Input[text.SecretVersion]] = field(default_factory=dict[str, pulumi.Input[str]])
    """Version in Secret Manager by its environment variable, such as `HF_TOKEN` or `VLLM_API_KEY`. The account must be one of its readers."""
    bucket_name: Input[text.BucketName] | None = None
    """Name of the bucket with the weights, which the account can read. Required with `weights: bucket`, otherwise rejected."""


@arguments
class CloudRunServerInputs(ServerInputs):
    """A vLLM server on a Cloud Run service with one GPU per instance, planned before anything is declared."""

    service_name: text.ServiceName
    """Name of the service, part of its URL. A change replaces the service."""
    network: Input[text.Network] | None = None
    """Name or path of a network, for all egress of the service. Default: one of the component's own with `cloudRun.directVpc`."""
    subnetwork: Input[text.Subnetwork] | None = None
    """Name or path of a subnet of `network` in the region. Both require each other. The hub needs Cloud NAT, a bucket Private Google Access.

    After the service is deleted, Google holds the subnet for one to two hours, in which `pulumi destroy` fails there.
    """

    def problems(self) -> Iterator[str]:
        """Yield each contradiction between inputs, and what to change."""
        if (self.network is None) != (self.subnetwork is None):
            yield "network and subnetwork require each other; set both or neither"


@arguments
class TpuServerInputs(ServerInputs):
    """A vLLM server on TPU capacity in the first zone that grants it, planned before anything is declared. It needs the provider `gcp-tpu`."""

    queued_resource_id: text.QueuedResourceId
    """Id of the queued resource and prefix of its node's id: letters, digits and hyphens. A change replaces the capacity."""
    network: Input[text.Network]
    """Name or path of a network. A change replaces the capacity."""
    subnetwork: Input[text.Subnetwork]
    """Name or path of a subnet in the region of each zone, with Private Google Access. The hub and images of Docker Hub need Cloud NAT."""
    tags: Sequence[text.ResourceName] = ()
    """Network tags, including the one in the tunnel's firewall rule. A change updates the TPU VM in place."""


def plain(value: Any) -> Any:  # noqa: ANN401 - JSON and outputs
    """Return what a program sent, without keys that are not set: whole numbers as such, and unknown values as outputs."""
    if isinstance(value, Unknown):
        return pulumi.Output.from_input(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [plain(one) for one in cast("list[object]", value)]
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in cast("Mapping[str, object]", value).items() if one is not None}
    return value


def _leaves(value: object, place: Place = ()) -> Iterator[tuple[Place, object]]:
    """Yield each value in inputs that is neither a map nor a list, with its place."""
    if isinstance(value, dict):
        for key, one in cast("dict[str, object]", value).items():
            yield from _leaves(one, (*place, key))
    elif isinstance(value, list):
        for index, one in enumerate(cast("list[object]", value)):
            yield from _leaves(one, (*place, index))
    else:
        yield place, value


def outputs_in(value: object) -> Iterator[Place]:
    """Yield the place of each output in inputs that the planner reads."""
    return (place for place, leaf in _leaves(value) if isinstance(leaf, pulumi.Output))


def input_named(sentence: str, values: Mapping[str, object]) -> str | None:
    """Return the input whose value a sentence names, in quotes if possible: an error of the planner has no place."""
    texts = [(place, leaf) for place, leaf in _leaves(values) if isinstance(leaf, str) and leaf in sentence]
    best = max(texts, key=lambda one: (f'"{one[1]}"' in sentence, len(one[1])), default=None)
    return None if best is None else key_path(best[0])


def read_inputs(kind: type[T], values: Mapping[str, object], component: str, more: Sequence[Problem] = ()) -> T:
    """Return the inputs as an object of their class. Raises InputPropertiesError with every problem, and with those of `more`."""
    problems = [*more]
    try:
        read = read_block(kind, json.dumps(values, default=_in_json)) if kind is Settings else read_values(kind, values)
    except InvalidBlockError as error:
        problems += error.problems
    else:
        if not problems:
            return read
    found = [
        detail(key_path(one.place) or _key_named(one.text, kind) or component, _reason(one, values)) for one in problems
    ]
    distinct = {one["property_path"]: one for one in reversed(found)}
    raise InputPropertiesError(f"{component} has invalid inputs. Nothing was declared.", [*reversed(distinct.values())])


def _key_named(sentence: str, kind: type) -> str:
    """Return the first input that a contradiction names; empty if it names none."""
    known = {field.file_key for field in own_fields(kind)} - NOT_OFFERED.keys()
    words = re.findall(r"\w+(?:\.\w+)*", sentence)
    return next((word for word in words if word.partition(".")[0] in known), "")


def _in_json(_output: object) -> object:
    """Return what no setting allows, in place of an output."""
    return {"": {"": {}}}


def detail(path: str, reason: str) -> InputPropertyErrorDetails:
    """Return the problem with an input, without secrets."""
    return InputPropertyErrorDetails(property_path=path, reason=masked(reason))


def _reason(problem: Problem, values: Mapping[str, object]) -> str:
    value = part_at(values, problem.place)
    if problem.kind == "missing":
        return "it is required. Set it."
    if problem.kind == "unknown":
        return f"no such input{f': {problem.text}' if problem.text else ''}. Remove it."
    if isinstance(value, pulumi.Output):
        return "it is an output or a secret, but the plan and the checks need its value. Pass a plain value."
    shown = f"it is {json.dumps(value)}; " if isinstance(value, str | int | float) else ""
    return f"{shown}{problem.text}."
