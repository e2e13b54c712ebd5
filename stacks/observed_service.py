"""Read the Cloud Run service that exists, so that the program declares the traffic that it has (decision 26). One call, only where a roll-out is set."""

from collections.abc import Mapping
from typing import Final

import pulumi

from contracts.service_traffic import LONGEST_TAG_AND_SERVICE, NEXT_TAG, Service, serving_shares
from stacks.google_calls import GoogleCallError, call_now
from stacks.planned import doctor_hint
from stacks.run_failures import SERVICE_TYPE

LIMIT_S: Final = 20.0
_NOT_FOUND: Final = 404


class ServiceNotReadError(ValueError):
    """The traffic of a service could not be read, or its roll-out cannot be declared. The message is one sentence with the way out."""


def observed_service(*, project: str, region: str, name: str, stack: str) -> Service | None:
    """Return the service as Google has it; None if there is none, or if the Cloud Run API is off.

    Raises:
        ServiceNotReadError: also after LIMIT_S. Without the answer an `up` could move requests.
    """
    if len(name) + len(NEXT_TAG) > LONGEST_TAG_AND_SERVICE:
        raise ServiceNotReadError(
            f"cloudRun.rollout needs the tag {NEXT_TAG}, and Cloud Run allows {LONGEST_TAG_AND_SERVICE} characters for a tag and the name of its "
            f"service together; {name} has {len(name)}. Choose a shorter name for the stack."
        )
    path = f"v2/projects/{project}/locations/{region}/services/{name}"
    try:
        return call_now("run", path, project=project, limit_s=LIMIT_S)
    except GoogleCallError as error:
        if error.status == _NOT_FOUND or error.reason == "SERVICE_DISABLED":
            return None
        raise ServiceNotReadError(
            f"The traffic of service {name} could not be read ({str(error).rstrip('.')}), and with cloudRun.rollout nothing is deployed without it. "
            f"Try again. {doctor_hint(stack)}"
        ) from None


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


def next_step(outputs: Mapping[str, object], stack: str) -> str:
    """Return the sentence for a service of the engine's; empty if its latest revision has all requests."""
    ready = str(outputs.get("latestReadyRevision") or "").rpartition("/")[2]
    shares = serving_shares(outputs)
    if not ready or not shares or {*shares} == {ready}:
        return ""
    return (
        f"Revision {ready} has no requests yet, or not all of them: run `python -m scripts.rollout --stack {stack}`, "
        "which checks it and gives it the requests in steps."
    )
