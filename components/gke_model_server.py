"""A vLLM server on an existing GKE cluster: the Kubernetes objects of its plan, registered with Pulumi's Kubernetes provider."""

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Annotated, Final, NamedTuple

import pulumi

from gemma_serving.components.checks import Input, arguments, require_valid
from gemma_serving.contracts.fields import as_mapping
from gemma_serving.contracts.installation import install_sentence
from gemma_serving.planning.settings import text
from gemma_serving.planning.settings.annotations import matching
from gemma_serving.planning.settings.fields import Block
from gemma_serving.planning.settings.words import AfterValidator

_ANNOTATIONS: Final = {
    # An update does not wait for Pods, and a refresh does not report them as failed.
    "pulumi.com/skipAwait": "true",
    # Nor does a deletion then wait for a Deployment's Pods. In the foreground, the object would stay until they have ended, and a new `up`
    # before that would update an object that then disappears.
    "pulumi.com/deletionPropagationPolicy": "background",
}
"""Annotations of each object for Pulumi's provider (pulumi-kubernetes, provider/pkg/metadata/overrides.go)."""


class _Identity(NamedTuple):
    """API version, kind and name of an object."""

    api_version: str
    kind: str
    name: str


def _identity(item: Mapping[str, object]) -> _Identity:
    name = as_mapping(item.get("metadata")).get("name")
    return _Identity(str(item.get("apiVersion") or ""), str(item.get("kind") or ""), str(name or ""))


def _with_a_service(objects: Sequence[Mapping[str, object]]) -> Sequence[Mapping[str, object]]:
    found = [_identity(item) for item in objects]
    if not all(all(item) for item in found):
        raise ValueError("expected objects with apiVersion, kind and metadata.name")
    if [item.kind for item in found].count("Service") != 1:
        raise ValueError("expected objects of which one is a Service")
    return objects


@arguments
class GkeModelServerArgs(Block):
    """Objects of a plan, and where they belong."""

    context: Annotated[str, matching(r"^\S+$", "a context of the kubeconfig", "gke_my-project_us-east5_my-cluster")]
    """Context of the kubeconfig, which names the cluster and the login. Another cluster replaces the objects."""
    namespace: text.ResourceName
    """Existing namespace of the objects. A change replaces them."""
    objects: Annotated[Sequence[Mapping[str, object]], AfterValidator(_with_a_service)]
    """Objects that `gemma plan STACK --gke` prints, in the order of their creation."""
    kubeconfig: Input[str] | None = field(default=None, repr=False)
    """Path or text of the kubeconfig. Default: `KUBECONFIG` in the environment, otherwise `~/.kube/config`."""


def workload_member(
    *, project: str, project_number: pulumi.Input[str], namespace: str, account: str
) -> pulumi.Output[str]:
    """Return the IAM member of the Pods that run as a Kubernetes service account, for `readers` of a bucket or a secret.

    `project` and `project_number` are the cluster's. IAM cannot tell clusters of one project apart that have the same namespace and account.
    Google recommends this member over a Google service account that Pods impersonate
    (https://cloud.google.com/kubernetes-engine/docs/how-to/workload-identity).
    """
    subject = f"locations/global/workloadIdentityPools/{project}.svc.id.goog/subject/ns/{namespace}/sa/{account}"
    return pulumi.Output.concat("principal://iam.googleapis.com/projects/", project_number, f"/{subject}")


class GkeModelServer(pulumi.ComponentResource):
    """The objects of a plan, created in their order and deleted in reverse.

    The Pods read bucket and secrets as `workload_member`. Name those in the option `depends_on`, so that the objects follow the grants.
    Cluster, namespace, node pools and compute classes belong to their owner: the objects name them, and no component creates them.
    `pulumi up` ends when the API server has stored the objects, because the provider's own rule for Pods does not fit a server that scales:
    it fails if one more replica gets no node although the others serve, and after a change it can pass on Pods from before the change.
    `gemma smoke --url URL` checks the server.
    Raises InvalidArgumentError for an invalid argument, and pulumi.RunError if pulumi-kubernetes is not installed.
    """

    service: pulumi.Output[str]
    """Name of the Service, for `kubectl port-forward service/NAME`."""

    def __init__(self, name: str, args: GkeModelServerArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        require_valid(f'GkeModelServer "{name}"', args, GkeModelServerArgs)
        try:
            from pulumi_kubernetes import Provider  # noqa: PLC0415 - the extra `gke`, which other programs do not need
        except ModuleNotFoundError:
            what = f'GkeModelServer "{name}": the package pulumi-kubernetes is not installed.'
            raise pulumi.RunError(f"{what} {install_sentence('gke')}") from None
        super().__init__("gemma-serving:index:GkeModelServer", name, None, opts)
        cluster = Provider(
            name,
            kubeconfig=None if args.kubeconfig is None else pulumi.Output.secret(args.kubeconfig),
            context=args.context,
            namespace=args.namespace,
            opts=pulumi.ResourceOptions(parent=self),
        )
        created: list[pulumi.Resource] = []
        for item in args.objects:
            child = pulumi.ResourceOptions(parent=self, provider=cluster, depends_on=created[:])
            created.append(_declared(name, item, child))
        (service,) = [found.name for found in map(_identity, args.objects) if found.kind == "Service"]
        self.service = pulumi.Output.from_input(service)
        self.register_outputs({"service": self.service})


def _declared(name: str, item: Mapping[str, object], opts: pulumi.ResourceOptions) -> pulumi.CustomResource:
    """Declare one object. Its type has the group `core` where the API version has none, as in Pulumi's schema."""
    version, kind, own_name = _identity(item)
    metadata = as_mapping(item["metadata"])
    annotations = {**as_mapping(metadata.get("annotations")), **_ANNOTATIONS}
    return pulumi.CustomResource(
        f"kubernetes:{version if '/' in version else f'core/{version}'}:{kind}",
        f"{name}-{kind.lower()}-{own_name}",
        {**item, "metadata": {**metadata, "annotations": annotations}},
        opts,
    )
