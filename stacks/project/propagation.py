"""Wait until changes at Google take effect: APIs enabled, accounts made and roles granted a moment ago.

The provider `gcp` retries none of them (google/transport/error_retry_predicates.go of hashicorp/terraform-provider-google, 2026-11: 429, 500,
502, 503 and a few texts; its guide "Newly activated service errors" advises a pause). So hooks of the Pulumi engine do it: a resource that
could not be created is created again. What exists already is named with the command that helps. Grants of this run are noted: what reads by them
tries again itself (`stacks.project.late_grants`, the agent of a TPU machine).
"""

import asyncio
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

import pulumi

from cloud.google_calls import GoogleCallError
from components import gcp
from stacks.planned import doctor_hint
from stacks.project.deleted_members import MOST_TRIES, deleted_member, removal_command, remove_grants

LIMIT_S: Final = 300.0
"""How long one resource may wait. Google's error text says "a few minutes" for an API, and 60 s is usual for an account."""
GRANT_S: Final = 420.0
"""How long a grant may take (cloud.google.com/iam/docs/access-change-propagation, 2026-11: "Typically 2 minutes, potentially 7 minutes")."""
SPEED_VARIABLE: Final = "CLOUD_CLOCK_SPEED"
"""How many seconds pass at the cloud in one second here: 1 unless a simulation sets more. No other variable of a simulation is known here."""
ACCOUNT_S: Final = 120.0
"""How long one resource may wait if Google does not say whether an account or a custom role is new or missing, or a permission on it: twice the
usual minute."""

_FIRST_PAUSE_S: Final = 5.0
_LONGEST_PAUSE_S: Final = 20.0
_DISABLED: Final = re.compile(r"(?P<what>[^:]+?) has not been used in project \S+ before or it is disabled")
_REFUSED: Final = re.compile(r"\b403\b|PERMISSION_DENIED|ermission '[^']*' denied")
_NO_ACCOUNT: Final = re.compile(
    r"(?P<what>Service account \S+) does not exist|denied on (?P<which>service account \S+) \(or it may not exist\)",
    re.IGNORECASE,
)
_NO_ROLE: Final = re.compile(
    r"(?P<what>Role \((?:projects|organizations)/\S+\)) does not exist in the resource's hierarchy"
)
"""Also of a custom role that was created a moment ago."""
_EXISTS: Final = re.compile(r"Error 409\b|alreadyExists|already exists|has a NAT '[^']*' already", re.IGNORECASE)
_PERMISSION: Final = re.compile(r"permission '(?P<permission>[^']*)' denied", re.IGNORECASE)
_NO_UPSTREAM: Final = re.compile(r"(?P<what>service-\d+@gcp-sa-artifactregistry\.iam\.gserviceaccount\.com)")
"""Artifact Registry's service agent does not exist yet, or may not read the token of Docker Hub's account yet."""
_UPSTREAM: Final = re.compile(r"[Uu]pstream|gcp-sa-artifactregistry|Secret version|Secret \[?projects/")
_NO_IMAGE: Final = re.compile(r"Image '[^']*-docker\.pkg\.dev/[^']*' not found")
_GRANT_TYPE: Final = re.compile(r"gcp:(?!cloudrunv2)\w+/\w*(?i:iammember):\w+")
"""Grants, but for those on a service: nothing of a stack calls it."""


class ProjectNotReadyError(ValueError):
    """The project cannot be deployed to yet. The message is one sentence with the command that fixes it."""


def require_resource_manager(project: str, provider: gcp.Provider) -> None:
    """Raise ProjectNotReadyError if Cloud Resource Manager is off, or refuses: the provider reads the project through it before it enables anything."""
    try:
        gcp.get_project(project, provider)
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
    """Convert seconds at the cloud to seconds on this machine: fewer if its clock is faster. Raises ProjectNotReadyError."""
    text = os.environ.get(SPEED_VARIABLE) or "1"
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not speed > 0:
        raise ProjectNotReadyError(
            f"{SPEED_VARIABLE} is {text!r}; it must be a number above 0, and is left out for a real project."
        )
    return seconds / speed


def awaited(message: str) -> str | None:
    """Return what an error waits for, such as `Compute Engine API`; None if waiting cannot help."""
    found = next(
        filter(None, (text.search(message) for text in (_DISABLED, _NO_ACCOUNT, _NO_UPSTREAM, _NO_ROLE))), None
    )
    if found is None:
        return None
    groups = found.groupdict()
    return str(groups.get("what") or groups.get("which")).strip()


def exists_hint(message: str, stack: str) -> str | None:
    """Return the sentence that names the way out if an error says that a resource exists already; None for other errors."""
    if _EXISTS.search(message) is None:
        return None
    return (
        "Something that this stack makes exists already. If an earlier run was interrupted, or the state was lost, run "
        f"`python -m scripts.recover --stack {stack}`: it takes over what carries the labels of this stack, and names what does not."
    )


def patience_s(message: str) -> float:
    """Return how long to wait for what an error waits for: less if a permission may be missing, which waiting does not fix."""
    if _NO_UPSTREAM.search(message):
        return GRANT_S
    return ACCOUNT_S if _lacked(message) or _NO_ROLE.search(message) else LIMIT_S


