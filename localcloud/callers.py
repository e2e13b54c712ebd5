"""Who sent a request to a loopback port: a client of this user, a web page in a browser, or another user of the machine."""

import ipaddress
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

SHARED_QUOTA_HEADER: Final = "X-Localcloud-Shared-Quota"
"""Header of the stand-in for gcloud, whose own calls count for a project of Google's with these APIs enabled
(cloud.google.com/docs/quotas/set-quota-project, 2026-11: "the gcloud CLI shared project is sometimes used as the quota project")."""

_ALLOWED_SITES: Final = ("", "none")
"""Values of Sec-Fetch-Site without a web page behind them: the header is absent, or a person typed the address."""
_LOOPBACK_NAMES: Final = ("localhost", "[::1]")
_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_ESTABLISHED: Final = "01"
_ROOT: Final = 0
_REGION: Final = re.compile(r"^[a-z]+-[a-z]+[0-9]+-(?=[0-9])")


def foreign_host(given: str | None, *, address: str, port: int) -> bool:
    """Tell if a Host header names neither `address`, localhost nor [::1], each with the port (without it if the port is 80).

    A web page that resolves its own name to a loopback address (DNS rebinding) still sends that name. gcloud puts a region before the
    address, `us-east4-127.0.0.1`; a browser takes no such name: a host that ends in a number has to be an IPv4 address (WHATWG URL).
    """
    if given is None:
        return True
    names = {address, *_LOOPBACK_NAMES}
    allowed = {f"{name}:{port}" for name in names} | (names if port == 80 else set[str]())  # noqa: PLR2004 - HTTP's default port
    return _REGION.sub("", given.lower()) not in allowed


def web_page_header(headers: Mapping[str, str]) -> str | None:
    """Return the header that only a browser sends for a web page, with its value; None if there is none.

    Origin: Fetch Standard, "Origin" header. Sec-Fetch-Site: W3C, Fetch Metadata Request Headers, section 2.3.
    """
    if "Origin" in headers:
        return f"Origin: {headers['Origin']}"
    site = headers.get("Sec-Fetch-Site", "")
    return None if site.lower() in _ALLOWED_SITES else f"Sec-Fetch-Site: {site}"


def other_user(client: tuple[str, int], server: tuple[str, int]) -> bool:
    """Tell if another user of this machine holds the client's end of a connection. Root is no other user.

    Linux lists every connection with its user. Other systems have no such list; there nobody counts as another user.
    Only a connection that is open at both ends counts: the list shows root for a connection that its user has closed.
    """
    if not _TABLES[0].exists():
        return False
    ends = {f"{left} {right}" for left, right in zip(_ends(client), _ends(server), strict=True)}
    for table in _TABLES:
        for line in _lines(table):
            number, local, remote, state, *rest = line.split()
            if number.endswith(":") and state == _ESTABLISHED and f"{local} {remote}" in ends:
                return int(rest[3]) not in {_ROOT, os.geteuid()}
    return True


def _lines(table: Path) -> list[str]:
    try:
        return table.read_text(encoding="ascii").splitlines()[1:]
    except OSError:
        return []


def _ends(end: tuple[str, int]) -> tuple[str, str]:
    """Return an address as the list of IPv4 and the list of IPv6 connections show it: words in the byte order of the machine."""
    address = ipaddress.ip_address(end[0])
    wide = address if address.version == 6 else ipaddress.IPv6Address(f"::ffff:{address}")  # noqa: PLR2004 - IPv6
    mapped = wide.ipv4_mapped
    words = [wide.packed[at : at + 4] for at in range(0, 16, 4)]
    shown = "".join(f"{_word(word):08X}" for word in words)
    narrow = f"{_word(mapped.packed):08X}" if mapped is not None else ""
    return f"{narrow}:{end[1]:04X}", f"{shown}:{end[1]:04X}"


def _word(four: bytes) -> int:
    return int.from_bytes(four, sys.byteorder)
