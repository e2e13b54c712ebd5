"""Classification of Google's refusals: about the project, with the command that fixes it, or about one zone, with the reason.

The texts and reasons are Google's: `reason` of google.rpc.ErrorInfo (google/api/error_reason.proto), and messages in public logs.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gcp_tpu_provider.errors import GoogleError, ProjectError

SERVICE_DISABLED = "SERVICE_DISABLED"
ACT_AS = "iam.serviceAccounts.actAs"
_PERMISSION = re.compile(r"Permission '([\w.]+)' denied|Required '([\w.]+)' permission for")
RATE_LIMITED = "rateLimitExceeded"
"""Compute Engine's reason for a temporary 403 (Compute Engine, "Rate quotas")."""
_ACCOUNT = re.compile(r"[\w.-]+@[\w.-]+\.iam\.gserviceaccount\.com")
_BIND = "gcloud projects add-iam-policy-binding {project} --member=user:YOUR_EMAIL --role={role}"

_CONSTRAINT = re.compile(r"Constraint constraints/([\w.]+) violated")
_POLICIES: Mapping[str, tuple[str, str]] = {
    "compute.requireOsLogin": (
        "forbids SSH keys in metadata. Set the metadata key `enable-oslogin` to TRUE (in this project: `tpu.ssh: os-login`)",
        "disable-enforce",
    ),
    "compute.vmExternalIpAccess": ("forbids external addresses. Set `enableExternalIps` to false", "delete"),
}
"""Constraint -> its effect with the setting that avoids it, and the gcloud verb that lifts it."""
QUOTA = "quota"
RUNTIME = "runtime version"
STOCK = "stock"
NOT_OFFERED = "not offered here"
NOT_TRIED = "not tried"
UNKNOWN = "unknown"
UNKNOWN_WORDS = "unknown words"
UNREAD_QUOTA = "Its quota is unknown: "
"""Start of the sentence about a quota that could not be read."""
_PATTERNS: Mapping[str, re.Pattern[str]] = {
    NOT_TRIED: re.compile(r"expired before this zone was requested"),
    UNKNOWN: re.compile(r"^The instance is gone:"),
    QUOTA: re.compile(
        r"quota (limit )?'[^']+' (has been exceeded|exhausted|exceeded)|quota allows"
        r"|quota violated:|quota exceeded for total allowable|do not have quota for",
        re.IGNORECASE,
    ),
    NOT_OFFERED: re.compile(
        r"zonal accelerator configurations|requested zone \S+ is not supported|provisioning model is not supported"
        r"|Permission denied on 'locations/|not allowed to use the machine type|Machine type with name \S+ does not exist in zone"
    ),
    RUNTIME: re.compile(r"runtime.?version", re.IGNORECASE),
    STOCK: re.compile(
        r"no more capacity|does not have enough resources available|ZONE_RESOURCE_POOL_EXHAUSTED|insufficient (reserved )?capacity",
        re.IGNORECASE,
    ),
}
"""Patterns of Google's messages, from public logs of 2021 to 2026.

- quota: "Quota limit 'TPUV6EPreemptiblePerProjectPerZoneForTPUAPI' has been exceeded. Limit: 0 in zone Z." (marin-community/marin#3200);
  in a failed queued resource also "Quota 'TPUV4sPreemptiblePodPerProjectPerRegionForTPUAPI' exhausted. Limit 20800 in region R"
  (marin-community/marin#87); "Quota 'TPUS_PER_TPU_FAMILY' exceeded.  Limit: 0.0 in region R." (Compute Engine); "Quota violated:", "Quota
  exceeded for total allowable" and "You do not have quota for using GPUs" (Cloud Run); and the provider's sentence about a quota that it read.
  "Quota exceeded for quota metric 'Create requests' and limit ..." is about calls per minute, not about chips;
- not offered: "The requested accelerator configuration ... could not be found in the zonal accelerator configurations for "Z".",
  "The requested zone "Z" is not supported.", "FLEX_START provisioning model is not supported for accelerator type ...",
  "Permission denied on 'locations/Z' (or it may not exist).";
- runtime version: the words are assumed; each names the field or the version;
- stock: "... no more capacity in the zone "Z"; you can try in another zone where Cloud TPU Nodes are offered" (skypilot-org/skypilot),
  "Insufficient reserved capacity." (skypilot-org/skypilot#4579), "does not have enough resources available to fulfill the request" (Compute Engine);
- not tried, unknown: the provider's sentences.
"""
_EXPIRED = re.compile(r"could not be fulfilled (by|before) its valid-until time")
"""A request whose time ended at Google. No public log has the words; Discovery says that such a request fails (QueueingPolicy.validUntilDuration)."""
_REGION = re.compile(r"quota .* in region (?P<region>[a-z0-9-]+)", re.IGNORECASE | re.DOTALL)
ADVICE: Mapping[str, str] = {
    QUOTA: "request an increase of the quota above: https://console.cloud.google.com/iam-admin/quotas?project={project}",
    NOT_OFFERED: "remove the zone from `zones`, or choose another accelerator or provisioning model",
    RUNTIME: "remove or change `runtimeVersion`: `gcloud compute tpus tpu-vm versions list --zone=ZONE` lists the versions of a zone",
    STOCK: "try again later or add zones",
    UNKNOWN: "compare the quota with the request before you wait again: https://console.cloud.google.com/iam-admin/quotas?project={project}",
    UNKNOWN_WORDS: "this provider does not know these words of Google, so they alone say what to do",
    NOT_TRIED: "raise `waitTotalS` or the wait of the form, or move these zones up in `zones`",
}


