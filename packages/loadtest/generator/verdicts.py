"""Verdicts of requests against limits, each as soon as it is certain.

A request that has waited longer than a limit has missed it, whether or not its response is complete. Otherwise a search would first
see the fast responses of an overloaded server.
"""

from dataclasses import dataclass

from loadtest.client.wire import Exchange
from loadtest.measure import Objective
from loadtest.records import RequestRecord


@dataclass(slots=True)
class _Pending:
    intended_s: float
    exchange: Exchange | None = None


class Verdicts:
    """Verdicts of one worker's requests."""

    def __init__(self, objective: Objective | None) -> None:
        self._objective = objective
        self._open: dict[int, _Pending] = {}
        self._new: list[tuple[int, bool]] = []

    def began(self, index: int, intended_s: float) -> None:
        """Add a request. `intended_s` is relative to the start of the point."""
        if self._objective is not None:
            self._open[index] = _Pending(intended_s)

    def sent(self, index: int, exchange: Exchange) -> None:
        """Add the exchange of a request."""
        pending = self._open.get(index)
        if pending is not None:
            pending.exchange = exchange

    def ended(self, record: RequestRecord) -> None:
        """Judge a finished request. A failed request has missed every limit."""
        if self._objective is not None and self._open.pop(record.index, None) is not None:
            self._new.append((record.index, record.error is None and self._objective.kept_by(record)))

    def take(self, at_s: float) -> tuple[tuple[int, bool], ...]:
        """Return the verdicts since the last call, including requests that have waited too long at `at_s`."""
        if self._objective is None:
            return ()
        for index in [index for index, pending in self._open.items() if self._has_missed(pending, at_s)]:
            del self._open[index]
            self._new.append((index, False))
        found, self._new = tuple(self._new), []
        return found

    def _has_missed(self, pending: _Pending, at_s: float) -> bool:
        objective, waited_s = self._objective, at_s - pending.intended_s
        if objective is None:
            return False
        has_output = pending.exchange is not None and len(pending.exchange.times_s) > pending.exchange.silent
        return (objective.e2e_s is not None and waited_s > objective.e2e_s) or (
            objective.ttft_s is not None and not has_output and waited_s > objective.ttft_s
        )
