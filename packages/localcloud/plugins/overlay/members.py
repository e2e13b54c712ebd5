"""IAM members of projects, secrets, buckets, repositories, services and service accounts."""

from collections.abc import Mapping
from functools import partial
from typing import Final

from localcloud.plugins.facts import Recorded
from localcloud.plugins.iam import IamMember, PolicyDialect
from localcloud.plugins.lifecycle import TypeOverlay
from localcloud.plugins.schema import last_segment

_SHORT: Final[Recorded] = {"same": last_segment}


def _member(subject: str, noun: str, prefix: str, resource: str, dialect: PolicyDialect) -> TypeOverlay:
    lifecycle = partial(IamMember, noun=noun, subject=subject, prefix=prefix, resource=resource, dialect=dialect)
    return TypeOverlay(properties={} if subject == "serviceAccountId" else {subject: _SHORT}, lifecycle=lifecycle)


_LOCATED: Final = "projects/{project}/locations/{location}"
MEMBERS: Final[Mapping[str, TypeOverlay]] = {
    "gcp:projects/iAMMember:IAMMember": _member(
        "project", "project", "cloudresourcemanager/v1/projects", "{name}", PolicyDialect.POST_BODY
    ),
    "gcp:secretmanager/secretIamMember:SecretIamMember": _member(
        "secretId", "secret", "secretmanager/v1", "projects/{project}/secrets/{name}", PolicyDialect.GET_QUERY
    ),
    "gcp:storage/bucketIAMMember:BucketIAMMember": _member(
        "bucket", "bucket", "storage/storage/v1", "b/{name}", PolicyDialect.STORAGE
    ),
    "gcp:artifactregistry/repositoryIamMember:RepositoryIamMember": _member(
        "repository", "repository", "artifactregistry/v1", f"{_LOCATED}/repositories/{{name}}", PolicyDialect.GET_PLAIN
    ),
    "gcp:cloudrunv2/serviceIamMember:ServiceIamMember": _member(
        "name", "Cloud Run service", "run/v2", f"{_LOCATED}/services/{{name}}", PolicyDialect.GET_PLAIN
    ),
    "gcp:serviceaccount/iAMMember:IAMMember": _member(
        "serviceAccountId",
        "service account",
        "iam/v1",
        "projects/{project}/serviceAccounts/{name}",
        PolicyDialect.POST_QUERY,
    ),
}
