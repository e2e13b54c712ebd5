"""Laws of every argument of every public component: a wrong one is an InvalidArgumentError with its name, and nothing is declared."""

import dataclasses

import pulumi
import pytest

from gemma_serving.components.checks import InvalidArgumentError
from gemma_serving.components.cloud_run_gpu_service import (
    CloudRunGpuService,
    Collector,
    DirectVpc,
    MemoryVolume,
)
from gemma_serving.components.gke_model_server import GkeModelServer, GkeModelServerArgs
from gemma_serving.components.model_bucket import ModelBucket, ModelBucketArgs
from gemma_serving.components.private_network import PrivateNetwork, PrivateNetworkArgs
from gemma_serving.components.stored_secret import (
    ApiKeySecret,
    ExistingSecret,
    ExistingSecretArgs,
    HuggingFaceToken,
    StoredSecretArgs,
)
from gemma_serving.components.tpu_queued_resource import TpuQueuedResource
from gemma_serving.components.vllm_server import VllmServer
from gemma_serving.contracts.serving_document import BucketWeights
from gemma_serving.planning.settings.annotations import MAY_BE_OUTPUT
from gemma_serving.planning.settings.cloud_run import CloudRunSettings
from gemma_serving.planning.settings.tpu import TpuSettings
from tests.components.test_cloud_run_gpu_service import ARGS as SERVICE
from tests.components.test_tpu_queued_resource import ARGS as CAPACITY

PROJECT, MEMBER = "my-project", "serviceAccount:a@my-project.iam.gserviceaccount.com"
VPC = DirectVpc(network="projects/my-project/global/networks/n", subnetwork="n", tag="n")
VOLUME = MemoryVolume(name="cache", path="/mnt/cache", size_limit="2Gi")
COLLECTOR = Collector(image="i@sha256:" + "0" * 64, config="{}", secrets={})
WEIGHTS = BucketWeights(uri="gs://my-models/m", path="/mnt/models/m")
RUN = dataclasses.replace(SERVICE.service, direct_vpc=True, readiness_probe=True)
TOKEN = StoredSecretArgs(project=PROJECT, secret_id="hf-token", value="hf", readers={"server": MEMBER})
SERVICE_OBJECT = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}}
COMPONENTS = {
    HuggingFaceToken: TOKEN,
    ApiKeySecret: TOKEN,
    ExistingSecret: ExistingSecretArgs(version_name="projects/p/secrets/s/versions/1", readers={"server": MEMBER}),
    ModelBucket: ModelBucketArgs(project=PROJECT, name="my-models", location="us-east4", readers={"server": MEMBER}),
    PrivateNetwork: PrivateNetworkArgs(
        project=PROJECT, name="own", regions=["us-east5"], target_tag="own", egress_ports=["443"]
    ),
    CloudRunGpuService: dataclasses.replace(
        SERVICE, service=RUN, memory_volumes=[VOLUME], direct_vpc=VPC, collector=COLLECTOR, bucket="their-models"
    ),
    GkeModelServer: GkeModelServerArgs(context="c", namespace="n", objects=[SERVICE_OBJECT]),
    TpuQueuedResource: dataclasses.replace(CAPACITY, weights=WEIGHTS, parts=[WEIGHTS]),
}
CLASSES = [
    *dict.fromkeys(type(args) for args in COMPONENTS.values()),
    VllmServer,
    CloudRunSettings,
    TpuSettings,
    MemoryVolume,
    DirectVpc,
    Collector,
]
NEVER = (object(), b"x", [{"wrong": 1}], {1: object()}, 1j)
"""Values that no argument takes."""
SOMETIMES = (None, "", " ", "A b", "x" * 300, -1, 0, 0.5, True, (), {}, {"A b": "A b"}, ["A b"], float("nan"))


def places(args, path=()):
    """Yield the path of each argument, those of its blocks included."""
    for field in dataclasses.fields(args):
        yield (*path, field.name)
        value = getattr(args, field.name)
        if dataclasses.is_dataclass(value):
            yield from places(value, (*path, field.name))


def changed(args, path, value):
    name, *rest = path
    return dataclasses.replace(args, **{name: changed(getattr(args, name), rest, value) if rest else value})


def hint_at(args, path):
    *parents, name = path
    for parent in parents:
        args = getattr(args, parent)
    return next(field for field in dataclasses.fields(args) if field.name == name)


def outcome(component, name, args):
    """Return the sentence of the rejection; empty if the component is declared."""
    try:
        component(name, args)
    except InvalidArgumentError as error:
        return str(error)
    return ""


def accepted(declare, component, values):
    """Return each pair of an argument and a value that the component accepts. A rejection names the argument and declares nothing."""
    args, found = COMPONENTS[component], []

    def program():
        for number, (path, value) in enumerate((path, value) for path in places(args) for value in values):
            said = outcome(component, f"x{number}", changed(args, path, value))
            assert not said or path[-1] in said or path[0] in said, (path, value, said)
            assert "\n" not in said
            if not said:
                found.append((number, path, value))

    recorder, _ = declare(program)
    declared = {one.name.partition("-")[0] for one in recorder.declared}
    assert declared <= {f"x{number}" for number, _, _ in found}
    return [(path, value) for _, path, value in found]


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_value_of_a_wrong_type_is_never_accepted(declare, component):
    assert accepted(declare, component, NEVER) == []


@pytest.mark.parametrize("component", COMPONENTS)
def test_another_value_is_accepted_or_an_invalid_argument(declare, component):
    args = COMPONENTS[component]
    for path, value in accepted(declare, component, SOMETIMES):
        field = hint_at(args, path)
        is_required = field.default is field.default_factory is dataclasses.MISSING
        assert value in (False, {}) or value or not is_required, (path, value)
        assert value is not None or field.default is None, path


@pytest.mark.parametrize("component", COMPONENTS)
def test_an_output_is_accepted_only_where_the_type_allows_one(declare, component):
    args = COMPONENTS[component]

    def program():
        for path in places(args):
            hint, value = str(hint_at(args, path).type), args
            for name in path:
                value = getattr(value, name)
            said = outcome(component, "-".join(path), changed(args, path, pulumi.Output.from_input(value)))
            is_whole = not hint.removeprefix("typing.Annotated[").startswith(
                "collections"
            )  # not only the values of a map
            assert (repr(MAY_BE_OUTPUT) in hint and is_whole) == (not said), (path, said)

    declare(program)


@pytest.mark.parametrize("owner", CLASSES)
def test_a_missing_and_an_unknown_argument_are_named(owner):
    fields = dataclasses.fields(owner)
    required = [one.name for one in fields if one.default is one.default_factory is dataclasses.MISSING]
    with pytest.raises(InvalidArgumentError) as raised:
        owner()
    assert all(f"'{name}'" in str(raised.value) for name in required)
    with pytest.raises(InvalidArgumentError, match=f"{owner.__name__} .*'no_such_name'"):
        owner(**dict.fromkeys(required, "x"), no_such_name=1)
    with pytest.raises(InvalidArgumentError, match=owner.__name__):
        owner("x")


@pytest.mark.parametrize("component", COMPONENTS)
def test_other_arguments_than_the_components_own_are_named(declare, component):
    for args in ({"project": PROJECT}, None, WEIGHTS):
        recorder, said = declare(lambda args=args: outcome(component, "x", args))
        assert f"expected {type(COMPONENTS[component]).__name__}" in said
        assert recorder.declared == []
