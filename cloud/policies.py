"""IAM policies: of which resource each type of grant is a part, and how Google's APIs read and replace it."""

from collections.abc import Mapping
from typing import Final, NamedTuple

POLICY_VERSION: Final = 3
"""The version that shows conditions (discovery: cloudresourcemanager.v1 GetPolicyOptions.requestedPolicyVersion)."""

Json = Mapping[str, object]


class PolicyCall(NamedTuple):
    """A call of the REST API that has the policy. No body: the call is a GET."""

    verb: str
    path: str
    body: Json | None = None


class PolicyOf(NamedTuple):
    """The resource whose policy holds a grant.

    Its name is made of the grant's inputs, of which a path counts as its last segment; the input `subject` may be the whole name.
    """

    api: str
    name: str
    resource: str
    """Path of the resource with `{name}`."""
    command: str
    """What follows `gcloud` in the command that removes a grant, with the grant's inputs."""
    id: str = "{name}"
    """How the state names the resource."""
    subject: str = ""

    def read(self, name: str) -> PolicyCall:
        """Return the call that reads the policy of the resource of this name, with its conditions."""
        resource = self.resource.format(name=name)
        if self.api == "storage":
            return PolicyCall("GET", f"{resource}/iam?optionsRequestedPolicyVersion={POLICY_VERSION}")
        if self.api == "cloudresourcemanager":
            body = {"options": {"requestedPolicyVersion": POLICY_VERSION}}
            return PolicyCall("POST", f"{resource}:getIamPolicy", body)
        path = f"{resource}:getIamPolicy?options.requestedPolicyVersion={POLICY_VERSION}"
        return PolicyCall("POST", path, {}) if self.api == "iam" else PolicyCall("GET", path)

    def write(self, name: str, policy: Json) -> PolicyCall:
        """Return the call that replaces a policy that was read; its etag refuses a policy that somebody changed since."""
        resource, body = self.resource.format(name=name), {**policy, "version": POLICY_VERSION}
        if self.api == "storage":
            return PolicyCall("PUT", f"{resource}/iam", body)
        return PolicyCall("POST", f"{resource}:setIamPolicy", {"policy": body})

    def name_of(self, inputs: Json) -> str:
        """Return the resource's name. Raises KeyError if an input is missing."""
        given = str(inputs.get(self.subject) or "")
        return given if "/" in given else self.name.format_map(last_segments(inputs))


def last_segments(inputs: Json) -> Mapping[str, str]:
    """Return the inputs that are texts, of each path its last segment."""
    return {key: value.rpartition("/")[2] for key, value in inputs.items() if isinstance(value, str)}


_PLACE: Final = "projects/{project}/locations/{location}"

POLICIES: Final[Mapping[str, PolicyOf]] = {
    "gcp:projects/iAMMember:IAMMember": PolicyOf(
        api="cloudresourcemanager",
        name="{project}",
        resource="v1/projects/{name}",
        command="projects remove-iam-policy-binding {project}",
    ),
    "gcp:serviceaccount/iAMMember:IAMMember": PolicyOf(
        api="iam",
        name="projects/-/serviceAccounts/{serviceAccountId}",
        resource="v1/{name}",
        command="iam service-accounts remove-iam-policy-binding {serviceAccountId} --project={project}",
        subject="serviceAccountId",
    ),
    "gcp:secretmanager/secretIamMember:SecretIamMember": PolicyOf(
        api="secretmanager",
        name="projects/{project}/secrets/{secretId}",
        resource="v1/{name}",
        command="secrets remove-iam-policy-binding {secretId} --project={project}",
        subject="secretId",
    ),
    "gcp:storage/bucketIAMMember:BucketIAMMember": PolicyOf(
        api="storage",
        name="{bucket}",
        resource="storage/v1/b/{name}",
        command="storage buckets remove-iam-policy-binding gs://{bucket}",
        id="b/{name}",
    ),
    "gcp:artifactregistry/repositoryIamMember:RepositoryIamMember": PolicyOf(
        api="artifactregistry",
        name=f"{_PLACE}/repositories/{{repository}}",
        resource="v1/{name}",
        command="artifacts repositories remove-iam-policy-binding {repository} --location={location} --project={project}",
    ),
    "gcp:cloudrunv2/serviceIamMember:ServiceIamMember": PolicyOf(
        api="run",
        name=f"{_PLACE}/services/{{name}}",
        resource="v2/{name}",
        command="run services remove-iam-policy-binding {name} --region={location} --project={project}",
    ),
}
"""The policy of each type of grant that a stack makes. Types and inputs are those of the provider `gcp`."""
