"""What may differ between two clouds without meaning anything, each with its reason. Everything else that differs is reported."""

import ipaddress
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Varying:
    """Fields whose values are not compared; that they are there, and their types, are.

    `fields` are ends of the path of a field, such as `metadata.verb`; an item of a list is `[]`.
    """

    fields: tuple[str, ...]
    reason: str
    methods: str = ".*"
    sent_back: bool = False
    """True: later requests carry the value, so the replay puts the local cloud's in its place."""
    may_be_absent: bool = False
    """True: whether the field is there is not compared either."""

    @property
    def shown(self) -> str:
        """Return the fields for a page."""
        return ", ".join(f"`{name}`" for name in self.fields)

    def covers(self, method: str, field: str) -> bool:
        """Tell if a field of a method's answer is one of these."""
        ends = any(field == name or field.endswith(f".{name}") for name in self.fields)
        return ends and re.fullmatch(self.methods, method) is not None


VARYING: Final = (
    Varying(
        fields=("etag", "fingerprint", "labelFingerprint"),
        reason="The server assigns it anew with each change.",
        sent_back=True,
    ),
    Varying(
        fields=("id", "uid", "uniqueId", "oauth2ClientId", "targetId", "selfLinkWithId", "operationGroupId"),
        reason="The server assigns it when it creates the resource.",
        sent_back=True,
    ),
    Varying(
        fields=("generation", "metageneration", "observedGeneration"),
        reason="The server counts; Cloud Storage counts from the time.",
        sent_back=True,
    ),
    Varying(
        fields=("nextPageToken", "clientOperationId"),
        reason="It is opaque to clients.",
        sent_back=True,
    ),
    Varying(
        fields=("latestCreatedRevision", "latestReadyRevision", "revision"),
        reason="Cloud Run ends a revision's name with random letters.",
        sent_back=True,
    ),
    Varying(
        fields=("uri", "urls[]"),
        reason="Cloud Run forms a service's URL from the project; the local cloud's are ports.",
    ),
    Varying(
        fields=("mediaLink", "md5Hash", "crc32c", "size", "contentType"),
        reason="A recording does not keep the content of objects.",
        methods=r"storage\.objects\..*",
    ),
    Varying(
        fields=("queryValue",),
        reason="The program on the machine writes it, not Google; whether it is there is not compared either.",
        methods=r"tpu\..*",
        may_be_absent=True,
    ),
    Varying(fields=("creator", "lastModifier", "user"), reason="It names the caller, who is another one here."),
    Varying(
        fields=("progress",),
        reason="It depends on the moment.",
    ),
)

_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d.*")
_OPERATION: Final = re.compile(r"(?:.*/)?operations?[-/][^/]+")
_REVISION: Final = re.compile(r"(?:.*/revisions/)?[a-z][a-z0-9-]*-\d{5}-[a-z0-9]{3}")
_LONG_NUMBER: Final = re.compile(r"\d{15,}")
_CHANCE: Final = (
    (re.compile(r"Logs URL: \S+"), "Logs URL: ..."),
    (re.compile(r"https?://[^/\s]+/(?:compute/(?=compute/)|storage/(?=storage/))?"), "//"),
    (re.compile(r"(?<=-\d{5}-)[a-z0-9]{3}\b"), "..."),
    (re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "..."),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]*(?:Z|[+-]\d\d:\d\d)"), "..."),
)
"""Parts of texts that differ by chance, and what stands for them in the comparison."""


def varies(method: str, field: str, recorded: str, here: str) -> bool:
    """Tell if two texts at a field of an answer may differ."""
    return (
        any(each.covers(method, field) for each in VARYING)
        or all(_is_time(text) for text in (recorded, here))
        or any(all(form.fullmatch(text) for text in (recorded, here)) for form in (_OPERATION, _REVISION, _LONG_NUMBER))
        or all(_is_address(text) for text in (recorded, here))
    )


def is_free(method: str, field: str) -> bool:
    """Tell if a field is not compared at all."""
    return any(each.may_be_absent and each.covers(method, field) for each in VARYING)


def is_assigned(method: str, field: str, text: str) -> bool:
    """Tell if a value is the server's choice and later requests carry it."""
    return any(form.fullmatch(text) for form in (_OPERATION, _REVISION, _LONG_NUMBER)) or any(
        each.sent_back and each.covers(method, field) for each in VARYING
    )


def plain(text: str) -> str:
    """Return a text without what differs by chance inside of messages and URLs: hosts, the API's name before a path, random endings."""
    for form, replacement in _CHANCE:
        text = form.sub(replacement, text)
    return text


def _is_time(text: str) -> bool:
    if not _TIME.fullmatch(text):
        return False
    try:
        datetime.fromisoformat(re.sub(r"\.\d+", "", text))
    except ValueError:
        return False
    return True


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
