"""Conditions of IAM bindings: the subset of the Common Expression Language that conditions on the simulated services use.

Comparisons, `&&`, `||`, `!`, parentheses, `startsWith` and `endsWith`, `timestamp("...")`, texts, whole numbers, true and false, and
`api.getAttribute('...', []).hasOnly(['...'])` for the roles that a request grants or revokes. An attribute that the service of the request
does not provide sets the whole condition to false. Google's page lists which service provides which
(cloud.google.com/iam/docs/conditions-attribute-reference, 2026-11).
"""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Final, TypeAlias

from localcloud.json_values import JsonObject, part
from localcloud.rest.errors import CloudError

AttributeValue: TypeAlias = str | int | bool | datetime | frozenset[str]
Attributes: TypeAlias = Mapping[str, AttributeValue]

_Expression: TypeAlias = Callable[[Attributes], AttributeValue]

_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<text>"[^"]*"|'[^']*')|(?P<number>-?\d+)|(?P<name>[A-Za-z_][\w.]*)|(?P<sign>&&|\|\||[=!<>]=|\.hasOnly\b|[()!<>,\[\]]))"""
)
_ATTRIBUTE: Final = re.compile(r"[a-z_]+(\.[a-zA-Z_]+)+")
_MAX_TITLE, _MAX_DESCRIPTION, _MAX_OPERATORS, _MAX_ROLES = 100, 256, 12, 10
_METHODS: Final = ("startsWith", "endsWith")
_NAMED_RESOURCES: Final = frozenset({"secretmanager", "storage"})
"""APIs that provide `resource.name` here. On Google Cloud, Compute Engine and Cloud Logging do; Cloud TPU, Cloud Run, Artifact Registry and IAM do not."""
_KNOWN_SERVICES: Final = _NAMED_RESOURCES | {"cloudresourcemanager", "compute", "iap", "logging"}
"""APIs that provide `resource.service`."""
MODIFIED_ROLES: Final = "iam.googleapis.com/modifiedGrantsByRole"
"""The roles of the bindings that a request to set a policy changes (cloud.google.com/iam/docs/setting-limits-on-granting-roles, 2026-11)."""
UNRECOGNIZED_ROLES: Final = frozenset({"*"})
"""Value for a service that does not recognize the attribute: such a request fails for any roles in the condition (the same page)."""


class _UnknownAttributeError(Exception):
    """The service of the request does not provide an attribute."""


class _SyntaxError(ValueError):
    """The text is not an expression, or one that the local cloud cannot evaluate."""


def resource_attributes(api: str, name: str) -> dict[str, AttributeValue]:
    """Return the attributes of a resource that its API provides. `resource.type` is not modeled: conditions on it are false."""
    found: dict[str, AttributeValue] = {}
    if api in _KNOWN_SERVICES:
        found["resource.service"] = f"{api}.googleapis.com"
    if api in _NAMED_RESOURCES:
        found["resource.name"] = name
    return found


def holds(condition: JsonObject, attributes: Attributes) -> bool:
    """Return whether a binding's condition is true. An empty condition is."""
    if not condition:
        return True
    try:
        return _parsed(str(condition.get("expression", "")))(attributes) is True
    except _UnknownAttributeError:
        return False


def check(binding: JsonObject) -> None:
    """Reject a condition that Google rejects: on a basic role or a public member, without a title, too long, not an expression."""
    condition = part(binding, "condition")
    if not condition:
        return
    role = str(binding.get("role", ""))
    if role in {"roles/owner", "roles/editor", "roles/viewer"}:
        # Text from several public logs of 2023 to 2026.
        raise CloudError.invalid(
            "LintValidationUnits/BindingRoleAllowConditionCheck Error: Conditions can't be set on primitive roles."
        )
    if {"allUsers", "allAuthenticatedUsers"} & set(binding.get("members", ())):
        raise CloudError.invalid("Conditions cannot be set on allUsers or allAuthenticatedUsers.")
    expression, title = str(condition.get("expression", "")), str(condition.get("title", ""))
    if not title or not expression:
        raise CloudError.invalid(f"The condition of role {role} needs a title and an expression.")
    if len(title) > _MAX_TITLE or len(str(condition.get("description", ""))) > _MAX_DESCRIPTION:
        raise CloudError.invalid(
            f"The condition '{title}' is too long: a title has at most {_MAX_TITLE} characters, a description {_MAX_DESCRIPTION}."
        )
    try:
        _parsed(expression)
    except _SyntaxError as error:
        raise CloudError.invalid(f"Condition expression compilation failed: {error} in '{expression}'.") from None


@cache
def _parsed(text: str) -> _Expression:
    parser = _Parser(text)
    found = parser.either()
    parser.end()
    return found


