"""The permissions that a stack's resources need, by the role that grants them.

Source: Google's IAM reference of roles and permissions, one page per service. A queued resource has no separate permissions, so the TPU node
permissions apply.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from gemma_serving.cloud.kinds import KINDS, LOCATIONS
from gemma_serving.planning.settings.cloud_run import CloudRunSettings
from gemma_serving.planning.settings.secrets import KINDS as SECRETS
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.planning.settings.tpu import TpuSettings


@dataclass(frozen=True, slots=True)
class RolePermissions:
    """A predefined role and the permissions in it that a stack needs."""

    role: str
    permissions: Sequence[str]
    by_name: bool = False
    """True if a grant may be limited to the names of stacks, as in .github/setup/accounts.sh. The project then shows only the CREATIONS."""


CREATIONS: Final = frozenset({"storage.buckets.create", "secretmanager.secrets.create"})
"""Permissions that Google checks on the project, because the resource does not exist yet (Secret Manager, Method: projects.secrets.create)."""


def _role(role: str, *lines: str, by_name: bool = False) -> RolePermissions:
    """Return a role with its permissions. Each line is a resource and its verbs."""
    words = [line.split() for line in lines]
    permissions = tuple(f"{resource}.{verb}" for resource, *verbs in words for verb in verbs)
    return RolePermissions(f"roles/{role}", permissions, by_name)


_OWN: Final = "create get update delete"
_ACCESS: Final = "getIamPolicy setIamPolicy"

COMMON: Sequence[RolePermissions] = (
    _role("serviceusage.serviceUsageConsumer", "serviceusage.services get use", "serviceusage.quotas get"),
    _role("resourcemanager.projectIamAdmin", f"resourcemanager.projects get {_ACCESS}"),
    _role("iam.serviceAccountAdmin", f"iam.serviceAccounts {_OWN}"),
    _role("iam.serviceAccountUser", "iam.serviceAccounts actAs"),
    _role("artifactregistry.admin", f"artifactregistry.repositories {_OWN} {_ACCESS}"),
    RolePermissions(
        "roles/viewer",
        (*(f"{api}.locations.list" for api in LOCATIONS), *dict.fromkeys(kind.permission for kind in KINDS)),
    ),
    _role("iam.securityReviewer", "storage.buckets getIamPolicy", "secretmanager.secrets getIamPolicy"),
)
"""Permissions that every stack needs. A teardown reads the lists and policies to find leaked resources of any type."""

_SECRETS = _role(
    "secretmanager.admin",
    f"secretmanager.secrets {_OWN} {_ACCESS}",
    "secretmanager.versions add get list access destroy",
    by_name=True,
)
_REFERENCES = _role("secretmanager.admin", f"secretmanager.secrets {_ACCESS}", by_name=True)
_BUCKETS = _role(
    "storage.admin", f"storage.buckets {_OWN} {_ACCESS}", "storage.objects create get list delete", by_name=True
)
_STAGED = _role("storage.objectViewer", "storage.objects get list")
_USE = _role("monitoring.viewer", "monitoring.timeSeries list")
_ALERTS = _role(
    "monitoring.editor",
    *(f"monitoring.{kind} {_OWN}" for kind in ("alertPolicies", "notificationChannels", "dashboards")),
)
_LOG_ALERTS = _role("logging.configWriter", f"logging.notificationRules {_OWN}")
"""Alert policies on log lines (cloud.google.com/unified-maintenance/docs/access-control, 2025-08)."""
_SERVICES = _role("run.admin", f"run.services {_OWN} {_ACCESS}")
_LOGS = _role("logging.viewer", "logging.logEntries list")
"""Without this role, a failed `up` reports only that the container did not start, without the server's logs."""
_NODES = _role("tpu.admin", "tpu.nodes create get list update delete")
_INSTANCES = _role(
    "compute.instanceAdmin.v1",
    "compute.instances create get list delete getGuestAttributes setMetadata setLabels setTags setServiceAccount",
    "compute.disks create",
    "compute.subnetworks use",
    "compute.zoneOperations get",
)
READS: Final = frozenset(
    f"roles/{role}"
    for role in ("viewer", "iam.securityReviewer", "logging.viewer", "monitoring.viewer", "iap.tunnelResourceAccessor")
)
"""Roles without which `up` deploys: a teardown searches with the first two, the others show causes and costs, and open a tunnel."""
_TUNNEL = _role("iap.tunnelResourceAccessor", "iap.tunnelInstances accessViaIAP")
_ACCOUNT_ACCESS = _role("iam.serviceAccountAdmin", f"iam.serviceAccounts {_ACCESS}")
NETWORKS = _role(
    "compute.networkAdmin",
    "compute.networks create get delete updatePolicy",
    "compute.subnetworks create get delete use",
    f"compute.routers {_OWN}",
)
_FIREWALLS = _role("compute.securityAdmin", "compute.firewalls create get delete")


def permissions_of(settings: Settings | None) -> Sequence[RolePermissions]:
    """Return the permissions that the caller needs for this stack; without settings, for any stack."""
    return COMMON if settings is None else (*COMMON, *_of_settings(settings), _LOGS)


def _of_settings(settings: Settings) -> Iterator[RolePermissions]:
    """Yield the permissions that the settings of a stack need."""
    if settings.secrets or settings.docker_hub is not None or settings.archives_programs:
        yield _SECRETS
    elif any(settings.has_secret(kind.key) for kind in SECRETS):
        yield _REFERENCES
    if settings.max_usd is not None and settings.cloud_run is not None:
        yield _USE
    if settings.alerts.enabled:
        yield from (_ALERTS, _LOG_ALERTS)
    if settings.uses_bucket:
        yield _STAGED if settings.bucket.existing else _BUCKETS
    if settings.tpu is not None:
        yield from _of_machine(settings.tpu)
    if settings.service is not None:
        yield from _of_service(settings.service)


def _of_machine(tpu: TpuSettings) -> Iterator[RolePermissions]:
    if tpu.tunnel_members:
        yield _ACCOUNT_ACCESS
    yield from (_NODES if tpu.api == "cloud-tpu" else _INSTANCES, _TUNNEL)
    if not tpu.existing_network:
        yield from (NETWORKS, _FIREWALLS)


def _of_service(run: CloudRunSettings) -> Iterator[RolePermissions]:
    """Yield the permissions for the service and its networks."""
    yield _SERVICES
    if run.direct_vpc:
        yield from (NETWORKS, _FIREWALLS)
