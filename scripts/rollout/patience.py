"""How long a change is tried that must not be given up: the way back to a revision that serves."""

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Final, TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_exponential_jitter

from cloud.google_api import UnansweredError
from planning.units import duration
from scripts.rollout.service import ServiceChangedError

T = TypeVar("T")

LIMIT_S: Final = 600.0
_FIRST_PAUSE_S: Final = 2.0
_LONGEST_PAUSE_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Tries again while Google does not answer (5xx, 429, no connection) or another change was faster."""

    limit_s: float = LIMIT_S
    clock: Callable[[], float] = monotonic
    sleep: Callable[[float], None] = sleep

    def change(self, work: Callable[[], T], report: Callable[[str], None]) -> T:
        """Return what the work returns. Raises its last error after `limit_s` seconds, and every other error at once."""
        began_s = self.clock()

        def tell(state: RetryCallState) -> None:
            error = state.outcome.exception() if state.outcome else None
            report(f"{error} Trying again for {duration(self.limit_s - (self.clock() - began_s))}.")

        for attempt in Retrying(
            retry=retry_if_exception_type((UnansweredError, ServiceChangedError)),
            stop=lambda _: self.clock() - began_s >= self.limit_s,
            wait=wait_exponential_jitter(multiplier=_FIRST_PAUSE_S, max=_LONGEST_PAUSE_S),
            sleep=self.sleep,
            before_sleep=tell,
            reraise=True,
        ):
            with attempt:
                return work()
        raise AssertionError("the loop ends with a value or an error")
