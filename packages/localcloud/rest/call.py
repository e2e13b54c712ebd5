"""One call of a method, and the helpers that every service needs: pages, field masks, names."""

import base64
import binascii
import copy
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from aiohttp import web

from localcloud.json_values import JsonObject
from localcloud.rest.discovery import DiscoveryDocument, Method
from localcloud.rest.errors import CloudError


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The identity of a caller. The operator has all permissions."""

    email: str
    operator: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request that was routed and validated.

    `path` and `query` hold parameters by the document's names; `media` is `upload` or `download` for Cloud Storage content.
    """

    document: DiscoveryDocument
    method: Method
    path: dict[str, str]
    query: dict[str, Any]
    body: JsonObject
    caller: Caller
    http: web.Request
    media: str | None = None

    @property
    def name(self) -> str:
        """Return the resource that an RPC-style path names: `name`, `resource` or `parent`."""
        for key in ("name", "resource", "parent", "metricName"):
            if key in self.path:
                return self.path[key]
        raise KeyError(self.method.id)

    @property
    def location(self) -> str:
        """Return `projects/P/locations/L` of the resource that the call names."""
        return "/".join(self.name.split("/")[:4])


MethodResult: TypeAlias = JsonObject | web.StreamResponse
Handler: TypeAlias = Callable[[Call], MethodResult | Awaitable[MethodResult]]


def check_id(value: str | None, what: str, pattern: str) -> str:
    """Return a user-chosen id. Raise 400 if it is missing or does not match its pattern."""
    if not value:
        raise CloudError.required(f"Required parameter: {what}")
    if re.fullmatch(pattern, value) is None:
        raise CloudError.field(what, f"Invalid {what} '{value}': it must match '{pattern}'.")
    return value


def page(
    items: list[tuple[str, JsonObject]], *, size: int | None, token: str | None, default: int = 100, maximum: int = 1000
) -> tuple[list[JsonObject], str | None]:
    """Return one page of sorted (key, item) pairs and the token of the next page. Raise 400 for a token that this cloud did not issue."""
    size = min(size or default, maximum)
    if size < 0:
        raise CloudError.field("page_size", f"Invalid page size {size}: it must not be negative.")
    if token:
        after = _read_token(token)
        items = [(key, item) for key, item in items if key > after]
    chosen = items[:size]
    following = _token(chosen[-1][0]) if len(items) > size else None
    return [item for _, item in chosen], following


def _token(after: str) -> str:
    return base64.urlsafe_b64encode(json.dumps(["after", after]).encode()).decode()


def _read_token(token: str) -> str:
    try:
        mark, after = cast("list[str]", json.loads(base64.urlsafe_b64decode(token)))
    except (binascii.Error, ValueError, TypeError):
        raise CloudError.field("page_token", f"Invalid page token: '{token}'.") from None
    if mark != "after":
        raise CloudError.field("page_token", f"Invalid page token: '{token}'.")
    return after


def masked(old: JsonObject, new: JsonObject, mask: str, *, allowed: set[str] | None = None) -> JsonObject:
    """Return `old` with the fields of `mask` (`a,b.c`, or `*` for all) taken from `new`. Fields of the mask that `new` lacks are cleared."""
    if mask == "*":
        return {**{key: value for key, value in old.items() if allowed is not None and key not in allowed}, **new}
    result = copy.deepcopy(old)
    for path in mask.split(","):
        steps = path.strip().split(".")
        if allowed is not None and steps[0] not in allowed:
            raise CloudError.field(
                "update_mask",
                f"Invalid update mask: field '{path}' cannot be updated; allowed are {', '.join(sorted(allowed))}.",
            )
        _take(result, new, steps)
    return result


def _take(target: JsonObject, source: JsonObject, steps: list[str]) -> None:
    for step in steps[:-1]:
        target = target.setdefault(step, {})
        source = source.get(step) or {}
    last = steps[-1]
    if source.get(last) is None:
        target.pop(last, None)
    else:
        target[last] = copy.deepcopy(source[last])


def merged(old: JsonObject, patch: JsonObject) -> JsonObject:
    """Apply a JSON merge patch (RFC 7396), as Compute Engine and Cloud Storage do for PATCH: null removes, objects merge, the rest replaces."""
    result = copy.deepcopy(old)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            before = result.get(key)
            result[key] = merged(before if isinstance(before, dict) else {}, cast("JsonObject", value))  # pyright: ignore[reportUnknownArgumentType] - JSON
        else:
            result[key] = copy.deepcopy(value)
    return result


def without_nulls(value: JsonObject) -> JsonObject:
    """Return the object without keys whose value is null, at any depth."""

    def clean(item: Any) -> Any:  # noqa: ANN401 - any JSON value
        if isinstance(item, dict):
            return {key: clean(below) for key, below in cast("JsonObject", item).items() if below is not None}
        if isinstance(item, list):
            return [clean(below) for below in cast("list[Any]", item)]
        return item

    return cast("JsonObject", clean(value))
