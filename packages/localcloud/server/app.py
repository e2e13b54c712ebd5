"""The local cloud as a running server in the current event loop."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import hdrs, web

from localcloud.json_values import JsonObject
from localcloud.rest.bodies import LONGEST_BYTES
from localcloud.server.admin import Admin
from localcloud.server.dispatch import Dispatcher
from localcloud.server.guard import google_errors, loopback_only
from localcloud.server.hub import HubHandlers
from localcloud.server.registry import Registry
from localcloud.services import iam, in_use
from localcloud.services.projects import ensure_project
from localcloud.world import oauth
from localcloud.world.cloud import Cloud, Runtimes
from localcloud.world.scenario import Scenario
from localcloud.world.timeline import Clock

DEFAULT_PROJECT = "local-project"
DEFAULT_SPEED = 200.0
_SHUTDOWN_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of a cloud. `port` 0: the port of the last run on the same state, or any free port."""

    project: str = DEFAULT_PROJECT
    speed: float = DEFAULT_SPEED
    scenario: Scenario = field(default_factory=Scenario)
    port: int = 0


RuntimeFactory = Callable[[Cloud], Runtimes]


@dataclass(slots=True, kw_only=True)
class OpenCloud:
    """A running cloud. `credentials` is the operator's service account file."""

    cloud: Cloud
    base_url: str
    credentials: Path
    _runner: web.AppRunner

    def routes(self) -> list[tuple[str, str]]:
        """Return verb and path of each route except the catch-all route for Google's methods."""
        found = [(route.method, route.resource) for route in self._runner.app.router.routes()]
        return [(verb, where.canonical) for verb, where in found if where is not None and verb != hdrs.METH_ANY]

    async def close(self) -> None:
        """Stop all processes and close the cloud."""
        await self._runner.cleanup()
        await self.cloud.cancel()
        await _stop_all(self.cloud)
        await self.cloud.close()


async def open_cloud(state: Path, options: Options, runtimes: RuntimeFactory) -> OpenCloud:
    """Open the state folder and listen on the loopback address. The caller creates the folder, and locks it if it is shared."""
    clock = Clock(speed=options.speed)
    cloud = Cloud(state=state, project=options.project, clock=clock, scenario=options.scenario)
    dispatcher = Dispatcher(cloud)
    admin = Admin(
        cloud,
        dispatcher.log,
        lambda name, port: cloud.runtimes.machines.address(name, port),  # noqa: PLW0108 - the runtimes are attached later
    )
    # Uploads are streamed to disk without a limit. For other bodies, one byte over the limit is too long.
    app = web.Application(client_max_size=LONGEST_BYTES + 1, middlewares=[loopback_only(cloud), google_errors])
    app.add_routes(admin.routes())
    app.add_routes(Registry(cloud).routes())
    app.add_routes(HubHandlers(cloud, dispatcher.log).routes())
    app.router.add_post("/oauth2/token", _token_endpoint(cloud))
    app.router.add_route("*", "/{path:.*}", dispatcher.serve)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=_SHUTDOWN_S)
    await runner.setup()
    remembered = cloud.store.get("meta", "server") or {"port": 0}
    port = await _listen(runner, options.port or int(remembered["port"]), strict=options.port != 0)
    cloud.store.put("meta", "server", {"port": port})
    cloud.base_url = f"http://127.0.0.1:{port}"
    credentials = _bootstrap(cloud)
    cloud.attach(runtimes)
    cloud.spawn(_keep_time(cloud))
    for api in in_use(cloud):
        await dispatcher.use(api)
    return OpenCloud(cloud=cloud, base_url=cloud.base_url, credentials=credentials, _runner=runner)


async def _listen(runner: web.AppRunner, port: int, *, strict: bool) -> int:
    """Listen on the port. If it is taken and was not requested explicitly, listen on any free port."""
    try:
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
    except OSError:
        if strict or port == 0:
            raise
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
    return int(runner.addresses[-1][1])


def _bootstrap(cloud: Cloud) -> Path:
    """Create the project and the operator if they do not exist, and return the operator's credentials file."""
    ensure_project(cloud, cloud.home)
    ensure_project(cloud, cloud.project)
    if not cloud.store.has(iam.ACCOUNTS, cloud.operator):
        iam.add_account(cloud, cloud.home, "local-operator", display_name="Operator of the local cloud")
    credentials = cloud.state / "credentials.json"
    key = oauth.credentials_file(
        credentials, email=cloud.operator, project=cloud.project, token_uri=f"{cloud.base_url}/oauth2/token"
    )
    cloud.store.put("oauth.keys", cloud.operator, {"public": key})
    return credentials


def _token_endpoint(cloud: Cloud) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def token(request: web.Request) -> web.Response:
        form = await request.post()
        try:
            return web.json_response(_grant(cloud, {name: str(value) for name, value in form.items()}))
        except oauth.TokenError as error:
            return web.json_response({"error": error.error, "error_description": error.description}, status=400)

    return token


def _grant(cloud: Cloud, form: Mapping[str, str]) -> JsonObject:
    """Return a token for a signed assertion of a known service account, or for a user's refresh token."""
    grant_type, assertion = form.get("grant_type", ""), form.get("assertion", "")
    if grant_type == oauth.REFRESH:
        return cloud.tokens.refresh(form.get("refresh_token", ""))
    if grant_type != oauth.JWT_BEARER:
        raise oauth.TokenError("unsupported_grant_type", f"Invalid grant_type: {grant_type}")
    key = cloud.store.get("oauth.keys", oauth.assertion_issuer(assertion))
    if key is None:
        raise oauth.TokenError("invalid_grant", "Invalid grant: account not found")
    return cloud.tokens.grant(assertion, key["public"])


async def _keep_time(cloud: Cloud) -> None:
    """Store the time every second, so a killed process loses little of it."""
    while True:
        await asyncio.sleep(1.0)
        cloud.remember_time()


async def _stop_all(cloud: Cloud) -> None:
    """Stop instances, fronts and machines. The next run on the same state restarts them."""
    stops = [cloud.runtimes.fronts.close(name) for name, _ in cloud.store.under("run.services")]
    stops += [cloud.runtimes.revisions.stop(name) for name, _ in cloud.store.under("run.revisions")]
    stops += [cloud.runtimes.machines.stop(name) for name, _ in cloud.store.under("tpu.nodes")]
    await asyncio.gather(*stops)
