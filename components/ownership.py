"""How resources say whose they are: labels where there are labels, a description where there are none."""

from collections.abc import Mapping
from dataclasses import dataclass

MANAGED_BY = "gemma-serving"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """The Pulumi project and stack that own a resource; teardown finds what is left by these words."""

    project: str
    stack: str

    @property
    def labels(self) -> Mapping[str, str]:
        """The three labels that every resource with labels carries."""
        return {
            "managed-by": MANAGED_BY,
            "gemma-serving-project": self.project,
            "gemma-serving-stack": self.stack,
        }

    @property
    def description(self) -> str:
        """The same in a description, for resources that have no labels."""
        return " ".join(f"{key}={value}" for key, value in self.labels.items())