class _Parser:
    """Converts a text to a function of the attributes. Each method reads one kind of phrase, the operator with the lowest precedence first."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        if sum(token in {"&&", "||", "!"} for token in self._tokens) > _MAX_OPERATORS:
            raise _SyntaxError(f"more than {_MAX_OPERATORS} logical operators")
        self._at = 0

    def either(self) -> _Expression:
        """Read `a || b`."""
        left = self._both()
        while self._take("||"):
            left = _or(left, self._both())
        return left

    def end(self) -> None:
        """Reject unread text."""
        if self._at < len(self._tokens):
            raise _SyntaxError(f"unexpected {self._tokens[self._at]}")

    def _both(self) -> _Expression:
        left = self._not()
        while self._take("&&"):
            left = _and(left, self._not())
        return left

    def _not(self) -> _Expression:
        if self._take("!"):
            inner = self._not()
            return lambda attributes: inner(attributes) is not True
        return self._comparison()

    def _comparison(self) -> _Expression:
        left = self._operand()
        for sign, compare in _COMPARISONS.items():
            if self._take(sign):
                return _compared(compare, left, self._operand())
        return left

    def _operand(self) -> _Expression:
        if self._take("("):
            inner = self.either()
            self._expect(")")
            return inner
        word = self._next()
        if word == "api.getAttribute":
            return self._limited_roles()
        name, _, method = word.rpartition(".")
        if method in _METHODS:
            return _tested(method, _attribute(name), self._argument())
        if word == "timestamp":
            return _constant(_timestamp(self._argument()))
        return _attribute(word) if _ATTRIBUTE.fullmatch(word) else _constant(_literal(word))

    def _limited_roles(self) -> _Expression:
        """Read `('iam.googleapis.com/modifiedGrantsByRole', []).hasOnly([...])`. Other attributes and functions are not modeled."""
        self._expect("(")
        name = self._text()
        self._expect(",")
        default = self._texts()
        self._expect(")")
        if name != MODIFIED_ROLES or default:
            raise _SyntaxError(f"api.getAttribute must read {MODIFIED_ROLES}, with the default []")
        self._expect(".hasOnly")
        self._expect("(")
        allowed = self._texts()
        self._expect(")")
        if len(allowed) > _MAX_ROLES:
            raise _SyntaxError(f"hasOnly has {len(allowed)} values, maximum {_MAX_ROLES}")
        return _only(allowed)

    def _texts(self) -> frozenset[str]:
        self._expect("[")
        found: list[str] = []
        while not self._take("]"):
            if found:
                self._expect(",")
            found.append(self._text())
        return frozenset(found)

    def _argument(self) -> str:
        self._expect("(")
        text = self._text()
        self._expect(")")
        return text

    def _text(self) -> str:
        text = self._next()
        if text[0] not in "\"'":
            raise _SyntaxError(f"unexpected {text}")
        return text[1:-1]

    def _next(self) -> str:
        if self._at >= len(self._tokens):
            raise _SyntaxError("unexpected end")
        self._at += 1
        return self._tokens[self._at - 1]

    def _take(self, wanted: str) -> bool:
        found = self._at < len(self._tokens) and self._tokens[self._at] == wanted
        self._at += found
        return found

    def _expect(self, wanted: str) -> None:
        if not self._take(wanted):
            raise _SyntaxError(f"missing {wanted}")


def _tokens(text: str) -> list[str]:
    found: list[str] = []
    at = 0
    while at < len(text.rstrip()):
        token = _TOKEN.match(text, at)
        if token is None:
            raise _SyntaxError(f"unexpected {text[at:].strip()[:10]}")
        found.append(token[0].strip())
        at = token.end()
    return found


def _literal(word: str) -> AttributeValue:
    if word[0] in "\"'":
        return word[1:-1]
    if word.lstrip("-").isdigit():
        return int(word)
    if word not in {"true", "false"}:
        raise _SyntaxError(f"unexpected {word}")
    return word == "true"


def _constant(value: AttributeValue) -> _Expression:
    return lambda _: value


def _timestamp(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise _SyntaxError(f"not a timestamp: {text}") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _attribute(name: str) -> _Expression:
    def read(attributes: Attributes) -> AttributeValue:
        if name not in attributes:
            raise _UnknownAttributeError(name)
        return attributes[name]

    return read


def _tested(method: str, subject: _Expression, argument: str) -> _Expression:
    def test(attributes: Attributes) -> bool:
        text = str(subject(attributes))
        return text.startswith(argument) if method == "startsWith" else text.endswith(argument)

    return test


def _only(allowed: frozenset[str]) -> _Expression:
    def test(attributes: Attributes) -> bool:
        # A request that sets no policy lacks this attribute, so the default applies, which is the empty list.
        changed = attributes.get(MODIFIED_ROLES, frozenset[str]())
        return isinstance(changed, frozenset) and changed <= allowed

    return test


def _and(left: _Expression, right: _Expression) -> _Expression:
    return lambda attributes: left(attributes) is True and right(attributes) is True


def _or(left: _Expression, right: _Expression) -> _Expression:
    return lambda attributes: left(attributes) is True or right(attributes) is True


def _less(left: AttributeValue, right: AttributeValue) -> bool:
    if isinstance(left, datetime) and isinstance(right, datetime):
        return left < right
    if isinstance(left, int) and isinstance(right, int):
        return left < right
    return False


_COMPARISONS: Final[Mapping[str, Callable[[AttributeValue, AttributeValue], bool]]] = {
    "==": lambda left, right: type(left) is type(right) and left == right,
    "!=": lambda left, right: type(left) is type(right) and left != right,
    "<=": lambda left, right: left == right or _less(left, right),
    ">=": lambda left, right: left == right or _less(right, left),
    "<": _less,
    ">": lambda left, right: _less(right, left),
}


def _compared(
    compare: Callable[[AttributeValue, AttributeValue], bool], left: _Expression, right: _Expression
) -> _Expression:
    return lambda attributes: compare(left(attributes), right(attributes))
