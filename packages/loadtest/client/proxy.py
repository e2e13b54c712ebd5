"""HTTP proxy of the environment, for connections made without an HTTP library.

The rules match aiohttp with `trust_env`, as for the control calls: HTTP_PROXY, HTTPS_PROXY and NO_PROXY as `urllib.request`
reads them, without a proxy for loopback names. A server behind TLS is reached through CONNECT (RFC 9110, section 9.3.6), any other with
the full address in the request (RFC 9112, section 3.2.2).
"""

import asyncio
import base64
import socket
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from loadtest.client.urls import plain_url

LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
"""Names that never use a proxy, because they may be the local end of a tunnel."""
HEAD_LIMIT: Final = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpProxy:
    """A proxy addressed with plain HTTP."""

    host: str
    port: int
    authorization: str | None = field(default=None, repr=False)
    """Value of the Proxy-Authorization header."""

    @property
    def name(self) -> str:
        """Host and port, without credentials."""
        return f"{self.host}:{self.port}"


def proxy_of(url: str) -> HttpProxy | None:
    """Return the proxy for a URL according to the environment, or None.

    Raises ValueError if its address is not usable.
    """
    parts = urlsplit(plain_url(url))
    host = parts.hostname or ""
    if host in LOOPBACK:
        return None
    given = getproxies().get(parts.scheme)
    if not given or proxy_bypass(host):
        return None
    found = urlsplit(given if "://" in given else f"http://{given}")
    if found.scheme != "http" or not found.hostname:
        variable = f"{parts.scheme.upper()}_PROXY"
        raise ValueError(
            f"{variable} has the proxy type {found.scheme!r}. Set it to http://HOST:PORT, or add {host} to NO_PROXY."
        )
    authorization = None
    if found.username is not None:
        credentials = f"{unquote(found.username)}:{unquote(found.password or '')}"
        authorization = "Basic " + base64.b64encode(credentials.encode()).decode("ascii")
    return HttpProxy(host=found.hostname, port=found.port or 80, authorization=authorization)


async def open_tunnel(proxy: HttpProxy, host: str, port: int) -> socket.socket:
    """Return a socket connected to `host` through the proxy. Raises OSError if the proxy cannot be reached or refuses."""
    loop = asyncio.get_running_loop()
    family, kind, protocol, _, address = (await loop.getaddrinfo(proxy.host, proxy.port, type=socket.SOCK_STREAM))[0]
    connected = socket.socket(family, kind, protocol)
    try:
        connected.setblocking(False)
        await loop.sock_connect(connected, address)
        await _ask_for_tunnel(connected, proxy, host, port)
    except BaseException:
        connected.close()
        raise
    return connected


async def _ask_for_tunnel(connected: socket.socket, proxy: HttpProxy, host: str, port: int) -> None:
    loop = asyncio.get_running_loop()
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
    if proxy.authorization is not None:
        lines.append(f"Proxy-Authorization: {proxy.authorization}")
    await loop.sock_sendall(connected, "\r\n".join([*lines, "", ""]).encode("latin-1"))
    head = b""
    while b"\r\n\r\n" not in head and len(head) < HEAD_LIMIT and (data := await loop.sock_recv(connected, 4096)):
        head += data
    _, _, said = head.partition(b"\r\n")[0].partition(b" ")
    if said[:3] != b"200":
        answer = said.decode("latin-1") or "nothing"
        raise OSError(f"the proxy {proxy.name} returned {answer} for CONNECT {target}")
