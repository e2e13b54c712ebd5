"""Addresses of servers. `http+unix://%2Ftmp%2Fdir%2Fs` is plain HTTP over the socket /tmp/dir/s.

A port of 127.0.0.1 is open to every user of the machine and to every web page in a browser. A socket in a folder that only its owner can
open is not (unix(7), "Pathname socket ownership and permissions").
"""

from typing import Final
from urllib.parse import quote, unquote, urlsplit

_SCHEME: Final = "http+unix"
_PLAIN: Final = "http://localhost"


def unix_url(path: str) -> str:
    """Return the address of a server that listens on the socket at `path`."""
    return f"{_SCHEME}://{quote(path, safe='')}"


def socket_path(url: str) -> str | None:
    """Return the socket path in an address, or None for an address with a host and a port."""
    parts = urlsplit(url)
    return unquote(parts.netloc) if parts.scheme == _SCHEME else None


def plain_url(url: str) -> str:
    """Return the address for HTTP: `http://localhost` for a socket, any other address unchanged."""
    return _PLAIN + urlsplit(url).path if urlsplit(url).scheme == _SCHEME else url


def server_root(url: str) -> str:
    """Return the address in `--url` without a trailing slash or /v1. Raises ValueError, with a sentence, if it is not usable."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError(f"--url is {url!r}: expected http://HOST[:PORT] or https://HOST.")
    if parts.hostname == "localhost":
        raise ValueError("--url is localhost, which may resolve to IPv6 first and miss the server. Use 127.0.0.1.")
    return url.rstrip("/").removesuffix("/v1")
