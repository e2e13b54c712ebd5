"""Identify who sent a request to a loopback port: a client of this user, a web page in a browser, or another user of the machine."""

import ipaddress
import os
import re
import socket
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

SHARED_QUOTA_HEADER: Final = "X-Localcloud-Shared-Quota"
"""Header of the gcloud stand-in, whose own calls count against a Google project with these APIs enabled
(cloud.google.com/docs/quotas/set-quota-project, 2026-11: "the gcloud CLI shared project is sometimes used as the quota project")."""

_ALLOWED_SITES: Final = ("", "none")
"""Values of Sec-Fetch-Site for requests that no web page sent, so the header is absent, or the user typed the address."""
_LOOPBACK_NAMES: Final = ("localhost", "[::1]")
_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_ESTABLISHED: Final = "01"
_ROOT: Final = 0
_SOCK_DIAG: Final = 4
"""The kernel protocol for socket queries, NETLINK_SOCK_DIAG. Numbers and layouts: sock_diag(7)."""
_BY_FAMILY: Final = 20
_REQUEST: Final = 1
_OPEN: Final = 1
_QUERY: Final = struct.Struct("=IHHII BBBBI 4s16s16sI8s")
"""A netlink header and `inet_diag_req_v2`: the connection by its ports and addresses, of any interface, without a cookie."""
_ANSWER: Final = struct.Struct("=IHHII BBBB 4s32sI8s IIII")
"""A netlink header and the start of `inet_diag_msg`; the last number is the user id."""
_REGION: Final = re.compile(r"^[a-z]+-[a-z]+[0-9]+-(?=[0-9])")


def foreign_host(given: str | None, *, address: str, port: int) -> bool:
    """Return whether a Host header names a host other than `address`, localhost or [::1], each with the port (without it if the port is 80).

    A web page that resolves its own name to a loopback address (DNS rebinding) still sends its own name. gcloud puts a region before the
    address, `us-east4-127.0.0.1`. A browser rejects such a name because a host that ends in a number must be an IPv4 address (WHATWG URL).
    """
    if given is None:
        return True
    names = {address, *_LOOPBACK_NAMES}
    allowed = {f"{name}:{port}" for name in names} | (names if port == 80 else set[str]())  # noqa: PLR2004 - HTTP's default port
    return _REGION.sub("", given.lower()) not in allowed


def web_page_header(headers: Mapping[str, str]) -> str | None:
    """Return the header that only a browser sends for a web page, with its value, or None.

    Origin: Fetch Standard, "Origin" header. Sec-Fetch-Site: W3C, Fetch Metadata Request Headers, section 2.3.
    """
    if "Origin" in headers:
        return f"Origin: {headers['Origin']}"
    site = headers.get("Sec-Fetch-Site", "")
    return None if site.lower() in _ALLOWED_SITES else f"Sec-Fetch-Site: {site}"


def other_user(client: tuple[str, int], server: tuple[str, int]) -> bool:
    """Return whether another user of this machine owns the client end of a connection. Root does not count as another user.

    Linux knows the user of every connection. Other systems do not report it, so there no user counts as another one.
    Both ends must be open: for a connection that its user has closed, the kernel reports root.
    Reading the list of all connections takes milliseconds, so query the kernel for this one first.
    """
    if not _TABLES[0].exists():
        return False
    user = _user_of(client, server)
    return _listed_other_user(client, server) if user is None else _is_other(user)


def _is_other(user: int) -> bool:
    return user not in {_ROOT, os.geteuid()}


def _user_of(client: tuple[str, int], server: tuple[str, int]) -> int | None:
    """Return the user of the client end of an open connection. None if the kernel does not find it or does not support such queries."""
    ends = [ipaddress.ip_address(address) for address, _ in (client, server)]
    ports = struct.pack("!HH", client[1], server[1])
    addresses = [end.packed.ljust(16, b"\0") for end in ends]
    family = socket.AF_INET if ends[0].version == 4 else socket.AF_INET6  # noqa: PLR2004 - IPv4
    header = (_QUERY.size, _BY_FAMILY, _REQUEST, 0, 0)
    wanted = (family, socket.IPPROTO_TCP, 0, 0, 1 << _OPEN, ports, *addresses, 0, b"\xff" * 8)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
            kernel.settimeout(1.0)
            kernel.send(_QUERY.pack(*header, *wanted))
            answer = kernel.recv(4096)
    except OSError:
        return None
    if len(answer) < _ANSWER.size:
        return None
    _, kind, _, _, _, _, state, _, _, found, *_, user = _ANSWER.unpack_from(answer)
    return user if (kind, state, found) == (_BY_FAMILY, _OPEN, ports) else None


def _listed_other_user(client: tuple[str, int], server: tuple[str, int]) -> bool:
    ends = {f"{left} {right}" for left, right in zip(_ends(client), _ends(server), strict=True)}
    for table in _TABLES:
        for line in _lines(table):
            number, local, remote, state, *rest = line.split()
            if number.endswith(":") and state == _ESTABLISHED and f"{local} {remote}" in ends:
                return _is_other(int(rest[3]))
    return True


def _lines(table: Path) -> list[str]:
    try:
        return table.read_text(encoding="ascii").splitlines()[1:]
    except OSError:
        return []


def _ends(end: tuple[str, int]) -> tuple[str, str]:
    """Return an address as the lists of IPv4 and IPv6 connections print it: words in the machine's byte order."""
    address = ipaddress.ip_address(end[0])
    wide = address if address.version == 6 else ipaddress.IPv6Address(f"::ffff:{address}")  # noqa: PLR2004 - IPv6
    mapped = wide.ipv4_mapped
    words = [wide.packed[at : at + 4] for at in range(0, 16, 4)]
    shown = "".join(f"{_word(word):08X}" for word in words)
    narrow = f"{_word(mapped.packed):08X}" if mapped is not None else ""
    return f"{narrow}:{end[1]:04X}", f"{shown}:{end[1]:04X}"


def _word(four: bytes) -> int:
    return int.from_bytes(four, sys.byteorder)
