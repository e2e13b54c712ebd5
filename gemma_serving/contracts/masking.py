"""Mask secrets in untrusted text such as a container's output.

A group in a look-ahead that is then repeated by its name replaces a possessive quantifier, which Python 3.10 lacks: no quadratic time.
"""

import base64
import binascii
import json
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final
from urllib.parse import quote

MASK: Final = "[masked]"
_SHORTEST: Final = 6
"""A shorter value is not a secret, and masks words of the text."""
_URL_SAFE: Final = str.maketrans("+/", "-_")
_START: Final = r"(?:(?<![A-Za-z0-9])|(?<=%[0-9A-Fa-f]{2}))"
"""Start of a word, including in a URL. Only forms that are part of common words need it, such as `sk-` of `task-`."""
TOKEN_FORM: Final = re.compile(
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----[\s\S]*?(?:-----END [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\Z)"
    r"|hf_(?=[a-z]*[A-Z0-9]|[a-z]{30})[A-Za-z0-9]{6,}"  # Hugging Face; not its options, such as hf_overrides
    r"|ya29\.[\w.-]{6,}"  # Google access tokens
    r"|1//0[\w-]{20,}"  # Google refresh tokens
    r"|GOCSPX-[\w-]{10,}"  # secrets of Google OAuth clients
    r"|AIza[\w-]{20,}"  # Google API keys
    r"|eyJ[\w-]{6,2048}\.[\w-]+(?:\.[\w-]*)?"  # JSON web tokens; without a limit the search is quadratic in a long word
    r"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}"  # GitHub
    r"|glpat-[\w-]{16,}"  # GitLab
    rf"|{_START}pul-[0-9a-f]{{20,}}"  # Pulumi
    rf"|{_START}(?:AKIA|ASIA|GOOG1)[A-Z0-9]{{16,}}"  # access key ids of Amazon and Cloud Storage
    rf"|{_START}xox[a-z]-[\w-]{{10,}}|{_START}xapp-[\w-]{{10,}}"  # Slack
    rf"|{_START}(?:sk|rk)-[\w-]{{16,}}|{_START}(?:sk|rk)_(?:live|test)_\w{{10,}}"  # API keys of OpenAI and Stripe
    rf"|{_START}xai-[A-Za-z0-9]{{20,}}|{_START}nvapi-[\w-]{{20,}}"  # xAI and NVIDIA
    rf"|{_START}SG\.[\w-]{{16,}}\.[\w-]{{16,}}|{_START}dop_v1_[0-9a-f]{{32,}}"  # SendGrid and DigitalOcean
    r"|hooks\.slack\.com/(?:services|workflows|triggers)/[\w/-]{8,}"  # webhooks
    r"|discord(?:app)?\.com/api/(?:v\d{1,2}/)?webhooks/\d{6,}/[\w-]{8,}"
    r"|npm_[A-Za-z0-9]{30,}|dckr_pat_[\w-]{16,}|pypi-[\w-]{30,}"  # package and image registries
)
_PEM_LINE: Final = re.compile(r"^(?=[^\n]*[a-z])(?=[^\n]*[A-Z])(?=[^\n]*\d)[A-Za-z0-9+/]{60,76}={0,2}$", re.MULTILINE)
"""Line of a key whose first line is elsewhere. Not a hash: hashes have no capital letters."""
_PEM_BEGIN: Final = re.compile(r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_PEM_END: Final = re.compile(r"-----END [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_MOST_PEM_LINES: Final = 120
"""Lines of an RSA key of 8192 bits, with a margin. A first line alone must not hide all following text."""
_USER_AND_PASSWORD: Final = re.compile(
    r"(?<=://)(?P<user>[^\s/@:\[\"'<>]{0,256}:)(?:[^\s/\"'<>]{1,1024}|(?!\d{1,5}[/?#])[^\s\"'<>]{1,1024})(?=@)"
)
"""A password with a slash makes a URL invalid, and an error about it quotes the URL."""
_ONLY_A_TOKEN: Final = re.compile(r"(?<=://)(?=[^\s/@:\"'<>]{0,256}\d)[^\s/@:\"'<>]{16,256}(?=@)")
"""User of a URL that is a token, as git hosts accept it: long and with a digit, not `git`."""
_QUERY: Final = re.compile(
    r"(?P<name>(?:x-(?:goog|amz)-(?:signature|security-token)|[?&](?:signature|sig"
    r"|[\w.-]{0,64}(?:passw(?:or)?d|pwd|passphrase|secret|token|key)))(?:=|%3D))(?!\[masked\])[^\s&\"'<>]*[^\s&\"'<>:]",
    re.IGNORECASE,
)
_COOKIE: Final = re.compile(
    r"(?P<name>\b(?:set-)?cookie[\"']?\s{0,4}:\s{0,4}[\"']?)(?!\[masked\])[^\s=;\"']{1,128}=[^\r\n\"']+", re.IGNORECASE
)
_BASIC: Final = re.compile(r"(?P<name>\bbasic\s{1,4})(?P<value>[A-Za-z0-9+/]{8,4096}={0,2})", re.IGNORECASE)
_VALUE: Final = (
    r"(?=(?P<open>(?:(?!\[masked\])[\\\[(\"'])*))(?P=open)(?!\[masked\])"
    r"(?P<value>(?!expected |projects/[^/\s]+/secrets/)(?=(?P<run>(?:\[masked\]|\\(?![\"'])|[^\s\"',\])\\]){6,}))(?P=run)\]?)"
)
_NAMED: Final = re.compile(
    r"(?P<name>\bbearer(?=(?P<a>\s{1,4}))(?P=a)"
    r"|(?:\\?[\"'])?(?:api[_-]?key|account[_-]?key|access[_-]?key|private[_-]?key|(?<!secretmanager/)secret|passw(?:or)?d|passphrase|token"
    r"|_pat)(?:\\?[\"'])?(?=(?P<b>\s{0,4}))(?P=b)[:=](?!:)(?=(?P<c>\s{0,4}(?:bearer\s{1,4})?))(?P=c))"
    rf"{_VALUE}",
    re.IGNORECASE,
)
_NUMBER: Final = r"[+-]?\$?\d{1,15}(?:[.,:_]\d{1,15}){0,3}(?:e[+-]?\d{1,3})?"
_COUNT: Final = re.compile(
    rf"{_NUMBER}(?:[-/x]{_NUMBER})?(?:%|[a-z]{{1,2}}(?:/[a-z]{{1,9}})?|tok/s)?[.;]?", re.IGNORECASE
)
"""A number with its unit, a share or a range, as written in logs."""


def masked(text: str, secrets: Iterable[str] = ()) -> str:
    """Return the text without the given secrets, tokens of known forms, and values named key, token, secret or password."""
    if len(text) < _SHORTEST:
        return text
    # Copy first, because the agent's threads add secrets while others mask.
    known = {form for secret in tuple(secrets) for form in _forms(secret.strip())}
    for form in sorted(known, key=len, reverse=True):
        text = text.replace(form, MASK)
    folded = text.casefold()
    for marks, pattern, replacement in _PASSES:
        if any(mark in folded for mark in marks):
            text = pattern.sub(replacement, text)
    return text


@lru_cache(maxsize=256)
def _forms(secret: str) -> "tuple[str, ...]":
    """Return a value as plain text, JSON, URL, hex and base64, also within a longer base64 text, which shifts it."""
    if len(secret) < _SHORTEST or secret in MASK:
        return ()
    data, quoted = secret.encode(errors="replace"), json.dumps(secret)[1:-1]
    forms = {secret, quoted, quoted.replace("/", "\\/"), json.dumps(quoted)[1:-1], data.hex(), data.hex().upper()}
    forms.add(json.dumps(secret, ensure_ascii=False)[1:-1])
    for safe in ("", "/", "/+"):
        url = quote(data, safe=safe)
        forms |= {url, url.replace("%20", "+"), re.sub("%..", lambda found: found[0].lower(), url)}
    for shift in range(3):
        # The first characters depend on the bytes before the value, and the last ones on those after it.
        whole = base64.b64encode(bytes(shift) + data).decode().rstrip("=")
        parts = {whole[-(-8 * shift // 6) : (len(data) + shift) * 8 // 6], whole if shift == 0 else ""}
        forms |= parts | {part.translate(_URL_SAFE) for part in parts}
    return tuple(form for form in forms if form)


@dataclass
class LineMask:
    """Masks lines in sequence. A private key spread over several lines is masked completely."""

    secrets: Collection[str] = field(default=(), repr=False)
    _left: int = 0
    """Lines that may still belong to the current key."""

    def __call__(self, line: str) -> str:
        """Return the next line without secrets."""
        if self._left:
            end = _PEM_END.search(line)
            self._left = 0 if end else self._left - 1
            return MASK + (masked(line[end.end() :], self.secrets) if end else "")
        begins = [found.end() for found in _PEM_BEGIN.finditer(line)]
        if begins and not _PEM_END.search(line, begins[-1]):
            self._left = _MOST_PEM_LINES
        return masked(line, self.secrets)


def _hidden(_: re.Match[str]) -> str:
    """Return the mask in place of a match."""
    return MASK


def _with_name(found: re.Match[str]) -> str:
    return f"{found['name']}{MASK}"


def _without_credentials(found: re.Match[str]) -> str:
    """Return `Basic` with a mask if a user and a password follow, and not a word of a sentence."""
    value = found["value"].rstrip("=")
    try:
        pair = base64.b64decode(value + "=" * (-len(value) % 4))
    except binascii.Error:
        return found[0]
    return f"{found['name']}{MASK}" if b":" in pair else found[0]


def _without_value(found: re.Match[str]) -> str:
    """Return the name with a mask. A number named token is a count: `time per output token: 12.3456 ms`."""
    if "token" in found["name"].lower() and _COUNT.fullmatch(found["value"]):
        return found[0]
    return f"{found['name']}{found['open']}{MASK}"


_TOKEN_MARKS: Final = (
    "-----begin ", "hf_", "ya29.", "1//0", "gocspx-", "aiza", "eyj", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-",
    "pul-", "akia", "asia", "goog1", "xox", "xapp-", "sk-", "rk-", "sk_", "rk_", "xai-", "nvapi-", "sg.", "dop_v1_", "hooks.slack.com/",
    "/webhooks/", "npm_", "dckr_pat_", "pypi-",
)  # fmt: skip
_PASSES: Final[tuple[tuple[tuple[str, ...], "re.Pattern[str]", "Callable[[re.Match[str]], str]"], ...]] = (
    (_TOKEN_MARKS, TOKEN_FORM, _hidden),
    (("",), _PEM_LINE, _hidden),
    (("://",), _ONLY_A_TOKEN, _hidden),
    (("://",), _USER_AND_PASSWORD, lambda found: f"{found['user']}{MASK}"),
    (("?", "&", "signature", "security-token"), _QUERY, _with_name),
    (("cookie",), _COOKIE, _with_name),
    (("basic",), _BASIC, _without_credentials),
    (("bearer", "key", "secret", "passw", "passphrase", "token", "_pat"), _NAMED, _without_value),
)
"""Patterns in order, each with strings of which one is in the casefolded text of every match, because that search takes a fiftieth of the time."""
