"""The hub under /hub. `HF_ENDPOINT` points to this path. Every response has the header `X-Simulated`."""

from collections import deque
from http import HTTPStatus
from typing import Final

from aiohttp import web

from localcloud.hub.api import HubApi, HubRequest
from localcloud.hub.content import NOTE
from localcloud.json_values import JsonObject
from localcloud.rest.errors import CloudError
from localcloud.server.faults import FaultSchedule, inject
from localcloud.world.cloud import Cloud

_PATH: Final = "/hub"
_RATE_LIMIT: Final = {"RateLimit": '"api";r=0;t=300', "RateLimit-Policy": '"fixed window";"api";q=500;w=300'}
"""Headers of a 429 (huggingface_hub, utils/_http.py, parse_ratelimit_headers)."""


def asked(request: web.Request) -> HubRequest:
    """Return a request of the hub's API."""
    return HubRequest(
        method=request.method,
        address=f"http://{request.host}{_PATH}",
        target=request.raw_path.removeprefix(f"{_PATH}/"),
        headers=request.headers,
    )


def answered(hub: HubApi, wanted: HubRequest) -> web.Response:
    """Return the response of a hub."""
    answer = hub.answer(wanted)
    return web.Response(status=answer.status, body=answer.body, headers=answer.headers)


class HubHandlers:
    """Handler of the hub. It adds the scenario's faults and a log line."""

    def __init__(self, cloud: Cloud, log: deque[JsonObject]) -> None:
        self._cloud = cloud
        self._log = log
        self._faults = FaultSchedule()

    def routes(self) -> list[web.RouteDef]:
        """Return the route of everything below /hub."""
        return [web.route("*", f"{_PATH}/{{path:.*}}", self._handle)]

    async def _handle(self, request: web.Request) -> web.Response:
        scenario, wanted = self._cloud.scenario, asked(request)
        name, _ = wanted.matched()
        fault = self._faults.pick(scenario, f"hub.{name}")
        try:
            if fault is not None:
                response = await inject(fault, request)
            else:
                response = answered(HubApi(**dict(scenario.hub)), wanted)
        except CloudError as error:
            response = web.json_response(
                {"error": HTTPStatus(error.code).phrase},
                status=error.code,
                headers=_RATE_LIMIT if error.code == HTTPStatus.TOO_MANY_REQUESTS else {},
            )
        response.headers["X-Simulated"] = NOTE
        entry = {"api": "hub", "id": f"hub.{name}", "method": request.method, "path": request.path}
        self._log.append({"time": self._cloud.timeline.stamp(), **entry, "query": {}, "status": response.status})
        return response
