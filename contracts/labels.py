"""Ownership markers: labels, or the description for resources that have no labels. Teardown finds a stack's resources by them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

PRODUCT: Final = "gemma-serving"
"""The value of `managed-by`, the Pulumi project's name, and the namespace of its settings."""

MANAGED_BY_LABEL: Final = "managed-by"
PROJECT_LABEL: Final = f"{PRODUCT}-project"
STACK_LABEL: Final = f"{PRODUCT}-stack"
URN_LABEL: Final = f"{PRODUCT}-urn"

URN_DIGITS: Final = 40
"""Hex digits of the URN's SHA-256 in `URN_LABEL`; a label's value has at most 63 characters."""

LABELS: Final[Mapping[str, str]] = {
    MANAGED_BY_LABEL: f"`{PRODUCT}`",
    PROJECT_LABEL: "the Pulumi project's name",
    STACK_LABEL: "the Pulumi stack's name",
}
"""The labels that every resource with labels carries, and what stands in them."""


def is_reserved(key: str) -> bool:
    """Whether a label key belongs to this project, so that a user cannot set it."""
    return key == MANAGED_BY_LABEL or key.startswith(f"{PRODUCT}-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """The Pulumi project and stack that own a resource."""

    project: str
    stack: str

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels of every resource that can carry labels."""
        return {MANAGED_BY_LABEL: PRODUCT, PROJECT_LABEL: self.project, STACK_LABEL: self.stack}

    @property
    def description(self) -> str:
        """The same words for resources that have a description instead of labels."""
        return " ".join(f"{key}={value}" for key, value in self.labels.items())

    def owns(self, *, labels: Mapping[str, object] | None = None, description: str | None = None) -> bool:
        """Whether a resource with these labels, or with this description, belongs to the stack: all words must be there."""
        if labels and all(labels.get(key) == value for key, value in self.labels.items()):
            return True
        return set(self.description.split()) <= set((description or "").split())
