"""Placeholders for values that identify someone or grant access. The same value always gets the same placeholder.

A placeholder has the format of the original, so the local cloud accepts it.
"""

import ipaddress
import re
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Final


class Kind(Enum):
    """Kind of a replaced value, with its display name."""

    PROJECT = "project id"
    NUMBER = "number of a project, folder or organization"
    ACCOUNT = "service account"
    PERSON = "e-mail address"
    PRINCIPAL = "principal of a workload identity"
    DOMAIN = "domain"
    BILLING = "billing or customer account"
    TOKEN = "token"  # noqa: S105 - a name
    KEY = "key"
    SECRET = "secret"  # noqa: S105 - a name
    ADDRESS = "address"
    HOST = "part of a service's URL"


_LEAST_SEARCHED: Final = {
    Kind.PROJECT: 6,
    Kind.NUMBER: 6,
    Kind.PERSON: 6,
    Kind.BILLING: 6,
    Kind.TOKEN: 8,
    Kind.KEY: 8,
    Kind.SECRET: 8,
}
"""Kind -> minimum length of a value that is replaced in every text, even if neither its form nor its field shows its kind.

Shorter values match by chance. Values of the other kinds are recognized by their form in any text.
"""
_TEST_NETS: Final = ("203.0.113", "198.51.100", "192.0.2")
"""Addresses for documentation (RFC 5737)."""
_PUBLIC_RANGES: Final = tuple(
    ipaddress.ip_network(text) for text in ("35.235.240.0/20", "199.36.153.0/24", "8.8.8.0/24")
)
"""Google's public addresses, the same for every user: IAP's tunnel sources, the private API addresses, public DNS."""

_PROJECT: Final = r"(?:[a-z0-9-]+(?:\.[a-z0-9-]+)+:)?[a-z][a-z0-9-]{4,}[a-z0-9]"
_PEM: Final = re.compile(r"-----BEGIN [A-Z ]+-----.*?(?:-----END [A-Z ]+-----|\Z)", re.DOTALL)
_SSH: Final = re.compile(
    r"(?P<type>ssh-(?:rsa|dss|ed25519)|ecdsa-[\w-]+|sk-[\w@.-]+) [A-Za-z0-9+/=]{16,}(?: [^\s\"\\,}]+)?"
)
_SSH_USER: Final = re.compile(r"(?m)^(?P<user>[^\s:]+)(?=:(?:ssh-|ecdsa-|sk-))")
_TOKENS: Final = re.compile(
    r"ya29\.[\w.-]{8,}"  # Google access token
    r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"  # JSON Web Token
    r"|1//[\w-]{20,}"  # Google refresh token
    r"|hf_[A-Za-z0-9_]{16,}|pul-[0-9a-f]{32,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|dckr_pat_[\w-]{16,}"
)
_KEYS: Final = re.compile(r"AIza[\w-]{30,}|GOCSPX-[\w-]{16,}|\b(?:AKIA|ASIA|GOOG)[A-Z0-9]{16,}|\bsk-[A-Za-z0-9_-]{20,}")
_BEARER: Final = re.compile(r"(?i)(?P<before>\bbearer\s+)(?P<value>[\w.~+/=-]{8,})")
_PARAMETER: Final = re.compile(
    r"(?i)(?P<before>(?:access_token|oauth_token|id_token|[?&]key|upload_id|x-goog-signature|x-goog-credential)=)(?P<value>[^&\s\"'\\]+)"
)
_USERINFO: Final = re.compile(r"(?P<before>://[^/\s:@]+:)(?P<value>[^/\s@]+)(?=@)")
_EMAIL: Final = re.compile(r"(?P<local>[A-Za-z0-9._%+-]+)@(?P<domain>[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,})")
_ACCOUNTS: Final = ".gserviceaccount.com"
_MANAGED: Final = re.compile(r"(?:service-)?(?P<number>\d{6,})(?:-compute)?|(?P<cloud_build>\d{6,})@cloudbuild")
_PRINCIPAL: Final = re.compile(
    r"(?P<before>principal(?:Set)?://iam\.googleapis\.com/projects/\d+/locations/global/workloadIdentityPools/)(?P<value>[^\s\"',]+)"
)
_DOMAIN: Final = re.compile(r"(?P<before>\bdomain:)(?P<value>[\w.-]+)")
_BILLING: Final = re.compile(r"\b[0-9A-F]{6}-[0-9A-F]{6}-[0-9A-F]{6}\b|(?<=\")C0[0-9a-z]{7}(?=\")")
_NUMBER: Final = re.compile(r"(?P<before>(?:projects|organizations|folders)/)(?P<value>\d{6,})")
_NAMED: Final = re.compile(rf"(?P<before>projects/)(?P<value>{_PROJECT})(?![A-Za-z0-9._~%-])")
_REGISTRY: Final = re.compile(rf"(?P<before>-docker\.pkg\.dev/)(?P<value>{_PROJECT})(?=/)")
_SERVICE_HOST: Final = re.compile(r"(?P<before>-)(?P<value>\d{9,})(?=\.[a-z0-9-]+\.run\.app)")
_IPV4: Final = re.compile(r"(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?![\d.]*\d)")
_IPV6: Final = re.compile(r"(?<![\w:.])[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?![\w:])")
_HASH: Final = re.compile(r"(?P<before>-)(?P<value>[a-z0-9]{10})(?=-[a-z]{2}\.a\.run\.app)")
"""The part of a Cloud Run URL that all services of a project and region share."""


