"""The permissions of predefined roles, as far as the local cloud checks them.

A permission is `API.resource.verb`. Patterns follow Google's IAM reference; a role that is not listed grants nothing here.
"""

from fnmatch import fnmatchcase

_READS = ("*.get", "*.list", "*.getIamPolicy")
_NOT_FOR_EDITORS = ("*.setIamPolicy", "secretmanager.versions.access")
"""Permissions that the basic role Editor lacks (IAM's reference of basic roles; Secret Manager's page on access control)."""
ROLES: dict[str, tuple[str, ...]] = {
    "roles/owner": ("*",),
    "roles/editor": ("*",),
    "roles/viewer": _READS,
    "roles/run.admin": ("run.*",),
    "roles/run.developer": ("run.*",),
    "roles/run.viewer": tuple("run." + pattern for pattern in _READS),
    "roles/run.invoker": ("run.routes.invoke",),
    "roles/secretmanager.admin": ("secretmanager.*",),
    "roles/secretmanager.secretAccessor": ("secretmanager.versions.access",),
    "roles/secretmanager.viewer": ("secretmanager.*.get", "secretmanager.*.list"),
    "roles/secretmanager.secretVersionAdder": ("secretmanager.secrets.addVersion",),
    "roles/secretmanager.secretVersionManager": ("secretmanager.versions.*", "secretmanager.secrets.addVersion"),
    "roles/storage.admin": ("storage.*",),
    "roles/storage.objectAdmin": ("storage.objects.*",),
    "roles/storage.objectUser": ("storage.objects.*",),
    "roles/storage.objectCreator": ("storage.objects.insert",),
    "roles/storage.objectViewer": ("storage.objects.get", "storage.objects.list"),
    "roles/storage.legacyBucketReader": ("storage.buckets.get", "storage.objects.list"),
    "roles/storage.bucketViewer": ("storage.buckets.get", "storage.buckets.list"),
    "roles/artifactregistry.admin": ("artifactregistry.*",),
    "roles/artifactregistry.reader": ("artifactregistry.*.get", "artifactregistry.*.list"),
    "roles/artifactregistry.writer": ("artifactregistry.*.get", "artifactregistry.*.list"),
    "roles/tpu.admin": ("tpu.*",),
    "roles/tpu.viewer": ("tpu.*.get", "tpu.*.list"),
    "roles/compute.admin": ("compute.*",),
    "roles/compute.networkAdmin": ("compute.*",),
    "roles/compute.viewer": ("compute.*.get", "compute.*.list"),
    "roles/compute.networkUser": ("compute.networks.get", "compute.subnetworks.get"),
    "roles/iam.serviceAccountAdmin": ("iam.serviceAccounts.*",),
    "roles/iam.serviceAccountUser": ("iam.serviceAccounts.get", "iam.serviceAccounts.list"),
    "roles/logging.admin": ("logging.*",),
    "roles/logging.logWriter": ("logging.entries.write",),
    "roles/logging.viewer": ("logging.*.get", "logging.*.list"),
    "roles/monitoring.admin": ("monitoring.*",),
    "roles/monitoring.editor": ("monitoring.*",),
    "roles/monitoring.viewer": ("monitoring.*.get", "monitoring.*.list"),
    "roles/monitoring.metricWriter": ("monitoring.timeSeries.create",),
    "roles/serviceusage.serviceUsageConsumer": ("serviceusage.services.get", "serviceusage.services.list"),
}


def grants(role: str, permission: str) -> bool:
    """Tell if a predefined role includes a permission."""
    if role == "roles/editor" and any(fnmatchcase(permission, pattern) for pattern in _NOT_FOR_EDITORS):
        return False
    return any(fnmatchcase(permission, pattern) for pattern in ROLES.get(role, ()))


def permission_of(method_id: str) -> str:
    """Return the permission that a method needs: `run.services.get` for `run.projects.locations.services.get`."""
    parts = method_id.split(".")
    return f"{parts[0]}.{parts[-2]}.{parts[-1]}" if len(parts) > 2 else method_id  # noqa: PLR2004 - API, resource, verb
