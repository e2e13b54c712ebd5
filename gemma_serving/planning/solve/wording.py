"""Findings with a caller's names: settings keys for a stack, options for the command line.

Messages name fields of a `Deployment` by path in backticks, and remedies are changes of fields. A `Wording` has the caller's keys.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, Protocol

from gemma_serving.contracts.fields import to_json
from gemma_serving.planning.settings.finding import Finding, Remedy

_FIELD = re.compile(r"`([a-z_]+(?:\.[a-z_]+)*)`")
NO_STACK: Final = "STACK"
"""Word for the stack in the command of a finding."""
_COMMAND: Final = re.compile(rf"(`gemma \w+ ){NO_STACK}\b")
_VERBS = {"accelerator": "move to ", "model": "serve ", None: ""}


class Wording(Protocol):
    """A caller's names for fields and notation for changes."""

    @property
    def stack(self) -> str:
        """Name of the stack in commands."""
        ...

    def key(self, path: str) -> str:
        """Return the caller's name for a field."""
        ...

    def change(self, changes: Mapping[str, object]) -> str | None:
        """Return an instruction for the changes, starting with a verb; None if the caller cannot change these fields."""
        ...


class FieldWording:
    """The planner's own names: fields of `Deployment` by path."""

    stack: str = NO_STACK

    def key(self, path: str) -> str:
        """Return the path itself."""
        return path

    def change(self, changes: Mapping[str, object]) -> str:
        """Return the changes as assignments."""
        return "set " + ", ".join(f"{path} = {value!r}" for path, value in changes.items())


FIELDS = FieldWording()


def with_callers_keys(text: str, wording: Wording) -> str:
    """Return a message or advice with fields replaced by the caller's keys, and the stack in commands by its name."""
    named = _FIELD.sub(lambda match: wording.key(match[1]), text)
    return _COMMAND.sub(lambda match: f"{match[1]}{wording.stack}", named)


def remedy_of(finding: Finding, wording: Wording) -> str:
    """Return the fix for a finding in sentences, or as a list if it has moves; empty if it has no fix."""
    ways = [text for remedy in finding.remedies if remedy.is_deployable and (text := _way(remedy, wording))]
    outside = [f"{remedy.title}{_price(remedy)}" for remedy in finding.remedies if not remedy.is_deployable]
    rest = [f"Outside this project: {'; '.join(outside)}."] if outside else []
    rest += [with_callers_keys(finding.advice, wording)] if finding.advice else []
    if any(remedy.move for remedy in finding.remedies if remedy.is_deployable):
        # A move changes several fields: one line for each.
        return "\n".join(["Choose one:", *(f"  - {way}" for way in ways), " ".join(rest)]).rstrip()
    if ways:
        rest.insert(0, "; or ".join(ways) + ".")
    elif finding.severity == "block" and not rest:
        rest.append("No setting fixes this. Choose another model or accelerator.")
    return " ".join(sentence[:1].upper() + sentence[1:] for sentence in rest)


def finding_json(finding: Finding, wording: Wording) -> dict[str, Any]:
    """Return a finding in JSON types, with the caller's keys in its texts and its remedies also as data."""
    return {
        "id": finding.id,
        "severity": finding.severity,
        "message": with_callers_keys(finding.message, wording),
        "remedy": remedy_of(finding, wording),
        "source": finding.source,
        "remedies": [
            {
                "changes": {path: _json(value) for path, value in remedy.changes.items()},
                "text": wording.change(remedy.changes) if remedy.is_deployable else None,
                "usd_per_hour": None if remedy.usd_per_hour is None else round(remedy.usd_per_hour, 4),
                "deployable": remedy.is_deployable,
            }
            for remedy in finding.remedies
        ],
    }


def _way(remedy: Remedy, wording: Wording) -> str | None:
    change = wording.change(remedy.changes)
    if change is None:
        return None
    then = f" ({', '.join(remedy.warns)} then {'warn' if remedy.warns[1:] else 'warns'})" if remedy.warns else ""
    if not remedy.title:
        return f"{change}{_price(remedy)}{then}"
    return f"{_VERBS[remedy.move]}{remedy.title}{_price(remedy)}{then}: {change}"


def _price(remedy: Remedy) -> str:
    if remedy.usd_per_hour is None:
        return ""
    extra = remedy.extra_usd_per_hour
    more = f", ${abs(extra):.2f}/h {'more' if extra > 0 else 'less'}" if abs(extra) >= 0.005 else ""  # noqa: PLR2004 - half a cent
    return f" (${remedy.usd_per_hour:.2f}/h{more})"


def _json(value: object) -> object:
    return to_json(value)
