"""Read the Cloud Run service that exists, so that the program declares the traffic that it has (decision 26). One call, only where a roll-out is set."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, cast
from urllib.parse import quote

import pulumi

from cloud.google_calls import GoogleCallError, call_now
from contracts.resource_types import SERVICE_TYPE
from contracts.service_traffic import (
    LONGEST_TAG_AND_SERVICE,
    NEXT_TAG,
    Service,
    is_ready,
    known_shares,
    serving_shares,
    short_name,
)
from stacks.hooks.rollout_state import view_of
from stacks.planned import doctor_hint

LIMIT_S: Final = 20.0
_NOT_FOUND: Final = 404


class ServiceNotReadError(ValueError):
    """The traffic of a service could not be read, or its roll-out cannot be declared. The message is one sentence with the way out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicePlace:
    """Where a stack's service is."""

    project: str
    region: str
    name: str
    stack: str

    @property
    def path(self) -> str:
        """Its path in run.v2."""
        return f"v2/projects/{self.project}/locations/{self.region}/services/{self.name}"


def observed_service(place: ServicePlace) -> Service | None:
    """Return the service as Google has it; None if there is none.

    None also if the Cloud Run API is off, as in a new project: then a service may be made, and one that exists may not be changed.

    Raises:
        ServiceNotReadError: also after LIMIT_S. Without the answer an `up` could move requests.
    """
    name = place.name
    if len(name) + len(NEXT_TAG) > LONGEST_TAG_AND_SERVICE:
        raise ServiceNotReadError(
            f"cloudRun.rollout needs the tag {NEXT_TAG}, and Cloud Run allows {LONGEST_TAG_AND_SERVICE} characters for a tag and the name of its "
            f"service together; {name} has {len(name)}. Choose a shorter name for the stack."
        )
    try:
        service = call_now("run", place.path, project=place.project, limit_s=LIMIT_S)
    except GoogleCallError as error:
        if error.status == _NOT_FOUND:
            return None
        if error.reason == "SERVICE_DISABLED":
            _allow_only_a_creation(place)
            return None
        raise ServiceNotReadError(
            f"The traffic of service {name} could not be read ({str(error).rstrip('.')}), and with cloudRun.rollout nothing is deployed without it. "
            f"Try again. {doctor_hint(place.stack)}"
        ) from None
    if known_shares(service) is None:
        raise ServiceNotReadError(
            f"Google does not say who gets the requests of service {name}: it is being changed, or its answer is not whole. With cloudRun.rollout "
            "nothing is deployed without it. Try again in a minute."
        )
    return service


def _allow_only_a_creation(place: ServicePlace) -> None:
    """Register a hook that stops a change of the service: its traffic is unknown, and the change would move it."""

    def refuse(_args: pulumi.ResourceHookArgs) -> None:
        if not pulumi.runtime.is_dry_run():
            raise ServiceNotReadError(
                f"The Cloud Run API was off when this run began, so the traffic of service {place.name} is unknown, and nothing was changed. "
                f"Wait some minutes, then run `pulumi up --stack {place.stack}` again."
            )

    hook = pulumi.ResourceHook("traffic-unknown", refuse)

    def transform(args: pulumi.ResourceTransformationArgs) -> pulumi.ResourceTransformationResult | None:
        if args.type_ != SERVICE_TYPE:
            return None
        hooks = pulumi.ResourceHookBinding(before_update=[hook])
        return pulumi.ResourceTransformationResult(
            props=args.props, opts=pulumi.ResourceOptions.merge(args.opts, pulumi.ResourceOptions(hooks=hooks))
        )

    pulumi.runtime.register_stack_transformation(transform)


def require_revisions(place: ServicePlace, service: Service | None, wanted: Mapping[str, int]) -> None:
    """Refuse shares for revisions that cannot serve, before Google does in the middle of an `up`.

    Raises:
        ServiceNotReadError: with the revisions that can.
    """
    unknown = {*wanted} - {*serving_shares(service or {})}
    if not unknown:
        return
    able = sorted(short_name(each.get("name")) for each in _revisions(place) if is_ready(each)) if service else []
    missing = sorted(unknown - {*able})
    if missing:
        raise ServiceNotReadError(
            f"cloudRun.rollout.traffic names {missing[0]}, which is no revision of {place.name} that has started; those that have are "
            f"{', '.join(able) or 'none'}. Name one of them, or take the setting out."
        )


def _revisions(place: ServicePlace) -> Iterator[Mapping[str, object]]:
    token = ""
    while True:
        query = f"?pageToken={quote(token, safe='')}" if token else ""
        try:
            page = call_now("run", f"{place.path}/revisions{query}", project=place.project, limit_s=LIMIT_S)
        except GoogleCallError as error:
            raise ServiceNotReadError(
                f"The revisions of {place.name} could not be listed ({str(error).rstrip('.')}), and cloudRun.rollout.traffic names some. "
                f"Try again. {doctor_hint(place.stack)}"
            ) from None
        yield from cast("Sequence[Mapping[str, object]]", page.get("revisions") or ())
        token = str(page.get("nextPageToken") or "")
        if not token:
            return


def tell_next_step(stack: str) -> None:
    """Let an `up` that makes a revision without requests say which command gives it some."""

    def tell(args: pulumi.ResourceHookArgs) -> None:
        try:
            sentence = next_step(args.new_outputs or {}, stack)
        except Exception as error:  # noqa: BLE001 - an error of the hook would fail an update that succeeded
            sentence = f"Which revision has the requests could not be told ({type(error).__name__})."
        if sentence:
            pulumi.log.info(sentence)

    hook = pulumi.ResourceHook("roll-out-next", tell)

    def transform(args: pulumi.ResourceTransformationArgs) -> pulumi.ResourceTransformationResult | None:
        if args.type_ != SERVICE_TYPE:
            return None
        hooks = pulumi.ResourceHookBinding(after_update=[hook])
        return pulumi.ResourceTransformationResult(
            props=args.props, opts=pulumi.ResourceOptions.merge(args.opts, pulumi.ResourceOptions(hooks=hooks))
        )

    pulumi.runtime.register_stack_transformation(transform)


def next_step(outputs: Mapping[str, object], stack: str, now: datetime | None = None) -> str:
    """Return the sentence for a service of the engine's; empty if its latest revision has all requests."""
    return view_of(outputs, stack, now or datetime.now(UTC)).sentence
