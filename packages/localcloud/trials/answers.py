"""Write answers to the `tried` field of the entries in a checkout, or to a separate file, with words in place of what identifies or grants access."""

import ipaddress
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from localcloud.json_values import as_object
from localcloud.ledger.entries import CriticalAssumption
from localcloud.trials.judging import Judgement
from localcloud.trials.resources import PREFIX

LEDGER: Final = Path(__file__).resolve().parents[1] / "ledger" / "critical.toml"
PROJECT = "PROJECT"
NUMBER = "NUMBER"
PERSON = "PERSON"
BILLING = "BILLING"
TOKEN = "TOKEN"  # noqa: S105 - a placeholder
KEY = "KEY"
SECRET = "SECRET"  # noqa: S105 - a placeholder
_ADDRESS: Final = "ADDRESS"
_LEAST_LENGTHS: Final = {PROJECT: 6, NUMBER: 6, PERSON: 6, BILLING: 6, TOKEN: 8, KEY: 8, SECRET: 8}
"""Minimum length of a value that is replaced in every text, by its placeholder. Shorter ones match by chance; other words stand for a form alone."""
_PUBLIC_RANGES: Final = tuple(
    ipaddress.ip_network(text) for text in ("35.235.240.0/20", "199.36.153.0/24", "8.8.8.0/24")
)
"""Google's public addresses, the same for every user: IAP's tunnel sources, the private API addresses, public DNS."""
_ID: Final = r"(?P<value>(?:[a-z0-9-]+(?:\.[a-z0-9-]+)+:)?[a-z][a-z0-9-]{4,}[a-z0-9])"
_LOCAL: Final = r"(?<![\w.%+-])(?!(?:service-)?NUMBER|PROJECT@|ACCOUNT@)(?P<value>[A-Za-z0-9._%+-]+"
_ACCOUNTS: Final = r"\.gserviceaccount\.com"
_FORMS: Final = tuple(
    (re.compile(pattern), word)
    for pattern, word in (
        (r"(?P<value>-----BEGIN [A-Z ]+-----(?s:.*?)(?:-----END [A-Z ]+-----|\Z))", KEY),
        (r"(?m:^)(?P<value>[^\s:]+)(?=:(?:ssh-|ecdsa-|sk-))", "ACCOUNT"),
        (
            r"(?:ssh-(?:rsa|dss|ed25519)|ecdsa-[\w-]+|sk-[\w@.-]+) (?P<value>[A-Za-z0-9+/=]{16,}(?: [^\s\"\\,}]+)?)",
            KEY,
        ),
        (r"(?P<value>ya29\.[\w.-]{8,})", TOKEN),  # Google access token
        (r"(?P<value>eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)", TOKEN),  # JSON Web Token
        (r"(?P<value>1//[\w-]{20,})", TOKEN),  # Google refresh token
        (r"(?P<value>hf_[A-Za-z0-9_]{16,}|pul-[0-9a-f]{32,}|dckr_pat_[\w-]{16,})", TOKEN),
        (r"(?P<value>gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,})", TOKEN),
        (r"(?P<value>AIza[\w-]{30,}|GOCSPX-[\w-]{16,}|\b(?:AKIA|ASIA|GOOG)[A-Z0-9]{16,}|\bsk-[A-Za-z0-9_-]{20,})", KEY),
        (r"(?i:\bbearer\s+)(?P<value>[\w.~+/=-]{8,})", TOKEN),
        (
            r"(?i:access_token|oauth_token|id_token|[?&]key|upload_id|x-goog-signature|x-goog-credential)=(?P<value>[^&\s\"'\\]+)",
            TOKEN,
        ),
        (r"://[^/\s:@]+:(?P<value>[^/\s@]+)(?=@)", SECRET),
        (r"(?<=/workloadIdentityPools/)(?P<value>[^\s\"',]+)", "PRINCIPAL"),
        (rf"(?<![\w-])(?:service-)?(?P<value>\d{{6,}})(?=(?:-compute)?@[\w.-]+{_ACCOUNTS})", NUMBER),
        (rf"(?P<value>[a-z0-9-]+)(?=@appspot{_ACCOUNTS})", PROJECT),
        (rf"{_LOCAL})(?=@[\w.-]+\.iam{_ACCOUNTS})", "ACCOUNT"),
        (rf"(?<=ACCOUNT@)(?P<value>[\w.-]+)(?=\.iam{_ACCOUNTS})", PROJECT),
        (rf"{_LOCAL}@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{{2,}})", PERSON),
        (r"\bdomain:(?P<value>[\w.-]+)", "DOMAIN"),
        (r"(?P<value>\b[0-9A-F]{6}-[0-9A-F]{6}-[0-9A-F]{6}\b|(?<=\")C0[0-9a-z]{7}(?=\"))", BILLING),
        (r"(?:projects|organizations|folders)/(?P<value>\d{6,})", NUMBER),
        (rf"projects/{_ID}(?![A-Za-z0-9._~%-])", PROJECT),
        (rf"-docker\.pkg\.dev/{_ID}(?=/)", PROJECT),
        (r"-(?P<value>\d{9,})(?=\.[a-z0-9-]+\.run\.app)", NUMBER),
        (r"-(?P<value>[a-z0-9]{10})(?=-[a-z]{2}\.a\.run\.app)", "HOST"),  # of all services of a project and region
        (r"(?<![\d.])(?P<value>\d{1,3}(?:\.\d{1,3}){3})(?![\d.]*\d)", _ADDRESS),
        (r"(?<![\w:.])(?P<value>[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7})(?![\w:])", _ADDRESS),
    )
)
"""Form of a value in any text, and its placeholder."""
_RECORDED: Final = re.compile(r"\d{4}-\d\d-\d\d, a real project: (as assumed|differs): [^\x00-\x1f]{1,400}")
_OWN_NAME: Final = re.compile(rf"{PREFIX}[a-z0-9]+(-[a-z]+)?")
_PROJECTS: Final = ("GOOGLE_CLOUD_PROJECT", "GOOGLE_PROJECT", "GCLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT")
_SECRETIVE: Final = re.compile(r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIALS|API_?KEY|PRIVATE_?KEY")
_FILES: Final = ("PULUMI_CONFIG_PASSPHRASE_FILE", "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE", "GOOGLE_APPLICATION_CREDENTIALS")
_CREDENTIAL_FIELDS: Final = {
    "private_key": KEY,
    "private_key_id": KEY,
    "client_id": KEY,
    "client_secret": SECRET,
    "refresh_token": TOKEN,
    "project_id": PROJECT,
    "quota_project_id": PROJECT,
}
_MOST_FILE_BYTES: Final = 1 << 16


class Redaction:
    """Puts words in place of values that identify a user or grant access: known ones, and those that it finds by their form."""

    def __init__(self, known: Iterable[tuple[str, str]]) -> None:
        """Start with known values, each with its placeholder."""
        self._words: dict[str, str] = {}
        for word, value in known:
            self._learn(word, value)

    def text(self, text: str) -> str:
        """Return a redacted text, with TRY in place of the names that the trials chose."""
        text = _OWN_NAME.sub("TRY", text)
        for pattern, word in _FORMS:
            text = pattern.sub(partial(self._replaced, word), text)
        longest_first = sorted(self._words, key=len, reverse=True)
        known = "|".join(rf"(?<!\d){value}(?!\d)" if value.isdigit() else re.escape(value) for value in longest_first)
        return re.sub(known, lambda found: self._words[found[0]], text) if known else text

    def _learn(self, word: str, value: str) -> None:
        if len(value) >= _LEAST_LENGTHS.get(word, len(value) + 1):
            self._words.setdefault(value, word)

    def _replaced(self, word: str, found: re.Match[str]) -> str:
        if word == _ADDRESS and not _identifies(found["value"]):
            return found[0]
        self._learn(word, found["value"])
        return found[0].replace(found["value"], word)


def _identifies(address: str) -> bool:
    """Return whether a text is a public address, and not a well-known address of Google."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    return parsed.is_global and not any(
        parsed in network for network in _PUBLIC_RANGES if network.version == parsed.version
    )


def known_secrets(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the values of the environment and its credential files that no written answer may contain, each with its placeholder."""
    for name in _PROJECTS:
        yield PROJECT, environment.get(name, "")
    yield PERSON, environment.get("CLOUDSDK_CORE_ACCOUNT", "")
    for name, value in environment.items():
        if _SECRETIVE.search(name) and "/" not in value[:1]:
            yield (TOKEN if "TOKEN" in name else SECRET), value
    for name in _FILES:
        yield from _in_file(environment.get(name, ""))


def _in_file(name: str) -> Iterator[tuple[str, str]]:
    path = Path(name)
    try:
        text = path.read_text(encoding="utf-8") if name and path.stat().st_size <= _MOST_FILE_BYTES else ""
    except (OSError, UnicodeDecodeError):
        return
    try:
        document = as_object(json.loads(text))
    except ValueError:
        yield SECRET, text.strip()
        return
    for key, word in _CREDENTIAL_FIELDS.items():
        yield word, str(document.get(key) or "")


def tried(day: str, judgement: Judgement, redaction: Redaction, where: str) -> str:
    """Return the text of `tried`, which a page shows as code."""
    answered = redaction.text(judgement.answered)
    return f"{day}, {where}: {judgement.verdict}: {''.join(char if _is_code(char) else ' ' for char in answered)}"


def is_recordable(text: object) -> bool:
    """Return whether a text has the form of `tried`, of a real project, and nothing in it identifies or grants access."""
    is_of_form = isinstance(text, str) and _RECORDED.fullmatch(text) is not None
    return is_of_form and all(map(_is_code, str(text))) and Redaction(()).text(str(text)) == text


def _is_code(char: str) -> bool:
    """Return whether a character can be part of a code span in one line of Markdown."""
    return char.isprintable() and char != "`"


def form(written: Mapping[str, str], entries: Sequence[CriticalAssumption], usd: float) -> str:
    """Return the text for an issue: how many entries were tried, and each answer with the effect if it differs."""
    known = {entry.id: entry for entry in entries}
    tried_ones = [name for name in known if name in written]
    lines = [f"{len(tried_ones)} of {len(known)} critical assumptions tried, at most {usd:.2f} USD.", ""]
    for name, text in written.items():
        lines.append(f"- `{name}`: {text}")
        if ": differs: " in text and name in known:
            lines += [f"  - assumed: {known[name].statement}", f"  - effect: {known[name].if_false}"]
    return "\n".join(lines) + "\n"


def is_checkout() -> bool:
    """Return whether the ledger's files belong to a checkout of the project."""
    return (Path(__file__).resolve().parents[3] / "Pulumi.yaml").is_file()


def write_to_ledger(name: str, text: str) -> None:
    """Write the `tried` text of an entry to the ledger's file."""
    blocks = re.split(r"(?m)^(?=\[\[)", LEDGER.read_text(encoding="utf-8"))
    at = next(at for at, block in enumerate(blocks) if re.search(rf'(?m)^id = "{re.escape(name)}"$', block))
    before, _, after = re.split(r"(?m)^(tried = .*)$", blocks[at], maxsplit=1)
    blocks[at] = f"{before}tried = {json.dumps(text, ensure_ascii=False)}{after}"
    new = LEDGER.with_suffix(".new")
    new.write_text("".join(blocks), encoding="utf-8")
    new.replace(LEDGER)


def write_to_file(path: Path, answers: Mapping[str, str]) -> None:
    """Write all answers so far as one JSON object, by entry."""
    path.write_text(json.dumps(dict(answers), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