def _lacked(message: str) -> str | None:
    """Return the permission that the caller may lack; None if an error does not say so, or says it of Google's own account."""
    found = None if _NO_UPSTREAM.search(message) else _PERMISSION.search(message)
    return None if found is None else found["permission"]


def image_advice(name: str, message: str) -> str | None:
    """Return which setting to look at after an error of an image or its repository; None for other errors.

    Args:
        name: the resource that failed.
        message: the error.
    """
    if name.startswith(("image", "docker-hub-token")) and _UPSTREAM.search(message):
        return (
            "Artifact Registry cannot use the account of gemma-serving:dockerHub: username names it, and tokenSecret names a version of a "
            "secret that holds its access token, and that is enabled (`gcloud secrets versions describe`)."
        )
    if _NO_IMAGE.search(message):
        return (
            "Cloud Run says this of an image that does not exist (see gemma-serving:image) and when Docker Hub refuses Artifact Registry: "
            "beyond its limit for pulls without an account, set gemma-serving:dockerHub."
        )
    return None


@dataclass(slots=True)
class _Waits:
    """When each resource failed for the first time, and what has been said already."""

    project: str
    since_s: dict[str, float] = field(default_factory=dict[str, float])
    said: set[str] = field(default_factory=set[str])

    async def again(self, args: pulumi.ErrorHookArgs) -> bool:
        """Pause and return True if the failed operation should be tried again."""
        message = args.errors[0] if args.errors else ""
        inputs = args.new_inputs or {}
        deleted = deleted_member(message, args.type, inputs)
        if deleted is not None:
            return len(args.errors) <= MOST_TRIES and await self._made_room(args.type, inputs, deleted)
        what = awaited(message)
        if what is None:
            self._hint(args)
            return False
        waited_s = monotonic() - self.since_s.setdefault(args.urn, monotonic())
        limit_s = patience_s(message)
        denied = _lacked(message)
        cause = f"is new, or you lack {denied} on it" if denied else "is new, or missing"
        if waited_s > real_s(limit_s):
            self._hint(args)
            pulumi.log.warn(
                f"Waited {limit_s / 60:.0f} min for Google: {what} {cause}. {doctor_hint(pulumi.get_stack())}"
            )
            return False
        if what not in self.said:
            self.said.add(what)
            pulumi.log.info(f"Waiting for Google, up to {limit_s / 60:.0f} min: {what} {cause}.")
        await asyncio.sleep(real_s(min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * len(args.errors))))
        return True

    async def _made_room(self, type_: str, inputs: Mapping[str, object], deleted: str) -> bool:
        """Remove the grants of a deleted account that stand in a grant's way, and return whether the grant may be tried again."""
        try:
            name = await remove_grants(deleted, type_, inputs, project=self.project)
        except GoogleCallError as error:
            pulumi.log.warn(
                f"Google refuses the grant while the policy names the deleted account of that e-mail, and it could not be removed: {error}. "
                f"Run `{removal_command(deleted, type_, inputs, project=self.project)}`, then "
                f"`pulumi up --stack {pulumi.get_stack()}` again."
            )
            return False
        if name is not None:
            pulumi.log.info(f"Removed the grants of the deleted account {deleted.partition(':')[2]} from {name}.")
        return True

    def _hint(self, args: pulumi.ErrorHookArgs) -> None:
        """Name the command for resources that exist already, or the setting of an image, once a run."""
        message = args.errors[0] if args.errors else ""
        for hint in (exists_hint(message, pulumi.get_stack()), image_advice(args.name, message)):
            if hint is not None and hint not in self.said:
                self.said.add(hint)
                pulumi.log.warn(hint)


@dataclass(slots=True)
class NewGrants:
    """The grants that this run has made: what reads by them may be refused for GRANT_S after the newest."""

    newest_s: float | None = None
    """When it was made, on the clock of `monotonic`; None if this run made none."""

    async def note(self, _args: pulumi.ResourceHookArgs) -> None:
        """Note that a grant was made."""
        await asyncio.sleep(0)
        self.newest_s = monotonic()


def wait_for_google(*, project: str) -> NewGrants:
    """Let every resource of `gcp` that is declared from now on wait as this module says. Return the grants that are made.

    Args:
        project: whose resources they are.
    """
    real_s(0)  # refuses a wrong speed before any resource is declared
    grants = NewGrants()
    again = pulumi.ErrorHook("wait-for-google", _Waits(project).again)
    noted = pulumi.ResourceHook("note-grant", grants.note)
    retried = pulumi.ResourceHookBinding(on_error=[again])
    granted = pulumi.ResourceHookBinding(on_error=[again], after_create=[noted])

    def transform(args: pulumi.ResourceTransformationArgs) -> pulumi.ResourceTransformationResult | None:
        if not args.type_.startswith("gcp:"):
            return None
        hooks = granted if _GRANT_TYPE.fullmatch(args.type_) else retried
        opts = pulumi.ResourceOptions.merge(args.opts, pulumi.ResourceOptions(hooks=hooks))
        return pulumi.ResourceTransformationResult(props=args.props, opts=opts)

    pulumi.runtime.register_stack_transformation(transform)
    return grants
