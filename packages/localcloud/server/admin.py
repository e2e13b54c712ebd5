"""The admin API under /admin/: list resources, set the scenario, advance the time, assign ids.

It accepts only the operator's token. The overview needs no token.
"""

from collections import deque
from collections.abc import Callable

from aiohttp import web

from localcloud.json_values import JsonObject, packaged, strings
from localcloud.rest.bodies import json_object
from localcloud.rest.call import merged
from localcloud.rest.errors import CloudError
from localcloud.server.guard import operator_only
from localcloud.services.projects import ensure_project
from localcloud.world import scenario as scenarios
from localcloud.world.cloud import Cloud
from localcloud.world.runtime import MachineFailedError

_LABELLED: dict[str, str] = packaged("localcloud.server", "labelled.json")
"""Kinds of resources, with the field of their labels."""


class Admin:
    """Handlers of the admin API."""

    def __init__(
        self,
        cloud: Cloud,
        log: deque[JsonObject],
        machine_address: Callable[[str, int], tuple[str, int] | None],
    ) -> None:
        self._cloud = cloud
        self._log = log
        self._machine_address = machine_address

    def routes(self) -> list[web.RouteDef]:
        """Return the routes of the admin API. All but the overview require the operator's token."""
        guarded = [web.route(each.method, each.path, operator_only(self._cloud, each.handler)) for each in self._own()]
        return [web.get("/admin/", self.overview), *guarded]

    def _own(self) -> list[web.RouteDef]:
        return [
            web.get("/admin/resources", self.resources),
            web.get("/admin/scenario", self.get_scenario),
            web.put("/admin/scenario", self.put_scenario),
            web.get("/admin/clock", self.clock),
            web.post("/admin/advance", self.advance),
            web.get("/admin/requests", self.requests),
            web.delete("/admin/requests", self.requests),
            web.post("/admin/assign", self.assign),
            web.post("/admin/projects", self.add_project),
            web.post("/admin/tokens", self.tokens),
            web.post("/admin/quota", self.quota),
            web.post("/admin/preempt", self.preempt),
            web.post("/admin/reboot", self.reboot),
            web.post("/admin/alerts", self.alerts),
            web.get("/admin/tunnel", self.tunnel),
            web.get("/admin/ssh", self.ssh),
        ]

    async def overview(self, _request: web.Request) -> web.Response:
        """Return the project, the base URL and the routes."""
        paths = sorted({f"{route.method} {route.path}" for route in self.routes()})
        return web.json_response(
            {
                "simulated": True,
                "project": self._cloud.project,
                "url": self._cloud.base_url,
                "routes": paths,
            }
        )

    async def resources(self, _request: web.Request) -> web.Response:
        """Return every resource as a flat list: api, kind, name, labels, description."""
        found = [
            _row(kind, key, name, document)
            for kind, key in _LABELLED.items()
            for name, document in self._cloud.store.under(kind)
        ]
        return web.json_response({"resources": found})

    async def get_scenario(self, _request: web.Request) -> web.Response:
        """Return the current scenario."""
        return web.json_response(self._cloud.scenario.model_dump(mode="json"))

    async def put_scenario(self, request: web.Request) -> web.Response:
        """Replace the scenario. With ?merge=true, merge the given keys into the current one; null resets a key. The fault counters restart."""
        given = await json_object(request)
        if request.query.get("merge") == "true":
            given = merged(self._cloud.scenario.model_dump(mode="json"), given)
        try:
            self._cloud.scenario = scenarios.parse(given, "PUT /admin/scenario")
        except scenarios.ScenarioError as error:
            raise CloudError.invalid(str(error)) from None
        self._cloud.changed.set()
        return await self.get_scenario(request)

    async def clock(self, _request: web.Request) -> web.Response:
        """Return speed and state of the simulated time."""
        timeline = self._cloud.timeline
        return web.json_response(
            {
                "speed": timeline.clock.speed,
                "simulatedS": timeline.simulated_s(),
                "advancedS": timeline.advanced_s,
                "now": timeline.stamp(),
                "instant": self._cloud.scenario.operations.instant,
            }
        )

    async def advance(self, request: web.Request) -> web.Response:
        """Advance the time by `{"seconds": N}`, for waits and lifetimes."""
        amount = (await json_object(request)).get("seconds")
        if not isinstance(amount, (int, float)) or isinstance(amount, bool) or amount < 0:
            raise CloudError.invalid(f"POST /admin/advance: seconds is {amount!r}, expected a number of 0 or more.")
        self._cloud.timeline.advance(float(amount))
        self._cloud.changed.set()
        return await self.clock(request)

    async def requests(self, request: web.Request) -> web.Response:
        """Return the request log without secrets; ?id=PATTERN keeps methods whose id contains it, and DELETE empties it first."""
        wanted = request.query.get("id", "")
        if request.method == "DELETE":
            self._log.clear()
        return web.json_response({"requests": [entry for entry in self._log if wanted in str(entry.get("id") or "")]})

    async def assign(self, request: web.Request) -> web.Response:
        """Queue `{"ids": [...], "etags": [...]}` for the next resources."""
        given = await json_object(request)
        self._cloud.ids.assign(
            [str(item) for item in strings(given, "ids")], [str(item) for item in strings(given, "etags")]
        )
        return web.json_response({})

    async def add_project(self, request: web.Request) -> web.Response:
        """Add the project `{"projectId": "p1", "projectNumber": "1234567890"}`, with the ownership that the scenario sets."""
        given = await json_object(request)
        if not given.get("projectId"):
            raise CloudError.invalid("POST /admin/projects: projectId is missing.")
        return web.json_response(ensure_project(self._cloud, str(given["projectId"]), given.get("projectNumber")))

    async def tokens(self, request: web.Request) -> web.Response:
        """Issue an access token for `{"email": E}`, or an ID token with an `audience`, for any identity."""
        given = await json_object(request)
        email = str(given.get("email") or (self._cloud.owner if given.get("owner") else self._cloud.login))
        if given.get("audience"):
            return web.json_response({"idToken": self._cloud.tokens.issue_id_token(email, str(given["audience"]))})
        return web.json_response({"email": email, "accessToken": self._cloud.tokens.issue_access_token(email)})

    async def quota(self, request: web.Request) -> web.Response:
        """Accept a quota preference, as Cloud Quotas does, and grant it immediately. The fault counters restart."""
        from localcloud.services.quotas import prefer  # noqa: PLC0415 - as its API, on first use

        document = prefer(self._cloud, await json_object(request))
        self._cloud.changed.set()
        return web.json_response(document)

    async def preempt(self, request: web.Request) -> web.Response:
        """Preempt the running TPU node or spot instance `{"node": FULL_NAME}`."""
        from localcloud.services import compute_instances, tpu  # noqa: PLC0415 - as their APIs, on first use

        node = str((await json_object(request)).get("node", ""))
        if not tpu.preempt(self._cloud, node) and not compute_instances.preempt(self._cloud, node):
            raise CloudError.invalid(f"POST /admin/preempt: '{node}' is not a running node.")
        return web.json_response({})

    async def reboot(self, request: web.Request) -> web.Response:
        """Reboot the machine of the TPU node `{"node": FULL_NAME}`: processes and /dev/shm are lost, the disk is kept."""
        node = str((await json_object(request)).get("node", ""))
        try:
            await self._cloud.runtimes.machines.reboot(node)
        except MachineFailedError as error:
            raise CloudError.invalid(f"POST /admin/reboot: {error}") from None
        return web.json_response({})

    async def alerts(self, request: web.Request) -> web.Response:
        """Replace the incidents of a project, `{"alerts": [{"policy": NAME, "state": "OPEN"}]}`, and the `queries`: PROMQL to a number or null."""
        from localcloud.services.monitoring import set_alerts  # noqa: PLC0415 - as its API, on first use

        return web.json_response(set_alerts(self._cloud, await json_object(request)))

    async def ssh(self, request: web.Request) -> web.Response:
        """Return an empty object if ?account=EMAIL can log in to ?node=FULL_NAME with SSH through IAP, otherwise 403."""
        from localcloud.services.oslogin import check_login  # noqa: PLC0415 - as its API, on first use

        check_login(self._cloud, request.query.get("node", ""), request.query.get("account") or self._cloud.operator)
        return web.json_response({})

    async def tunnel(self, request: web.Request) -> web.Response:
        """Return host and port for a tunnel to ?node=FULL_NAME&port=N, or 404 if nothing listens there."""
        node, port = request.query.get("node", ""), request.query.get("port", "")
        address = self._machine_address(node, int(port)) if port.isdigit() else None
        if address is None:
            raise CloudError.not_found(f"Nothing listens on port {port or '(missing)'} of '{node}'.")
        return web.json_response({"host": address[0], "port": address[1]})


def _row(kind: str, key: str, name: str, document: JsonObject) -> JsonObject:
    labels = document.get(key)
    if kind == "tpu.queuedResources":
        labels = next((spec["node"].get("labels") for spec in document["tpu"]["nodeSpec"]), None)
    api, _, short = kind.partition(".")
    return {
        "api": api,
        "kind": short,
        "name": name,
        "labels": labels or {},
        "description": document.get("description", ""),
    }
