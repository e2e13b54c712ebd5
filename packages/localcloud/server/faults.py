"""The faults of a scenario, counted per call."""

import asyncio
from fnmatch import fnmatchcase

from aiohttp import web

from localcloud.rest.errors import CloudError
from localcloud.world.scenario import Fault, Scenario


class FaultSchedule:
    """Decides which calls fail. A new scenario resets the counters."""

    def __init__(self) -> None:
        self._scenario: Scenario | None = None
        self._seen: list[int] = []

    def pick(self, scenario: Scenario, method_id: str) -> Fault | None:
        """Return the fault to inject into this call, or None."""
        if scenario is not self._scenario:
            self._scenario = scenario
            self._seen = [0] * len(scenario.faults)
        chosen: Fault | None = None
        for index, fault in enumerate(scenario.faults):
            if not fnmatchcase(method_id, fault.method):
                continue
            self._seen[index] += 1
            if chosen is None and fault.nth <= self._seen[index] < fault.nth + fault.count:
                chosen = fault
        return chosen


async def inject(fault: Fault, request: web.Request) -> web.Response:
    """Fail a call: raise an error status, or close the connection, for `hang` after `hang_s`."""
    if fault.action == "status":
        raise CloudError.injected(fault.status)
    if fault.action == "hang":
        await asyncio.sleep(fault.hang_s)
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=fault.status)
