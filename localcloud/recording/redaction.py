"""Exchanges without what identifies somebody or opens something: by the names of fields, then by the form of the texts."""

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, cast
from urllib.parse import quote, unquote

import google_crc32c

from localcloud.json_values import JsonObject
from localcloud.recording.placeholders import Kind, Placeholders
from localcloud.recording.recordings import RecordedExchange

_FIELDS: Final[dict[str, Kind]] = {
    **dict.fromkeys(
        [
            "accessToken",
            "access_token",
            "idToken",
            "id_token",
            "token",
            "refreshToken",
            "refresh_token",
            "oauth_token",
            "assertion",
            "pageToken",
            "nextPageToken",
            "upload_id",
            "quotaUser",
        ],
        Kind.TOKEN,
    ),
    **dict.fromkeys(
        [
            "privateKey",
            "private_key",
            "privateKeyData",
            "private_key_id",
            "publicKeyData",
            "apiKey",
            "api_key",
            "keyString",
            "hmacKey",
        ],
        Kind.KEY,
    ),
    **dict.fromkeys(["password", "passphrase", "clientSecret", "client_secret", "secretValue"], Kind.SECRET),
    **dict.fromkeys(["projectId", "project", "userProject", "quotaProject", "consumerProject"], Kind.PROJECT),
    **dict.fromkeys(["projectNumber"], Kind.NUMBER),
    **dict.fromkeys(["accountId"], Kind.ACCOUNT),
    **dict.fromkeys(["customerId", "directoryCustomerId", "billingAccountName"], Kind.BILLING),
}
"""Fields of bodies and queries whose whole value is replaced."""
_CHOSEN_NAMES: Final = frozenset({"metadata", "labels", "annotations", "userLabels", "effectiveLabels"})
"""Fields whose object has names that the user chose."""
_SECRETIVE: Final = re.compile(r"(?i)token|secret|passw|passphrase|credential|api[-_]?key|private[-_]?key|^auth")
"""Names of environment variables and metadata whose whole value is replaced."""
_REFERENCE: Final = re.compile(r"projects/[^/]+/secrets/[^/]+(/versions/[^/]+)?|\d+|true|false|")
"""Values of such names that are no secrets: the name of a secret, numbers, nothing."""
_OPTION: Final = re.compile(r"--[\w-]*(?:api-key|token|password|secret)(?P<value>=.*)?", re.DOTALL)
"""Options of a command line whose value is replaced."""


class Redactor:
    """Replaces what identifies somebody or opens something in exchanges."""

    def __init__(self, placeholders: Placeholders) -> None:
        self._placeholders = placeholders

    def exchange(self, exchange: RecordedExchange) -> RecordedExchange:
        """Return the exchange with placeholders."""
        # The answers name project numbers and accounts that the paths show too.
        response = self._value(exchange.response, "")
        request = self._value(exchange.request, "")
        return replace(
            exchange,
            path=self._path(exchange.path),
            query={key: self._query(key, value) for key, value in exchange.query.items()},
            request=request,
            response=response,
            location=None if exchange.location is None else self._placeholders.text(exchange.location),
        )

    def _path(self, path: str) -> str:
        """Return a raw path with placeholders; an encoded slash stays encoded."""
        plain = unquote(re.sub("(?i)%2f", "%252F", path))
        return quote(self._placeholders.text(plain), safe="/:@!$&'()*+,;=~%")

    def _query(self, name: str, value: object) -> Any:  # noqa: ANN401 - a text or a list of texts
        if name == "key" and isinstance(value, str):
            return self._placeholders.learn(Kind.KEY, value)
        return self._value(value, name)

    def again(self, line: JsonObject) -> JsonObject:
        """Return a line of the file with the values that later exchanges gave away."""
        return cast("JsonObject", self._known(line))

    def _known(self, value: object) -> object:
        if isinstance(value, dict):
            return {self._placeholders.known(key): self._known(item) for key, item in cast("JsonObject", value).items()}
        if isinstance(value, list):
            return [self._known(item) for item in cast("list[object]", value)]
        return self._placeholders.known(value) if isinstance(value, str) else value

    def _value(self, value: object, name: str) -> Any:  # noqa: ANN401 - any JSON value
        if isinstance(value, dict):
            return self._object(cast("JsonObject", value), chosen=name in _CHOSEN_NAMES)
        if isinstance(value, list):
            return self._list(cast("list[object]", value), name)
        if isinstance(value, int) and not isinstance(value, bool) and _FIELDS.get(name) is Kind.NUMBER:
            return int(self._placeholders.learn(Kind.NUMBER, str(value)))
        return self._text(value, name) if isinstance(value, str) else value

    def _object(self, value: Mapping[str, object], *, chosen: bool = False) -> JsonObject:
        pair = value.get("name", value.get("key"))
        named = isinstance(pair, str) and _SECRETIVE.search(pair) is not None
        result: JsonObject = {}
        for key, item in value.items():
            hidden = (key == "value" and named) or (chosen and _SECRETIVE.search(key) is not None)
            if hidden and isinstance(item, str) and not _REFERENCE.fullmatch(item):
                result[key] = self._placeholders.learn(Kind.SECRET, item)
            elif key == "data" and isinstance(item, str):
                result[key] = self._placeholders.payload(item)
            else:
                result[self._placeholders.text(key)] = self._value(item, "" if chosen else key)
        if "dataCrc32c" in result and isinstance(result.get("data"), str):
            checksum = google_crc32c.Checksum(base64.b64decode(result["data"])).digest()
            result["dataCrc32c"] = str(int.from_bytes(checksum, "big"))
        if value.get("type") in {"organization", "folder"} and isinstance(value.get("id"), str):
            result["id"] = self._placeholders.learn(Kind.NUMBER, str(value["id"]))
        return result

    def _list(self, values: list[object], name: str) -> list[Any]:
        result: list[Any] = []
        is_value = False
        for item in values:
            option = _OPTION.fullmatch(item) if isinstance(item, str) else None
            if is_value and isinstance(item, str):
                result.append(self._placeholders.learn(Kind.SECRET, item))
            elif option is not None and option["value"]:
                head, _, secret = cast("str", item).partition("=")
                result.append(f"{head}={self._placeholders.learn(Kind.SECRET, secret)}")
            else:
                result.append(self._value(item, name))
            is_value = option is not None and option["value"] is None
        return result

    def _text(self, value: str, name: str) -> str:
        kind = _FIELDS.get(name)
        if kind is Kind.PROJECT and (value.isdigit() or "/" in value):
            return self._placeholders.text(value) if "/" in value else self._placeholders.learn(Kind.NUMBER, value)
        if kind is not None and value not in {"", "-"}:
            return self._placeholders.learn(kind, value)
        inner = _json_object(value)
        if inner is not None:
            return json.dumps(self._value(inner, name))
        return self._placeholders.text(value)


def _json_object(text: str) -> JsonObject | None:
    """Return the object that a text holds, such as a document in metadata."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return cast("JsonObject", value) if isinstance(value, dict) else None
