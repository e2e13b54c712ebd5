"""Errors of the provider. The engine shows their text.

TpuProviderError
├── GoogleError      Google refused the call; `status` is the HTTP status
│   └── ProjectError because of the project or the caller, the same in every zone
├── NoAnswerError    Google did not answer in time; the effect of the call is unknown
├── ForeignError     the resource that was found belongs to another owner
└── CannotWaitError  the resource exists but did not reach the desired state; run the update again, or replace it
    ├── ConflictError another client changed the TPU VM after it was read; read it again
    └── LostError     Google took the capacity back before the server was ready; request it in the next zone
"""

from dataclasses import dataclass


class TpuProviderError(Exception):
    """An error whose text is one sentence or a table for the user."""


@dataclass
class GoogleError(TpuProviderError):
    """An error returned by Google, with Google's message.

    `may_have_acted` is True if an earlier attempt of the same call got no response, because it may have had an effect.
    """

    status: int
    code: str
    message: str
    reason: str = ""
    retry_after_s: float | None = None
    may_have_acted: bool = False

    def __str__(self) -> str:
        return f"Google returned {self.status} {self.code}: {self.message.rstrip('.')}."


@dataclass
class ProjectError(GoogleError):
    """A refusal because of the project or the caller. `sentence` states the cause and the command that fixes it."""

    sentence: str = ""

    def __str__(self) -> str:
        return f"{self.sentence} (Google returned {self.status} {self.code}: {self.message.rstrip('.')})."


@dataclass
class NoAnswerError(TpuProviderError):
    """No response within the retry budget. `sent` is False if no connection was made, so the call had no effect."""

    call: str
    problem: str
    sent: bool

    def __str__(self) -> str:
        return f"{self.call} got no response from Google ({self.problem})."


class ForeignError(TpuProviderError):
    """The name belongs to a resource that this Pulumi resource does not own. The provider does not change it."""


class CannotWaitError(TpuProviderError):
    """The resource exists but did not reach the desired state."""


class ConflictError(CannotWaitError):
    """Another client changed the TPU VM after it was read."""


class LostError(CannotWaitError):
    """Google took the capacity back before its run ended. The text says what is left of it."""
