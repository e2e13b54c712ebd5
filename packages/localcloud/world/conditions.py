"""Conditions of IAM bindings, evaluated by a library of the Common Expression Language.

An attribute that the service of the request does not provide sets the whole condition to false. Google's page lists which service provides
which (cloud.google.com/iam/docs/conditions-attribute-reference, 2026-11).
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, Final, TypeAlias

from localcloud.json_values import JsonObject, part
from localcloud.rest.errors import CloudError

AttributeValue: TypeAlias = str | int | bool | datetime | frozenset[str]
Attributes: TypeAlias = Mapping[str, AttributeValue]

_TEXT: Final = re.compile(r"'[^']*'|\"[^\"]*\"")
_ATTRIBUTE: Final = re.compile(r"[a-z_][a-z0-9_]*(?:\.[a-zA-Z_][a-zA-Z0-9_]*)+(\()?")
_TIME: Final = re.compile(r"timestamp\(\s*(?:'([^']*)'|\"([^\"]*)\")\s*\)")
_FUNCTIONS: Final = frozenset(
    {"contains", "endsWith", "getAttribute", "hasOnly", "in", "matches", "size", "startsWith", "timestamp"}
)
"""Functions that a condition may call here. Google's page names some more, which no condition of this project uses."""
_MAX_TITLE = 100
_MAX_DESCRIPTION = 256
_MAX_OPERATORS = 12
_MAX_ROLES = 10
_NAMED_RESOURCES: Final = frozenset({"secretmanager", "storage"})
"""APIs that provide `resource.name` here. On Google Cloud, Compute Engine and Cloud Logging do; Cloud TPU, Cloud Run, Artifact Registry and IAM do not."""
_KNOWN_SERVICES: Final = _NAMED_RESOURCES | {"cloudresourcemanager", "compute", "iap", "logging"}
"""APIs that provide `resource.service`."""
MODIFIED_ROLES: Final = "iam.googleapis.com/modifiedGrantsByRole"
"""The roles of the bindings that a request to set a policy changes (cloud.google.com/iam/docs/setting-limits-on-granting-roles, 2026-11)."""
UNRECOGNIZED_ROLES: Final = frozenset({"*"})
"""Value for a service that does not recognize the attribute: such a request fails for any roles in the condition (the same page)."""
_READS_ROLES: Final = r"api\s*\.\s*getAttribute"
_LIMITS_ROLES: Final = r"\.\s*hasOnly\s*\("
_LIMITED_ROLES: Final = re.compile(
    rf"""{_READS_ROLES}\s*\(\s*['"]{re.escape(MODIFIED_ROLES)}['"]\s*,\s*\[\s*\]\s*\)\s*{_LIMITS_ROLES}"""
    r"""\s*\[((?:\s*(?:'[^']*'|"[^"]*")\s*,?)*)\]\s*\)"""
)


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
    expression = str(condition.get("expression", ""))
    if _attributes_of(expression) - set(attributes):
        return False
    variables: dict[str, dict[str, AttributeValue]] = {"api": {}}
    for name, value in attributes.items():
        if name != MODIFIED_ROLES:
            first, _, last = name.partition(".")
            variables.setdefault(first, {})[last] = value
    # A request that sets no policy lacks the attribute of roles, so the default applies, which is the empty list.
    changed = attributes.get(MODIFIED_ROLES, frozenset[str]())
    roles = sorted(changed) if isinstance(changed, frozenset) else []
    try:
        return _compiled(expression).execute(_context(variables, lambda *_: roles)) is True
    except (RuntimeError, TypeError, ValueError, ArithmeticError, LookupError):
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
            f"The condition '{title}' is too long. A title has at most {_MAX_TITLE} characters, a description {_MAX_DESCRIPTION}."
        )
    fault = _fault(expression)
    if fault:
        raise CloudError.invalid(f"Condition expression compilation failed: {fault} in '{expression}'.")


def _fault(expression: str) -> str:
    """Return why Google would not compile an expression; empty if it does."""
    try:
        program = _compiled(expression)
    except ValueError as error:
        return str(error).partition("ERROR: ")[2] or str(error)
    return next(_faults(expression, [name for name in program.functions() if name.isidentifier()]), "")


def _faults(expression: str, functions: Sequence[str]) -> Iterator[str]:
    """Yield the parts that Google refuses in a valid expression that calls these functions and operators."""
    yield from (f"undefined function {name}" for name in functions if name[0] != "_" and name not in _FUNCTIONS)
    if len(re.findall(r"&&|\|\||!(?!=)", _TEXT.sub("", expression))) > _MAX_OPERATORS:
        yield f"more than {_MAX_OPERATORS} logical operators"
    for single, double in _TIME.findall(expression):
        try:
            has_zone = datetime.fromisoformat(single or double).tzinfo is not None
        except ValueError:
            has_zone = False
        if not has_zone:
            yield f"not a timestamp: {single or double}"
    limits = [_TEXT.findall(values) for values in _LIMITED_ROLES.findall(expression)]
    yield from (f"hasOnly has {len(roles)} values, maximum {_MAX_ROLES}" for roles in limits if len(roles) > _MAX_ROLES)
    if len(limits) != max(len(re.findall(each, expression)) for each in (_READS_ROLES, _LIMITS_ROLES)):
        yield f"api.getAttribute must read {MODIFIED_ROLES}, with the default [], and call hasOnly with a list of texts"


@cache
def _compiled(expression: str) -> Any:  # noqa: ANN401 - the library has no types
    import cel  # noqa: PLC0415 - loads its command line, 0.35 CPU s, and few policies have conditions

    return cel.compile(expression)


def _context(variables: Mapping[str, object], roles: Callable[..., Sequence[str]]) -> Any:  # noqa: ANN401 - as above
    import cel  # noqa: PLC0415 - as above

    context = cel.Context(variables=dict(variables))
    context.add_function("getAttribute", roles)
    context.add_function("hasOnly", _has_only)
    return context


def _attributes_of(expression: str) -> set[str]:
    """Return the attributes that an expression reads."""
    found = _ATTRIBUTE.finditer(_TEXT.sub("''", expression))
    names = {one[0].rpartition(".")[0] if one[1] else one[0] for one in found}
    return {name for name in names if "." in name}


def _has_only(changed: Sequence[str], allowed: Sequence[str]) -> bool:
    return set(changed) <= set(allowed)
