"""State of one run of the checks."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from contracts.features import ServedFeatures
from loadtest.client.openai import OpenAIClient
from scripts.cli.access import ServerAccess
from scripts.cli.check_result import Values
from scripts.smoke.results import Outcome
from scripts.smoke.target import SmokeTarget

ReportProgress = Callable[[str], None]
"""Show one line of progress."""


class NotApplicableError(Exception):
    """A check that does not apply to the server. The message is the reason."""


@dataclass(slots=True, kw_only=True)
class CheckContext:
    """Client, target and results of one run. Checks set the mutable fields for later checks."""

    client: OpenAIClient
    access: ServerAccess
    target: SmokeTarget
    report_progress: ReportProgress
    wanted: str = ""
    """What the current check expects. Each check sets it once, and the runner puts it beside each of its results."""
    simulated: str | None = None
    max_model_len: int | None = None
    """max-model-len that the server reports."""
    values: dict[str, Values] = field(default_factory=dict[str, Values])
    """Values of the finished checks, by name."""

    def features(self) -> ServedFeatures:
        """Return the features of the server. Raises NotApplicableError if they are unknown."""
        if self.target.features is None:
            fix = f"run `gemma up {self.target.stack}`" if self.target.stack else "pass --features"
            raise NotApplicableError(f"the server's features are unknown: {fix}")
        return self.target.features

    @property
    def length(self) -> int | None:
        """max-model-len that the server reports, else that of the settings."""
        return self.max_model_len or self.target.thresholds.max_model_len

    @property
    def without_thinking(self) -> Mapping[str, object]:
        """Fields of a request that turn thinking off, or none if it is off by default. A short response would end in its reasoning."""
        features = self.target.features
        on = features is not None and features.thinks_by_default
        return {"chat_template_kwargs": {"enable_thinking": False}} if on else {}


@dataclass(frozen=True, slots=True)
class Check:
    """A check: its name, function and time limit."""

    name: str
    run: Callable[[CheckContext], Awaitable[Outcome]]
    limit_s: Callable[[SmokeTarget], float] = lambda _: 200.0
    needed: bool = False
    """True if later checks require it to pass."""


def percent_over(measured: float, limit: float) -> str:
    """Return how far `measured` is from `limit`, as a percentage of the limit."""
    return f"{abs(measured / limit - 1):.0%}" if limit else "∞"
