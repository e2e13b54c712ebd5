"""Starts both stand-ins on loopback ports, for PULUMI_DEBUG_PROVIDERS."""

import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import grpc.aio
from pulumi.runtime.proto import provider_pb2_grpc

from localcloud.plugins.docker import DockerProvider
from localcloud.plugins.gcp import GcpProvider
from localcloud.plugins.rest import LocalCloudTransport, RestTransport
from localcloud.plugins.servicer import Provider, ProviderServicer

_UNLIMITED: Final = -1
_GRACE_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Where the stand-ins listen, on 127.0.0.1."""

    gcp: int
    docker: int

    @property
    def debug_providers(self) -> str:
        """Return the value of PULUMI_DEBUG_PROVIDERS."""
        return f"gcp:{self.gcp},docker:{self.docker}"


@asynccontextmanager
async def serve(
    base_url: str,
    *,
    token: str | None = None,
    transport: RestTransport | None = None,
    environment: Mapping[str, str] | None = None,
    speed: float = 1.0,
) -> AsyncGenerator[Ports]:
    """Serve `gcp` and `docker` until the context ends.

    `base_url` is the local cloud's, such as `http://127.0.0.1:8080`; `token` its bearer token (else GOOGLE_OAUTH_ACCESS_TOKEN, else a fixed local
    one). `environment` (else the process's) gives project and region where the program's configuration does not. `transport` is for tests. `speed` is that
    of the cloud's clock, by which the time limits of operations pass.
    """
    gcp = GcpProvider(
        transport or LocalCloudTransport(base_url),
        token=token,
        environment=os.environ if environment is None else environment,
        speed=speed,
    )
    docker = DockerProvider()
    async with gcp.rest, _served(gcp) as gcp_port, _served(docker) as docker_port:
        yield Ports(gcp=gcp_port, docker=docker_port)


@asynccontextmanager
async def _served(provider: Provider) -> AsyncGenerator[int]:
    options = [("grpc.max_receive_message_length", _UNLIMITED), ("grpc.max_send_message_length", _UNLIMITED)]
    server: Any = grpc.aio.server(options=options)
    provider_pb2_grpc.add_ResourceProviderServicer_to_server(ProviderServicer(provider), server)
    port = int(server.add_insecure_port("127.0.0.1:0"))
    await server.start()
    try:
        yield port
    finally:
        # Before the event loop closes: a server that is collected later writes a traceback.
        await server.stop(_GRACE_S)
