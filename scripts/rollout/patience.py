"""Retries for a change that must succeed: the rollback to a revision that serves."""

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
    """Retries while Google does not respond (5xx, 429, no connection) or another client changed the service first."""

    limit_s: float = LIMIT_S
    clock: Callable[[], float] = monotonic
    sleep: Callable[[float], None] = sleep

    def change(self, work: Callable[[], T], report: Callable[[str], None]) -> T:
        """Return the result of the work. Raises its last error after `limit_s` seconds, and any other error immediately."""
        started_s = self.clock()

        def tell(state: RetryCallState) -> None:
            error = state.outcome.exception() if state.outcome else None
            report(f"{error} Retrying for another {duration(self.limit_s - (self.clock() - started_s))}.")

        for attempt in Retrying(
            retry=retry_if_exception_type((UnansweredError, ServiceChangedError)),
            stop=lambda _: self.clock() - started_s >= self.limit_s,
            wait=wait_exponential_jitter(multiplier=_FIRST_PAUSE_S, max=_LONGEST_PAUSE_S),
            sleep=self.sleep,
            before_sleep=tell,
            reraise=True,
        ):
            with attempt:
                return work()
        raise AssertionError("the loop returns a value or raises")
