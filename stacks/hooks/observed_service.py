"""Read the traffic of the existing service, which the program declares again (decision 26)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast
from urllib.parse import quote

import pulumi

from cloud.google_calls import GoogleCallError, call_now
from contracts.errors import CommandRefusedError
from contracts.resource_types import SERVICE_TYPE
from contracts.service_traffic import (
    LONGEST_TAG_AND_SERVICE,
    NEXT_TAG,
    Service,
    is_ready,
    known_shares,
    rollout_of,
    serving_shares,
    short_name,
)
from stacks.bound_hooks import bind_types
from stacks.planned import doctor_hint

LIMIT_S: Final = 20.0
_NOT_FOUND: Final = 404


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicePlace:
    """Location of a stack's service."""

    project: str
    region: str
    name: str
    stack: str

    @property
    def path(self) -> str:
        """Path of the service in run.v2."""
        return f"v2/projects/{self.project}/locations/{self.region}/services/{self.name}"


def observed_service(place: ServicePlace) -> Service | None:
    """Return the service as Google has it, or None if it does not exist.

    Also returns None if the Cloud Run API is off. Then an existing service must not be changed.
    Raises CommandRefusedError, even after LIMIT_S: without the current traffic an `up` could move it.
    """
    name = place.name
    if len(name) + len(NEXT_TAG) > LONGEST_TAG_AND_SERVICE:
        raise CommandRefusedError(
            f"cloudRun.rollout needs the tag {NEXT_TAG}, but Cloud Run allows {LONGEST_TAG_AND_SERVICE} characters for tag and service "
            f"name together. {name} has {len(name)}. Choose a shorter stack name."
        )
    try:
        service = call_now("run", place.path, project=place.project, limit_s=LIMIT_S)
    except GoogleCallError as error:
        if error.status == _NOT_FOUND:
            return None
        if error.reason == "SERVICE_DISABLED":
            _allow_only_a_creation(place)
            return None
        raise CommandRefusedError(
            f"Cannot read the traffic of service {name}: {str(error).rstrip('.')}. Nothing was deployed, because cloudRun.rollout must keep the "
            f"traffic. Try again. {doctor_hint(place.stack)}"
        ) from None
    if known_shares(service) is None:
        raise CommandRefusedError(
            f"Google did not return the traffic split of service {name}: it is changing, or the response is incomplete. Nothing was deployed, because "
            "cloudRun.rollout must keep the traffic. Try again in a minute."
        )
    return service


def _allow_only_a_creation(place: ServicePlace) -> None:
    """Register a hook that rejects a change, which moves the unknown traffic."""

    def refuse(_args: pulumi.ResourceHookArgs) -> None:
        if not pulumi.runtime.is_dry_run():
            raise CommandRefusedError(
                f"Service {place.name} was not changed, because its traffic is unknown (the Cloud Run API was off when this run started). "
                f"Wait some minutes, then run `gemma up {place.stack}` again."
            )

    hook = pulumi.ResourceHook("traffic-unknown", refuse)

    bind_types({SERVICE_TYPE}, pulumi.ResourceHookBinding(before_update=[hook]))


def require_revisions(place: ServicePlace, service: Service | None, wanted: Mapping[str, int]) -> None:
    """Raise CommandRefusedError for traffic to revisions that cannot serve."""
    unknown = {*wanted} - {*serving_shares(service or {})}
    if not unknown:
        return
    able = sorted(short_name(each.get("name")) for each in _revisions(place) if is_ready(each)) if service else []
    missing = sorted(unknown - {*able})
    if missing:
        raise CommandRefusedError(
            f"cloudRun.rollout.traffic: revision {missing[0]} of {place.name} does not exist or never became ready. Ready revisions: "
            f"{', '.join(able) or 'none'}. Use one of them or remove the setting."
        )


def _revisions(place: ServicePlace) -> Iterator[Mapping[str, object]]:
    token = ""
    while True:
        query = f"?pageToken={quote(token, safe='')}" if token else ""
        try:
            page = call_now("run", f"{place.path}/revisions{query}", project=place.project, limit_s=LIMIT_S)
        except GoogleCallError as error:
            raise CommandRefusedError(
                f"Cannot list the revisions of {place.name}, which cloudRun.rollout.traffic refers to: {str(error).rstrip('.')}. "
                f"Try again. {doctor_hint(place.stack)}"
            ) from None
        yield from cast("Sequence[Mapping[str, object]]", page.get("revisions") or ())
        token = str(page.get("nextPageToken") or "")
        if not token:
            return


def report_next_step(stack: str) -> None:
    """Register a hook that prints the next command if a revision has no traffic yet."""

    def report(args: pulumi.ResourceHookArgs) -> None:
        try:
            _, sentence = rollout_of(args.new_outputs or {}, stack)
        except Exception as error:  # noqa: BLE001 - an error of the hook must not fail an update that succeeded
            sentence = f"Could not check which revision gets the traffic ({type(error).__name__})."
        if sentence:
            pulumi.log.info(sentence)

    hook = pulumi.ResourceHook("roll-out-next", report)

    bind_types({SERVICE_TYPE}, pulumi.ResourceHookBinding(after_update=[hook]))
