"""IAM members of projects, secrets, buckets, repositories, services and service accounts."""

from typing import Final

from localcloud.plugins.iam import MEMBER_FIELDS, Dialect, IamMember
from localcloud.plugins.lifecycle import ResourceType
from localcloud.plugins.schema import PropertySpec, last_segment, text
from localcloud.plugins.table.common import PROJECT

_LOCATION: Final = text(computed=True, force_new=True)


def _member(type_name: str, lifecycle: IamMember, *, project: bool = False, location: bool = False) -> ResourceType:
    fields: dict[str, PropertySpec] = {
        **MEMBER_FIELDS,
        lifecycle.subject: text(required=True, force_new=True, same=last_segment),
    }
    if project:
        fields["project"] = PROJECT
    if location:
        fields["location"] = _LOCATION
    return ResourceType(type_name=type_name, fields=fields, lifecycle=lifecycle)


MEMBERS: Final = (
    _member(
        "gcp:projects/iAMMember:IAMMember",
        IamMember(
            noun="project",
            subject="project",
            prefix="cloudresourcemanager/v1/projects",
            resource="{name}",
            dialect=Dialect.POST_BODY,
        ),
    ),
    _member(
        "gcp:secretmanager/secretIamMember:SecretIamMember",
        IamMember(
            noun="secret",
            subject="secretId",
            prefix="secretmanager/v1",
            resource="projects/{project}/secrets/{name}",
            dialect=Dialect.GET_QUERY,
        ),
        project=True,
    ),
    _member(
        "gcp:storage/bucketIAMMember:BucketIAMMember",
        IamMember(
            noun="bucket", subject="bucket", prefix="storage/storage/v1", resource="b/{name}", dialect=Dialect.STORAGE
        ),
    ),
    _member(
        "gcp:artifactregistry/repositoryIamMember:RepositoryIamMember",
        IamMember(
            noun="repository",
            subject="repository",
            prefix="artifactregistry/v1",
            resource="projects/{project}/locations/{location}/repositories/{name}",
            dialect=Dialect.GET_PLAIN,
        ),
        project=True,
        location=True,
    ),
    _member(
        "gcp:cloudrunv2/serviceIamMember:ServiceIamMember",
        IamMember(
            noun="Cloud Run service",
            subject="name",
            prefix="run/v2",
            resource="projects/{project}/locations/{location}/services/{name}",
            dialect=Dialect.GET_PLAIN,
        ),
        project=True,
        location=True,
    ),
    _member(
        "gcp:serviceaccount/iAMMember:IAMMember",
        IamMember(
            noun="service account",
            subject="serviceAccountId",
            prefix="iam/v1",
            resource="projects/{project}/serviceAccounts/{name}",
            dialect=Dialect.POST_QUERY,
        ),
    ),
)
