"""APIs that return 429 or 5xx, or nothing, reported once while a command still retries them."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from gemma_serving.cloud.clock import GOOGLE_CLOCK

_TOLD_AFTER_S: Final = 10.0
_ENGINE_WAIT_S: Final = 120
"""Time for which a provider of the engine retries one call (gcp_tpu_provider.transport, retry_budget_s; terraform-provider-google's request timeout)."""


@dataclass(slots=True)
class Troubles:
    """APIs that fail now, with the cause. A process has one instance."""

    say: Callable[[str], object] = lambda _: None
    """Prints a line of progress of the command."""
    now_s: Callable[[], float] = time.monotonic
    _since: dict[str, tuple[float, str]] = field(default_factory=dict[str, tuple[float, str]])
    _told: set[tuple[str, bool]] = field(default_factory=set[tuple[str, bool]])

    def answered(self, api: str) -> None:
        """Note an answer, after which a new failure is a new one."""
        if self._since.pop(api, None) is not None:
            self._told -= {(api, False), (api, True)}

    def failed(self, api: str, why: str, *, limit_s: float) -> None:
        """Note a failure of a call that is retried for up to `limit_s` seconds, and report one that lasts."""
        since_s, _ = self._since.setdefault(api, (self.now_s(), why))
        if self.now_s() - since_s >= _TOLD_AFTER_S:
            self._tell(api, why, f"Each call is repeated for up to {limit_s:.0f} s, then left as unknown.")

    def before_engine(self) -> None:
        """Report the APIs that fail now, and for how long the engine, which reports nothing of it, retries each call."""
        until = GOOGLE_CLOCK.now() + timedelta(seconds=_ENGINE_WAIT_S)
        for api, (_, why) in list(self._since.items()):
            text = f"Pulumi repeats each call for {_ENGINE_WAIT_S // 60} min, so until {until:%H:%M:%S} UTC or later."
            self._tell(api, why, text, of_engine=True)

    def _tell(self, api: str, why: str, wait: str, *, of_engine: bool = False) -> None:
        if (api, of_engine) not in self._told:
            self._told.add((api, of_engine))
            self.say(f"{api}.googleapis.com fails ({why}). {wait}")


TROUBLES: Final = Troubles()
