"""A finding about a deployment, and the changes that remove it."""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from gemma_serving.contracts.verdicts import Severity


class LostValue(Struct, frozen=True, kw_only=True):
    """A value of arguments that a remedy removes."""

    flags: tuple[str, ...]
    """The flags as written."""
    changes: Mapping[str, object] = {}
    """The changes that keep it; empty if no setting has it."""
    reason: str = ""
    """Why no setting has it, or what it would lead to."""


class Remedy(Struct, frozen=True, kw_only=True):
    """Changes of a question's fields that remove a finding. `planning.settings.paths.with_changes` applies them."""

    changes: Mapping[str, object]
    """The new value of each field, by path (`vllm.max_model_len`); None removes the field."""
    move: Literal["accelerator", "model"] | None = None
    """The part that the remedy replaces; None if it keeps both the accelerator and the model."""
    title: str = ""
    usd_per_hour: float | None = None
    """Price per hour after the change; None if the price stays the same."""
    extra_usd_per_hour: float = 0.0
    warns: tuple[str, ...] = ()
    """Ids of the warnings that it adds."""
    is_deployable: bool = True
    """True if this project can deploy the result; False for a Compute Engine GPU machine."""
    loses: tuple[LostValue, ...] = ()
    """Values that it removes. Of a rule's candidate: all of them, of which as many as possible are kept."""


class Together(Struct, frozen=True, kw_only=True):
    """A remedy of several findings: each key has one value, and all of them are gone after it."""

    ids: tuple[str, ...]
    remedy: Remedy


class Finding(Struct, frozen=True, kw_only=True):
    """A result to review before the deployment costs anything.

    `message` and `advice` name keys of the settings file, and STACK for the stack in commands.
    """

    id: str
    severity: Severity
    message: str
    """The fact and its figure, one to three sentences."""
    remedies: tuple[Remedy, ...]
    """Tested changes of its own keys: each removes this finding and adds none that blocks."""
    advice: str
    """Fix other than a change of fields, such as requesting quota; may be empty."""
    source: str
