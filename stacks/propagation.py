"""Wait until changes at Google take effect: APIs enabled, accounts made and roles granted a moment ago.

The provider `gcp` retries none of them (google/transport/error_retry_predicates.go of hashicorp/terraform-provider-google, 2026-11: 429, 500,
502, 503 and a few texts; its guide "Newly activated service errors" advises a pause). So hooks of the Pulumi engine do it: a resource that
could not be created is created again, and a grant counts as made when it works.
"""

import asyncio
import os
import re
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

import pulumi
import pulumi_gcp as gcp

from stacks.planned import doctor_hint

LIMIT_S: Final = 300.0
"""How long one resource may wait. Google's error text says "a few minutes" for an API, and 60 s is usual for an account."""
GRANT_S: Final = 120.0
"""How long a grant usually takes (cloud.google.com/iam/docs/access-change-propagation, 2026-11: "Typically 2 minutes")."""
SPEED_VARIABLE: Final = "LOCALCLOUD_SPEED"
"""Simulated seconds in one real second; the local cloud sets it."""

_FIRST_PAUSE_S: Final = 5.0
_LONGEST_PAUSE_S: Final = 20.0
_DISABLED: Final = re.compile(r"(?P<what>[^:]+?) has not been used in project \S+ before or it is disabled")
_REFUSED: Final = re.compile(r"\b403\b|PERMISSION_DENIED|ermission '[^']*' denied")
_NO_ACCOUNT: Final = re.compile(
    r"(?P<what>Service account \S+) does not exist|denied on (?P<which>service account \S+) \(or it may not exist\)",
    re.IGNORECASE,
)
_GRANT_TYPE: Final = re.compile(r"gcp:\w+/\w*(?i:iammember):\w+")


class ProjectNotReadyError(ValueError):
    """The project cannot be deployed to yet. The message is one sentence with the command that mends it."""


def require_resource_manager(project: str, provider: gcp.Provider) -> None:
    """Raise ProjectNotReadyError if Cloud Resource Manager is off, or refuses: the provider reads the project through it before it enables anything."""
    try:
        gcp.organizations.get_project(project_id=project, opts=pulumi.InvokeOptions(provider=provider))
    except Exception as error:
        # The SDK raises plain exceptions for invokes.
        hint = doctor_hint(pulumi.get_stack())
        if "Cloud Resource Manager API has not been used" not in str(error):
            if _REFUSED.search(str(error)) is None:
                raise
            raise ProjectNotReadyError(
                f"Google refused to read project {project}: {str(error).strip().rstrip('.')}. {hint}"
            ) from None
        raise ProjectNotReadyError(
            f"The Cloud Resource Manager API is off in project {project}, or was enabled a moment ago, and nothing can be deployed without it. Run "
            f"`gcloud services enable serviceusage.googleapis.com cloudresourcemanager.googleapis.com --project {project}`, "
            f"wait two minutes, then try again. {hint}"
        ) from None


def real_s(seconds: float) -> float:
    """Convert seconds at Google to seconds on this machine: fewer if the cloud is simulated and faster."""
    return seconds / float(os.environ.get(SPEED_VARIABLE) or 1.0)


def awaited(message: str) -> str | None:
    """Return what an error waits for, such as `Compute Engine API`; None if waiting cannot help."""
    found = _DISABLED.search(message) or _NO_ACCOUNT.search(message)
    if found is None:
        return None
    groups = found.groupdict()
    return str(groups.get("what") or groups.get("which")).strip()


@dataclass(slots=True)
class _Waits:
    """When each resource failed for the first time, and what has been said already."""

    since_s: dict[str, float] = field(default_factory=dict[str, float])
    said: set[str] = field(default_factory=set[str])

    async def again(self, args: pulumi.ErrorHookArgs) -> bool:
        """Pause and return True if the failed operation should be tried again."""
        what = awaited(args.errors[0]) if args.errors else None
        if what is None:
            return False
        waited_s = monotonic() - self.since_s.setdefault(args.urn, monotonic())
        if waited_s > real_s(LIMIT_S):
            return False
        if what not in self.said:
            self.said.add(what)
            pulumi.log.info(f"Waiting for Google, up to {LIMIT_S / 60:.0f} min: {what} is new, or missing.")
        await asyncio.sleep(real_s(min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * len(args.errors))))
        return True


async def _until_granted(_args: pulumi.ResourceHookArgs) -> None:
    await asyncio.sleep(real_s(GRANT_S))


def wait_for_google(*, grants: bool) -> None:
    """Let every resource of `gcp` that is declared from now on wait as this module says.

    Args:
        grants: whether a grant counts as made only when it works; False where the reader of what is granted tries again itself.
    """
    again = pulumi.ErrorHook("wait-for-google", _Waits().again)
    granted = pulumi.ResourceHook("wait-for-grant", _until_granted)
    retried = pulumi.ResourceHookBinding(on_error=[again])
    settled = pulumi.ResourceHookBinding(on_error=[again], after_create=[granted])

    def transform(args: pulumi.ResourceTransformationArgs) -> pulumi.ResourceTransformationResult | None:
        if not args.type_.startswith("gcp:"):
            return None
        hooks = settled if grants and _GRANT_TYPE.fullmatch(args.type_) else retried
        opts = pulumi.ResourceOptions.merge(args.opts, pulumi.ResourceOptions(hooks=hooks))
        return pulumi.ResourceTransformationResult(props=args.props, opts=opts)

    pulumi.runtime.register_stack_transformation(transform)
