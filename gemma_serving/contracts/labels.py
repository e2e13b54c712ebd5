"""Ownership markers: labels, or the description of resources without labels."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

PRODUCT: Final = "gemma-serving"
"""Value of `managed-by`, name of the Pulumi project, and namespace of its settings."""

MANAGED_BY_LABEL: Final = "managed-by"
PROJECT_LABEL: Final = f"{PRODUCT}-project"
STACK_LABEL: Final = f"{PRODUCT}-stack"
URN_LABEL: Final = f"{PRODUCT}-urn"
MAX_AGE_LABEL: Final = f"{PRODUCT}-max-age"
MAX_USD_LABEL: Final = f"{PRODUCT}-max-usd"
IDLE_AFTER_LABEL: Final = f"{PRODUCT}-idle-after"
RETAINED_LABEL: Final = f"{PRODUCT}-retained"
RETAINED: Final = "true"
"""Value of `RETAINED_LABEL` on a bucket that is kept when its stack is destroyed."""
URN_DIGITS: Final = 40
"""Hex digits of the URN's SHA-256 in `URN_LABEL`; a label's value has at most 63 characters."""
ALWAYS: Final = 'request.time < timestamp("2100-01-01T00:00:00Z")'
"""Condition that is true for every request. Cloud TPU and OS Login provide no attribute of resources to IAM, and a condition on a
missing one denies everything (cloud.google.com/iam/docs/conditions-attribute-reference, 2026-11)."""


def is_reserved(key: str) -> bool:
    """Return whether a label key is reserved for this project."""
    return key == MANAGED_BY_LABEL or key.startswith(f"{PRODUCT}-")


@dataclass(frozen=True, slots=True, kw_only=True)
class StackLimits:
    """Maximum age, cost and idle time of a stack, stored in labels, so a guard needs no state."""

    max_age_s: int | None = None
    """Seconds from the first start of a machine or the service (contracts.run_record)."""
    max_usd: int | None = None
    """US dollars at the planner's prices."""
    idle_after_s: int | None = None
    """Seconds without a request on a TPU VM, by the server's own counters."""

    @property
    def labels(self) -> Mapping[str, str]:
        """The limits that are set. Label values cannot contain units: seconds, and whole dollars."""
        given = {MAX_AGE_LABEL: self.max_age_s, MAX_USD_LABEL: self.max_usd, IDLE_AFTER_LABEL: self.idle_after_s}
        return {key: str(value) for key, value in given.items() if value is not None}

    @classmethod
    def of(cls, labels: Mapping[str, object]) -> "StackLimits":
        """Return the limits in labels. A value with other characters than digits is ignored."""

        def number(key: str) -> int | None:
            text = str(labels.get(key, ""))
            return int(text) if text.isdecimal() else None

        return cls(
            max_age_s=number(MAX_AGE_LABEL), max_usd=number(MAX_USD_LABEL), idle_after_s=number(IDLE_AFTER_LABEL)
        )


NO_LIMITS: Final = StackLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """The Pulumi project and stack that own a resource, and the limits of that stack. Limits change, so equality does not compare them."""

    project: str
    stack: str
    limits: StackLimits = field(default=NO_LIMITS, compare=False)

    @property
    def identity(self) -> Mapping[str, str]:
        """Labels that identify the owner of a resource."""
        return {MANAGED_BY_LABEL: PRODUCT, PROJECT_LABEL: self.project, STACK_LABEL: self.stack}

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels of every resource that supports labels."""
        return {**self.identity, **self.limits.labels}

    @property
    def description(self) -> str:
        """The identity as words, for resources without labels. Most cannot change their description in place."""
        return " ".join(f"{key}={value}" for key, value in self.identity.items())

    def condition(self, expression: str = ALWAYS) -> Mapping[str, str]:
        """Return the IAM condition of a grant to a member outside the stack. Its description has the words of the labels.

        IAM allows 100 characters for the title and 256 for the description.
        """
        return {"title": f"{PRODUCT} {self.stack}"[:100], "description": self.description, "expression": expression}

    def owns(self, *, labels: Mapping[str, object] | None = None, description: str | None = None) -> bool:
        """Return whether a resource belongs to the stack. All words must match."""
        if labels and all(labels.get(key) == value for key, value in self.identity.items()):
            return True
        return set(self.description.split()) <= set((description or "").split())


def words_of(description: str) -> Mapping[str, str]:
    """Return the words `KEY=VALUE` of a description."""
    pairs = (word.partition("=") for word in description.split())
    return {key: value for key, equals, value in pairs if equals}


_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
"""Name of a project or a stack of Pulumi. Other texts in labels name no owner, so none of them enters a printed command."""


def owner_of(*, labels: Mapping[str, object] | None = None, description: str | None = None) -> Ownership | None:
    """Return the stack that owns a resource with these labels or this description, or None."""
    for found in (labels or {}, words_of(description or "")):
        project, stack = found.get(PROJECT_LABEL), found.get(STACK_LABEL)
        if found.get(MANAGED_BY_LABEL) == PRODUCT and all(
            _NAME.fullmatch(str(name or "")) for name in (project, stack)
        ):
            return Ownership(project=str(project), stack=str(stack))
    return None
