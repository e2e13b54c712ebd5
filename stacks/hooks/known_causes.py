"""A failed start, its cause, and the form of a known cause."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from planning.data.checkpoints import original_of
from planning.question.types import Plan, StartupProbe
from stacks.settings import CloudRunSettings, Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedStart:
    """Facts about a revision that did not start. Properties are what the texts of causes name."""

    stack: str
    settings: Settings
    run: CloudRunSettings | None
    """None on a TPU."""
    plan: Plan
    probe: StartupProbe | None
    """Startup probe in effect. None on a TPU."""
    bucket: str
    """Bucket of the weights, even if the stack reads none."""
    account: str
    """E-mail address of the server's account."""

    @property
    def cloud_run(self) -> CloudRunSettings:
        """Settings of Cloud Run. Used only for log lines of Cloud Run."""
        assert self.run is not None  # noqa: S101 - causes of Cloud Run are skipped for a TPU
        return self.run

    @property
    def startup_probe(self) -> StartupProbe:
        """Startup probe. Used only for log lines of Cloud Run."""
        assert self.probe is not None  # noqa: S101 - as above
        return self.probe

    @property
    def version(self) -> str:
        """The image's version of vLLM."""
        return self.settings.image.version or "unknown version"

    @property
    def original(self) -> str:
        """The unquantized checkpoint of the model."""
        return original_of(self.settings.model)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """The cause of a failure, and the log line that shows it."""

    line: str
    hint: str
    finding: str = ""
    """Id of the planner's finding that predicts it (docs/reference/rules.md), or empty."""


@dataclass(frozen=True, slots=True)
class KnownCause:
    """Pattern of a log line, and its meaning."""

    pattern: str
    text: "str | Callable[[re.Match[str], FailedStart], str]"
    """A format of `found`, the match, and `start`, the FailedStart; or a function of both."""
    finding: str = ""
    target: Literal["tpu", "cloud-run"] | None = None
    """The only target with such lines. None: both."""

    def cause(self, line: str, start: FailedStart) -> Cause | None:
        """Return the cause that a line shows; None if it shows another."""
        found = re.search(self.pattern, line)
        if found is None:
            return None
        text = self.text.format(found=found, start=start) if isinstance(self.text, str) else self.text(found, start)
        return Cause(line=line, hint=text, finding=self.finding)
