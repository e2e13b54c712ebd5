"""The objects of a plan as resources of one graph with bucket, token and grants."""

import sys

import pulumi
import pulumi_kubernetes
import pytest

from gemma_serving.components.gke_model_server import GkeModelServer, GkeModelServerArgs, workload_member
from gemma_serving.components.model_bucket import ModelBucket, ModelBucketArgs
from gemma_serving.components.stored_secret import HuggingFaceToken, StoredSecretArgs

MEMBER = (
    "principal://iam.googleapis.com/projects/123/locations/global/workloadIdentityPools/my-project.svc.id.goog"
    "/subject/ns/models/sa/gemma"
)


def an_object(version, kind, **spec):
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "gemma", "annotations": {"a": "b"}}, **spec}


OBJECTS = [
    an_object("v1", "ServiceAccount"),
    an_object("v1", "Service", spec={"type": "ClusterIP"}),
    an_object("apps/v1", "Deployment", spec={"paused": False}),
    an_object("monitoring.googleapis.com/v1", "PodMonitoring", spec={"endpoints": []}),
]


def server(granted=(), **changes):
    args = {"context": "gke_my-project_us-east5_mine", "namespace": "models", "objects": OBJECTS}
    opts = pulumi.ResourceOptions(depends_on=list(granted))
    return GkeModelServer("server", GkeModelServerArgs(**{**args, **changes}), opts)


def test_the_objects_follow_the_grants_in_their_order_through_one_provider(declare):
    def program():
        number = pulumi.Output.from_input("123")
        member = workload_member(project="my-project", project_number=number, namespace="models", account="gemma")
        readers = {"gke": member}
        bucket = ModelBucketArgs(project="my-project", name="my-models", location="us-east5", readers=readers)
        token = StoredSecretArgs(project="my-project", secret_id="hf", value="hf_canary", readers=readers)
        return server([ModelBucket("models", bucket), HuggingFaceToken("token", token)]).service

    recorder, service = declare(program)
    assert service == "gemma"
    provider = recorder.one("pulumi:providers:kubernetes")
    assert provider.inputs == {"context": "gke_my-project_us-east5_mine", "namespace": "models"}
    grants = recorder.all("IAMMember") + recorder.all("IamMember")
    assert [grant.inputs["member"] for grant in grants] == [MEMBER, MEMBER]
    made = recorder.declared[-len(OBJECTS) :]
    assert [one.type for one in made] == [
        "kubernetes:core/v1:ServiceAccount",
        "kubernetes:core/v1:Service",
        "kubernetes:apps/v1:Deployment",
        "kubernetes:monitoring.googleapis.com/v1:PodMonitoring",
    ]
    assert {one.provider.rpartition("::")[0] for one in made} == {
        "urn:pulumi:x::gemma-serving::gemma-serving:index:GkeModelServer$pulumi:providers:kubernetes::server"
    }
    for one, item in zip(made, OBJECTS, strict=True):
        annotations = one.inputs["metadata"].pop("annotations")
        assert annotations.pop("pulumi.com/skipAwait") == "true"
        assert annotations.pop("pulumi.com/deletionPropagationPolicy") == "background"
        assert annotations == {"a": "b"}
        assert one.inputs == {**item, "metadata": {"name": "gemma"}}


def test_without_the_extra_one_sentence_names_the_command(declare, monkeypatch):
    monkeypatch.setitem(sys.modules, "pulumi_kubernetes", None)

    def program():
        with pytest.raises(pulumi.RunError) as raised:
            server()
        return str(raised.value)

    recorder, said = declare(program)
    assert said.startswith('GkeModelServer "server": the package pulumi-kubernetes is not installed. Run `')
    assert recorder.declared == []


def test_a_kubeconfig_is_a_secret_in_the_state_and_in_no_text_of_the_arguments(declare, monkeypatch):
    passed = []
    kind = pulumi_kubernetes.Provider
    monkeypatch.setattr(pulumi_kubernetes, "Provider", lambda *a, **k: passed.append(k["kubeconfig"]) or kind(*a, **k))
    text = "users: [{user: {token: canary}}]"

    def is_secret():
        server(kubeconfig=text)
        return passed[0].is_secret()

    assert declare(is_secret)[1] is True
    place = {"context": "mine", "namespace": "models", "objects": OBJECTS}
    assert "canary" not in repr(GkeModelServerArgs(kubeconfig=text, **place))
