# pyright: basic, reportMissingImports=false
# pulumi_policy is installed only in this folder's own environment (PulumiPolicy.yaml), so pyright cannot know its types.
"""Policy pack: connects the rules to the policy SDK. The engine starts this file."""

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any

from pulumi_policy import (
    EnforcementLevel,
    PolicyConfigSchema,
    PolicyPack,
    ReportViolation,
    ResourceValidationArgs,
    ResourceValidationPolicy,
    StackValidationArgs,
    StackValidationPolicy,
)
from pulumi_policy.proxy import UnknownValueError

from gemma_serving_policies import RULES
from gemma_serving_policies.rule import NotKnown, Rule
from gemma_serving_policies.values import UNKNOWN, Resource, Value

NAMED = 3
"""Maximum number of unknown inputs that a message names."""
REDACTED = "[secret]"
"""Value that `pulumi policy analyze --file` passes for a secret that it cannot decrypt."""


class NotKnownYetError(UnknownValueError):
    """Inputs that the preview does not know. The SDK reports this error as advisory, whatever the rule's level."""

    def __init__(self, places: Sequence[str]) -> None:
        Exception.__init__(self)
        more = len(places) - NAMED
        some = ", ".join(places[:NAMED]) + (f" and {more} more" if more > 0 else "")
        self.message = (
            f"{some} cannot be known before `pulumi up`, which checks each value before it creates the resource"
        )


@StackValidationPolicy.register  # the SDK then also calls it at the end, and it stays one policy
class CheckedRule(ResourceValidationPolicy):
    """One rule. The SDK passes each resource before it is created, then all together at the end.

    At the end, one advisory line lists the inputs that the preview did not know: a line per resource would hide violations.
    """

    def __init__(self, rule: Rule) -> None:
        settings = {name: {**schema, "default": _json(schema["default"])} for name, schema in rule.settings.items()}
        super().__init__(rule.name, rule.description, config_schema=PolicyConfigSchema(settings))
        self._rule = rule
        self._unknown: list[str] = []
        self._lock = Lock()

    def validate(self, args: ResourceValidationArgs | StackValidationArgs, report_violation: ReportViolation) -> None:
        """Report the violations of a resource, or at the end the inputs that were not known."""
        if isinstance(args, StackValidationArgs):
            self._report_unknown()
            return
        resource = Resource(args.resource_type, args.name, {key: _value_at(args.props, key) for key in args.props})
        for answer in self._rule.answers(resource, args.get_config()):
            if isinstance(answer, NotKnown):
                with self._lock:
                    self._unknown.append(answer.place)
            else:
                report_violation(answer.message)

    def _report_unknown(self) -> None:
        with self._lock:
            places, self._unknown = sorted(self._unknown), []
        if places:
            raise NotKnownYetError(places)


def _value_at(container: Any, key: str | int) -> Value:  # noqa: ANN401 - a mapping or a sequence of the SDK
    """Return the plain value at a key, with UNKNOWN for each part that the preview does not know."""
    try:
        value = container[key]
    except UnknownValueError:
        return UNKNOWN
    if value == REDACTED:
        return UNKNOWN
    if isinstance(value, Mapping):
        return {name: _value_at(value, name) for name in value}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_value_at(value, index) for index in range(len(value))]
    return value if value is None or isinstance(value, (bool, int, float, str)) else None


def _json(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


PolicyPack(
    name="gemma-serving-policies",
    enforcement_level=EnforcementLevel.MANDATORY,
    policies=[CheckedRule(rule) for rule in RULES],
)