@dataclass(frozen=True, slots=True)
class QuotaEvidence:
    """What was read about the quota of a request that waited without an answer."""

    enough: bool | None
    """Whether the quota allows the request beside all others; None if unknown."""
    evidence: str
    """What was read, as a sentence."""


def kind(answer: str, quota: QuotaEvidence | None = None) -> str:
    """Return why a zone did not grant capacity: QUOTA, STOCK, NOT_OFFERED, RUNTIME, NOT_TRIED, UNKNOWN_WORDS or UNKNOWN.

    Google's words decide. A request that waited, or expired, has none, so the quota decides: a wait is for stock only if the quota is enough.
    """
    found = next((name for name, pattern in _PATTERNS.items() if pattern.search(answer)), "")
    if found:
        return found
    if quota is None and not has_expired(answer):
        return UNKNOWN_WORDS
    if quota is None or quota.enough is None:
        return UNKNOWN
    return STOCK if quota.enough else QUOTA


def has_expired(answer: str) -> bool:
    """Return whether Google's words say only that the time of a request ended before capacity was granted."""
    return _EXPIRED.search(answer) is not None


def region_without_quota(answer: str) -> str | None:
    """Return the region whose quota does not suffice according to Google's words; None if they name none."""
    found = _REGION.search(answer) if kind(answer) == QUOTA else None
    return None if found is None else found["region"]


def is_temporary(error: GoogleError) -> bool:
    """Return whether a refusal may be temporary because the API was just enabled or the service account was just created."""
    return error.reason in {SERVICE_DISABLED, RATE_LIMITED} or f"'{ACT_AS}' denied" in error.message


def about_the_project(error: GoogleError, project: str, metadata: Mapping[str, str]) -> GoogleError:
    """Return a ProjectError for a refusal that applies to every zone, or the error itself."""
    sentence = _policy(error, project)
    if not sentence and error.status == 403:  # noqa: PLR2004 - HTTP 403
        sentence = _sentence(error, project, metadata)
    if not sentence:
        return error
    return ProjectError(error.status, error.code, error.message, error.reason, error.retry_after_s, sentence=sentence)


def _policy(error: GoogleError, project: str) -> str:
    """Return one sentence if an organization policy blocks a requested property of the TPU VMs, otherwise an empty string."""
    found = _CONSTRAINT.search(error.message)
    if found is None or found[1] not in _POLICIES:
        return ""
    command = f"gcloud resource-manager org-policies {_POLICIES[found[1]][1]} {found[1]} --project={project}"
    return (
        f"Organization policy {found[1]} of project {project} {_POLICIES[found[1]][0]}, "
        f"or have an organization policy administrator run `{command}`"
    )


def _sentence(error: GoogleError, project: str, metadata: Mapping[str, str]) -> str:
    """Return the cause and the command that fixes the refusal, or an empty string if it may be about a zone."""
    denied = _PERMISSION.search(error.message)
    permission = metadata.get("permission") or (denied[1] or denied[2] if denied else "")
    consumer = metadata.get("consumer", "").removeprefix("projects/") or project
    if error.reason == SERVICE_DISABLED:
        service = metadata.get("service") or "tpu.googleapis.com"
        command = f"gcloud services enable {service} --project={consumer}"
        return f"The API {service} is disabled in project {consumer}. Run `{command}` and retry after two minutes"
    if error.reason == "USER_PROJECT_DENIED":
        bind = _BIND.format(project=project, role="roles/serviceusage.serviceUsageConsumer")
        return f"You do not have permission to use {project} as the quota project. Run `{bind}`"
    if error.reason == "BILLING_DISABLED":
        command = f"gcloud billing projects link {consumer} --billing-account=ACCOUNT_ID"
        return f"Project {consumer} has no billing account. Run `{command}`"
    if permission == ACT_AS:
        account = _ACCOUNT.search(error.message)
        name = account[0] if account else "ACCOUNT_EMAIL"
        command = f"gcloud iam service-accounts add-iam-policy-binding {name} --project={project}"
        role = "--member=user:YOUR_EMAIL --role=roles/iam.serviceAccountUser"
        return f"The caller does not have permission to act as service account {name}. Run `{command} {role}`"
    if permission:
        role = "roles/compute.instanceAdmin.v1" if permission.startswith("compute.") else "roles/tpu.admin"
        return f"The caller lacks {permission} in project {project}. Run `{_BIND.format(project=project, role=role)}`"
    return ""
