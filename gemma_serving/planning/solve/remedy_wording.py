"""Findings in a caller's form: changes of a settings file for a stack, options for the command line.

Messages name keys of a settings file. Remedies are changes of the fields of a `Question`, which a `Wording` turns into words.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from gemma_serving.contracts.fields import to_json
from gemma_serving.planning.question.types import Band, Plan
from gemma_serving.planning.settings.finding import Finding, Remedy, Together
from gemma_serving.planning.speed.residuals import decode_band
from gemma_serving.planning.units import ROUGH, figure

NO_STACK: Final = "STACK"
"""Word for the stack in the command of a finding."""
_VERBS = {"accelerator": "move to ", "model": "serve ", None: ""}


class Wording(Protocol):
    """A caller's notation for changes."""

    @property
    def stack(self) -> str:
        """Name of the stack in commands."""
        ...

    def change(self, changes: Mapping[str, object]) -> str | None:
        """Return an instruction for the changes, starting with a verb; None if the caller cannot change these fields."""
        ...


def decode_of(plan: Plan) -> Band:
    """Return the tokens per second of one request, with the band that the smoke checks expect. Raises PlanningError if they are unknown."""
    return decode_band(plan.throughput.decode_tok_per_s, is_tpu=plan.platform == "tpu-vm")


def with_band(band: Band, unit: str) -> str:
    """Return a planned value with its unit and its band for people."""
    return f"{figure(band.typical, ROUGH)} {unit} ({band.words})"


def message_of(finding: Finding, wording: Wording) -> str:
    """Return the message of a finding, with the name of the stack in its commands."""
    return finding.message.replace(NO_STACK, wording.stack)


def remedy_of(finding: Finding, wording: Wording) -> str:
    """Return the fix for a finding in sentences, or as a list if it has moves; empty if it has no fix."""
    ways = [text for remedy in finding.remedies if remedy.is_deployable and (text := _way(remedy, wording))]
    outside = [f"{remedy.title}{_price(remedy)}" for remedy in finding.remedies if not remedy.is_deployable]
    rest = [f"Outside this project: {'; '.join(outside)}."] if outside else []
    rest += [finding.advice.replace(NO_STACK, wording.stack)] if finding.advice else []
    if ways and any(remedy.move for remedy in finding.remedies if remedy.is_deployable):
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
        "message": message_of(finding, wording),
        "remedy": remedy_of(finding, wording),
        "source": finding.source,
        "remedies": [
            {
                **_remedy_json(remedy, wording),
                "deployable": remedy.is_deployable,
                "loses": [{"flags": list(one.flags), "reason": one.reason} for one in remedy.loses],
            }
            for remedy in finding.remedies
        ],
    }


def together_text(together: Sequence[Together], wording: Wording) -> str:
    """Return the remedies of several findings as a sentence; empty without any."""
    ways = ((one.ids, _way(one.remedy, wording)) for one in together)
    words = "; ".join(f"together ({', '.join(ids)}): {way}" for ids, way in ways if way)
    return f"{words[:1].upper()}{words[1:]}." if words else ""


def together_json(together: Together, wording: Wording) -> dict[str, Any]:
    """Return a remedy of several findings in JSON types."""
    return {"findings": list(together.ids), **_remedy_json(together.remedy, wording)}


def _remedy_json(remedy: Remedy, wording: Wording) -> dict[str, Any]:
    return {
        "changes": {path: to_json(value) for path, value in remedy.changes.items()},
        "text": wording.change(remedy.changes) if remedy.is_deployable else None,
        "usd_per_hour": None if remedy.usd_per_hour is None else round(remedy.usd_per_hour, 4),
    }


def _way(remedy: Remedy, wording: Wording) -> str | None:
    change = wording.change(remedy.changes)
    if change is None:
        return None
    then = f" ({', '.join(remedy.warns)} then {'warn' if remedy.warns[1:] else 'warns'})" if remedy.warns else ""
    if not remedy.title:
        return f"{change}{_price(remedy)}{then}{''.join(_losses(remedy))}"
    return f"{_VERBS[remedy.move]}{remedy.title}{_price(remedy)}{then}: {change}"


def _losses(remedy: Remedy) -> Iterator[str]:
    """Yield the values of arguments that a remedy removes: those that would block, and those that no setting has."""
    for words, has_key in ((", without the value of", True), ("; no fix keeps the value of", False)):
        lost = [f"{', '.join(one.flags)} ({one.reason})" for one in remedy.loses if bool(one.changes) == has_key]
        if lost:
            yield f"{words} {', '.join(lost)}"


def _price(remedy: Remedy) -> str:
    if remedy.usd_per_hour is None:
        return ""
    extra = remedy.extra_usd_per_hour
    more = f", ${abs(extra):.2f}/h {'more' if extra > 0 else 'less'}" if abs(extra) >= 0.005 else ""  # noqa: PLR2004 - half a cent
    return f" (${remedy.usd_per_hour:.2f}/h{more})"
