"""The permissions that a stack's resources need, by the role that grants them.

Source: Google's IAM reference of roles and permissions, one page per service. A queued resource has no permissions of its own, so the TPU node
permissions apply.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cloud.kinds import KINDS, LOCATIONS
from stacks.secrets import KINDS as SECRETS
from stacks.settings import CloudRunSettings, GatewayStack, Settings


@dataclass(frozen=True, slots=True)
class RolePermissions:
    """A predefined role and the permissions in it that a stack needs."""

    role: str
    permissions: Sequence[str]


def _of(role: str, resource: str, *verbs: str) -> RolePermissions:
    return RolePermissions(role, tuple(f"{resource}.{verb}" for verb in verbs))


_OWN = ("create", "get", "update", "delete")
_ACCESS = ("getIamPolicy", "setIamPolicy")

COMMON: Sequence[RolePermissions] = (
    RolePermissions(
        "roles/serviceusage.serviceUsageConsumer",
        ("serviceusage.services.get", "serviceusage.services.use", "serviceusage.quotas.get"),
    ),
    _of("roles/resourcemanager.projectIamAdmin", "resourcemanager.projects", "get", *_ACCESS),
    _of("roles/iam.serviceAccountAdmin", "iam.serviceAccounts", "create", "get", "update", "delete"),
    _of("roles/iam.serviceAccountUser", "iam.serviceAccounts", "actAs"),
    _of("roles/artifactregistry.admin", "artifactregistry.repositories", *_OWN, *_ACCESS),
    RolePermissions(
        "roles/viewer",
        (
            *(f"{api}.locations.list" for api in LOCATIONS),
            *dict.fromkeys(kind.permission for kind in KINDS),
        ),
    ),
    RolePermissions(
        "roles/iam.securityReviewer", ("storage.buckets.getIamPolicy", "secretmanager.secrets.getIamPolicy")
    ),
)
"""Permissions that every stack needs. A teardown reads the lists and policies to find leaked resources of any type."""

_SECRETS = RolePermissions(
    "roles/secretmanager.admin",
    (
        *(f"secretmanager.secrets.{verb}" for verb in (*_OWN, *_ACCESS)),
        *(f"secretmanager.versions.{verb}" for verb in ("add", "get", "access", "destroy")),
    ),
)
_REFERENCES = _of("roles/secretmanager.admin", "secretmanager.secrets", *_ACCESS)
_BUCKETS = RolePermissions(
    "roles/storage.admin",
    (
        *(f"storage.buckets.{verb}" for verb in (*_OWN, *_ACCESS)),
        *(f"storage.objects.{verb}" for verb in ("create", "get", "list", "delete")),
    ),
)
_STAGED = _of("roles/storage.objectViewer", "storage.objects", "get", "list")
_USE = _of("roles/monitoring.viewer", "monitoring.timeSeries", "list")
_ALERTS = RolePermissions(
    "roles/monitoring.editor",
    tuple(
        f"monitoring.{kind}.{verb}" for kind in ("alertPolicies", "notificationChannels", "dashboards") for verb in _OWN
    ),
)
_LOG_ALERTS = _of("roles/logging.configWriter", "logging.notificationRules", *_OWN)
"""Alert policies on log lines (cloud.google.com/unified-maintenance/docs/access-control, 2025-08)."""
_SERVICES = _of("roles/run.admin", "run.services", *_OWN, *_ACCESS)
_ROLL_OUTS = RolePermissions("roles/run.admin", ("run.revisions.list", "run.operations.get"))
_LOGS = _of("roles/logging.viewer", "logging.logEntries", "list")
"""Without this role, a failed `up` reports only that the container did not start, without the server's logs."""
_NODES = _of("roles/tpu.admin", "tpu.nodes", "create", "get", "list", "update", "delete")
_INSTANCES = RolePermissions(
    "roles/compute.instanceAdmin.v1",
    (
        *(f"compute.instances.{verb}" for verb in ("create", "get", "list", "delete", "getGuestAttributes")),
        *(f"compute.instances.{verb}" for verb in ("setMetadata", "setLabels", "setTags", "setServiceAccount")),
        *("compute.disks.create", "compute.subnetworks.use", "compute.zoneOperations.get"),
    ),
)
_TUNNEL = _of("roles/iap.tunnelResourceAccessor", "iap.tunnelInstances", "accessViaIAP")
_ACCOUNT_ACCESS = _of("roles/iam.serviceAccountAdmin", "iam.serviceAccounts", *_ACCESS)
_NETWORKS = RolePermissions(
    "roles/compute.networkAdmin",
    (
        *(f"compute.networks.{verb}" for verb in ("create", "get", "delete", "updatePolicy")),
        *(f"compute.subnetworks.{verb}" for verb in ("create", "get", "delete", "use")),
        *(f"compute.routers.{verb}" for verb in _OWN),
    ),
)
_IN_GATEWAY = RolePermissions(
    "roles/compute.networkAdmin",
    ("compute.networks.get", "compute.networks.updatePolicy", "compute.subnetworks.use"),
)
"""Machines and firewall rules in the network of a gateway."""
_FIREWALLS = _of("roles/compute.securityAdmin", "compute.firewalls", "create", "get", "delete")


def permissions_of_gateway(settings: GatewayStack) -> Sequence[RolePermissions]:
    """Return the permissions for a gateway's service, network and alert. Each backend needs those of its own stack."""
    return (*COMMON, _SERVICES, _NETWORKS, _LOGS, *([_ALERTS] if settings.alerts.enabled else []))


def permissions_of(settings: Settings | None) -> Sequence[RolePermissions]:
    """Return the permissions that the caller needs for this stack; without settings, for any stack."""
    if settings is None:
        return COMMON
    needed = list(COMMON)
    if settings.secrets or settings.docker_hub is not None or settings.archives_programs:
        needed.append(_SECRETS)
    elif any(settings.has_secret(kind.key) for kind in SECRETS):
        needed.append(_REFERENCES)
    needed += _of_watching(settings)
    if settings.uses_bucket:
        needed.append(_STAGED if settings.bucket.existing else _BUCKETS)
    if settings.tpu is not None and settings.tpu.tunnel_members:
        needed.append(_ACCOUNT_ACCESS)
    if settings.tpu is not None:
        needed += [_NODES if settings.tpu.api == "cloud-tpu" else _INSTANCES, _TUNNEL]
        needed += (
            [] if settings.tpu.existing_network else [_IN_GATEWAY if settings.tpu.gateway else _NETWORKS, _FIREWALLS]
        )
    elif settings.cloud_run is not None:
        needed += _of_service(settings.cloud_run)
    if settings.tpu is not None or settings.cloud_run is not None:
        needed.append(_LOGS)
    return needed


def _of_watching(settings: Settings) -> Iterator[RolePermissions]:
    """Yield the permissions for the limit of the cost, and for alerts."""
    if settings.max_usd is not None and settings.cloud_run is not None:
        yield _USE
    if settings.alerts.enabled:
        yield from (_ALERTS, _LOG_ALERTS)


def _of_service(run: CloudRunSettings) -> Iterator[RolePermissions]:
    """Yield the permissions for the service and its traffic."""
    yield _SERVICES
    if run.direct_vpc:
        yield from (_NETWORKS, _FIREWALLS)
    if run.rollout is not None:
        yield _ROLL_OUTS