class Placeholders:
    """Finds and replaces values. It remembers every value."""

    def __init__(self, *, secrets: Iterable[tuple[Kind, str]] = ()) -> None:
        self._placeholders: dict[tuple[Kind, str], str] = {}
        self._issued: set[str] = set()
        self._searched: dict[str, str] = {}
        self._pattern: re.Pattern[str] | None = None
        self._used: set[str] = set()
        for kind, value in secrets:
            self._issue(kind, value)

    def learn(self, kind: Kind, value: str) -> str:
        """Return the placeholder of a value, creating one for a new value. From then on, the value is replaced wherever it appears."""
        placeholder = self._issue(kind, value)
        self._used.add(placeholder)
        return placeholder

    def _issue(self, kind: Kind, value: str) -> str:
        if not value or value in self._issued:
            return value
        found = self._placeholders.get((kind, value))
        if found is not None:
            return found
        number = 1 + sum(1 for known, _ in self._placeholders if known is kind)
        placeholder = _format(kind, number, value)
        self._placeholders[kind, value] = placeholder
        self._issued.add(placeholder)
        if len(value) >= _LEAST_SEARCHED.get(kind, len(value) + 1):
            self._searched.setdefault(value, placeholder)
            self._pattern = None
        return placeholder

    def text(self, value: str) -> str:
        """Return a text with all values replaced that are known or recognized by their form."""
        for pattern, replacement in self._forms():
            value = pattern.sub(replacement, value)
        return self.known(value)

    def known(self, value: str) -> str:
        """Return a text with all known values replaced, longest first."""
        if not self._searched:
            return value
        if self._pattern is None:
            parts = sorted(self._searched, key=len, reverse=True)
            self._pattern = re.compile(
                "|".join(rf"(?<!\d){part}(?!\d)" if part.isdigit() else re.escape(part) for part in parts)
            )
        return self._pattern.sub(self._replaced, value)

    def _replaced(self, found: re.Match[str]) -> str:
        placeholder = self._searched[found[0]]
        self._used.add(placeholder)
        return placeholder

    def _forms(self) -> tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], str]], ...]:
        return (
            (_PEM, self._whole(Kind.KEY)),
            (_SSH_USER, self._whole(Kind.ACCOUNT)),
            (_SSH, lambda found: f"{found['type']} {self.learn(Kind.KEY, found[0].split(' ', 1)[1])}"),
            (_TOKENS, self._whole(Kind.TOKEN)),
            (_KEYS, self._whole(Kind.KEY)),
            (_BEARER, self._part(Kind.TOKEN)),
            (_PARAMETER, self._part(Kind.TOKEN)),
            (_USERINFO, self._part(Kind.SECRET)),
            (_PRINCIPAL, self._part(Kind.PRINCIPAL)),
            (_EMAIL, self._email),
            (_DOMAIN, self._part(Kind.DOMAIN)),
            (_BILLING, self._whole(Kind.BILLING)),
            (_NUMBER, self._part(Kind.NUMBER)),
            (_NAMED, self._part(Kind.PROJECT)),
            (_REGISTRY, self._part(Kind.PROJECT)),
            (_SERVICE_HOST, self._part(Kind.NUMBER)),
            (_HASH, self._part(Kind.HOST)),
            (_IPV4, self._address),
            (_IPV6, self._address),
        )

    def _whole(self, kind: Kind) -> Callable[[re.Match[str]], str]:
        return lambda found: self.learn(kind, found[0])

    def _part(self, kind: Kind) -> Callable[[re.Match[str]], str]:
        return lambda found: found["before"] + self.learn(kind, found["value"])

    def _email(self, found: re.Match[str]) -> str:
        local, domain = found["local"], found["domain"]
        if found[0] in self._issued:
            return found[0]
        if not domain.endswith(_ACCOUNTS):
            return self.learn(Kind.PERSON, found[0])
        if _MANAGED.fullmatch(local):
            return f"{re.sub('[0-9]{6,}', lambda number: self.learn(Kind.NUMBER, number[0]), local)}@{domain}"
        owner = domain.removesuffix(_ACCOUNTS).removesuffix(".iam")
        if owner == "appspot":
            return f"{self.learn(Kind.PROJECT, local)}@{domain}"
        if not domain.endswith(f".iam{_ACCOUNTS}"):
            return self.learn(Kind.PERSON, found[0])
        return f"{self.learn(Kind.ACCOUNT, local)}@{self.learn(Kind.PROJECT, owner)}.iam{_ACCOUNTS}"

    def _address(self, found: re.Match[str]) -> str:
        try:
            address = ipaddress.ip_address(found[0])
        except ValueError:
            return found[0]
        ours = any(address in network for network in _PUBLIC_RANGES if network.version == address.version)
        return found[0] if ours or not address.is_global else self.learn(Kind.ADDRESS, found[0])


_FORMATS: Final[dict[Kind, str]] = {
    Kind.PROJECT: "project-{number}",
    Kind.NUMBER: "1000000{number:05d}",
    Kind.ACCOUNT: "account-{number}",
    Kind.PERSON: "person-{number}@example.com",
    Kind.PRINCIPAL: "pool/subject/principal-{number}",
    Kind.DOMAIN: "domain-{number}.example.com",
    Kind.BILLING: "000000-000000-{number:06d}",
    Kind.TOKEN: "token-{number}",
    Kind.KEY: "key-{number}",
    Kind.SECRET: "secret-{number}",
    Kind.HOST: "host{number:06d}",
}


def _format(kind: Kind, number: int, value: str) -> str:
    if kind is not Kind.ADDRESS:
        return _FORMATS[kind].format(number=number)
    if ":" in value:
        return f"2001:db8::{number:x}"
    return f"{_TEST_NETS[(number - 1) // 254 % len(_TEST_NETS)]}.{(number - 1) % 254 + 1}"
