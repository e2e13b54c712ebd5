"""Start both stand-ins on loopback ports, for PULUMI_DEBUG_PROVIDERS."""

import os
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio

from localcloud.callers import other_user

if TYPE_CHECKING:
    from localcloud.plugins.rest import RestTransport
    from localcloud.plugins.servicer import Provider

_HOST: Final = "127.0.0.1"
_UNLIMITED: Final = -1
_GRACE_S: Final = 1.0


class _SameUser(grpc.aio.ServerInterceptor):
    """Rejects calls of other users of this machine. The engine sends no credentials, but a stand-in calls the local cloud with the operator's token."""

    address: tuple[str, int] = (_HOST, 0)
    """Address of the server."""

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:  # noqa: ANN401 - grpc has no types for them
        """Return the method's handler behind the check."""
        handler = await continuation(handler_call_details)
        if handler is None or handler.unary_unary is None:
            return handler

        async def checked(request: Any, context: Any) -> Any:  # noqa: ANN401 - as above
            host, _, port = str(context.peer()).removeprefix("ipv4:").rpartition(":")
            if other_user((host, int(port)), self.address):
                text = "the local cloud's plugins only serve the user who started the local cloud"
                await context.abort(grpc.StatusCode.PERMISSION_DENIED, text)
            return await handler.unary_unary(request, context)

        return grpc.unary_unary_rpc_method_handler(
            checked,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Ports of the stand-ins on 127.0.0.1."""

    gcp: int
    docker: int

    @property
    def debug_providers(self) -> str:
        """Return the value of PULUMI_DEBUG_PROVIDERS."""
        return f"gcp:{self.gcp},{self.docker_alone}"

    @property
    def docker_alone(self) -> str:
        """Return the value beside the real pulumi-gcp. Images are simulated there too: a real push would go to Google."""
        return f"docker:{self.docker}"


@asynccontextmanager
async def serve(
    base_url: str,
    *,
    token: str | None = None,
    transport: "RestTransport | None" = None,
    environment: Mapping[str, str] | None = None,
    speed: float = 1.0,
) -> AsyncGenerator[Ports]:
    """Serve `gcp` and `docker` until the context exits.

    `base_url` is the local cloud's, such as `http://127.0.0.1:8080`; `token` its bearer token (default: GOOGLE_OAUTH_ACCESS_TOKEN).
    `environment` (default: the process's) sets project and region if the program's configuration does not. `transport` is for tests. `speed` is the
    speed of the cloud's clock, which the time limits of operations follow.
    """
    known = os.environ if environment is None else environment
    own_token = token or known.get("GOOGLE_OAUTH_ACCESS_TOKEN")
    opened = [] if transport is None else [transport]

    def to_cloud() -> "RestTransport":
        from localcloud.plugins.rest import LocalCloudTransport  # noqa: PLC0415 - when an engine calls

        if not opened:
            opened.append(LocalCloudTransport(base_url))
        return opened[0]

    def gcp() -> "Provider":
        from localcloud.plugins.gcp import GcpProvider  # noqa: PLC0415 - when an engine calls

        return GcpProvider(to_cloud(), token=own_token, environment=known, speed=speed)

    def docker() -> "Provider":
        from localcloud.plugins.docker import DockerProvider  # noqa: PLC0415 - when an engine calls

        return DockerProvider(to_cloud(), token=own_token)

    try:
        async with _served(gcp) as gcp_port, _served(docker) as docker_port:
            yield Ports(gcp=gcp_port, docker=docker_port)
    finally:
        for each in opened:
            await each.close()


class _OnFirstCall(grpc.GenericRpcHandler):
    """The methods of a provider, which is made when the first of them is called: most clouds have no engine."""

    def __init__(self, make: "Callable[[], Provider]") -> None:
        self._make = make
        self._handlers: list[grpc.GenericRpcHandler] = []

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """Take the handlers of the generated code, as a server does."""
        self._handlers.extend(handlers)

    def service(self, handler_call_details: Any) -> Any:  # noqa: ANN401 - grpc has no types for them
        """Return the handler of a method."""
        if not self._handlers:
            from pulumi.runtime.proto import provider_pb2_grpc  # noqa: PLC0415 - when an engine calls

            from localcloud.plugins.servicer import ProviderServicer  # noqa: PLC0415 - when an engine calls

            server: Any = self
            provider_pb2_grpc.add_ResourceProviderServicer_to_server(ProviderServicer(self._make()), server)
        return next(filter(None, (each.service(handler_call_details) for each in self._handlers)), None)


@asynccontextmanager
async def _served(make: "Callable[[], Provider]") -> AsyncGenerator[int]:
    options = [("grpc.max_receive_message_length", _UNLIMITED), ("grpc.max_send_message_length", _UNLIMITED)]
    guard = _SameUser()
    server: Any = grpc.aio.server(options=options, interceptors=[guard])
    server.add_generic_rpc_handlers((_OnFirstCall(make),))
    port = int(server.add_insecure_port(f"{_HOST}:0"))
    guard.address = (_HOST, port)
    await server.start()
    try:
        yield port
    finally:
        # Before the event loop closes, because a server that is collected later writes a traceback.
        await server.stop(_GRACE_S)
