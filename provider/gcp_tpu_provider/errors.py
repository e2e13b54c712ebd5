"""What can go wrong, as sentences for people.

ProviderError
├── GoogleError      Google answered, and refused; `status` is the HTTP status
├── NoAnswerError    Google did not answer within the budget; the call may or may not have had an effect
├── ForeignError     what is there is not this resource's
└── CannotWaitError  the resource exists but is not as wanted; trying again or replacing it is the way out
"""

from dataclasses import dataclass


class ProviderError(Exception):
    """One sentence (or a table) for the person who runs Pulumi."""


@dataclass
class GoogleError(ProviderError):
    """Google's refusal in Google's words."""

    status: int
    code: str
    message: str
    reason: str = ""
    retry_after_s: float | None = None

    def __str__(self) -> str:
        return f"Google answered {self.status} {self.code}: {self.message.rstrip('.')}."


@dataclass
class NoAnswerError(ProviderError):
    """No answer within the budget. `sent` is False when no connection ever came about, so that nothing can have happened."""

    call: str
    problem: str
    sent: bool

    def __str__(self) -> str:
        return f"{self.call} got no answer from Google ({self.problem})."


class ForeignError(ProviderError):
    """A resource that is not ours stands in the way; it is left alone."""


class CannotWaitError(ProviderError):
    """The resource is there, but it did not become what was waited for."""
