"""The steps of a preview as data: what each does to which resource, and in what two previews differ. No value is kept but those shown."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Final

from pydantic import BaseModel, ConfigDict

from scripts.pulumi.deployment import as_mapping, as_sequence
from stacks.masking import masked

CAPACITY_TYPES: Final = ("gcp-tpu:index:QueuedResource", "gcp:cloudrunv2/service:Service")
"""Types whose replacement takes the server away."""
_QUIET: Final = frozenset({"same", "refresh"})
"""Operations that change nothing. What a refresh finds is a step of its own."""
_SHOWN_CHARACTERS: Final = 80
_BEFORE_CHARACTERS: Final = 24
"""Of the part that two long values share, so many are shown before the first difference."""
_MOST_CHANGES: Final = 20
"""Of one step, shown. All are compared."""
_KEY: Final = re.compile(r'\["((?:[^"\\]|\\.)*)"\]|\[(\d+)\]|([^.\[\]]+)')
"""One part of a property's path, as the engine writes it: `template.containers[0].env["A.B"]`."""
_MOST_DIFFERENCES: Final = 5
_NO_VALUE: Final = object()
_UNKNOWN: Final = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
"""How a preview writes a value that is known only after `up` (pulumi/pulumi, sdk/go/common/resource/plugin/rpc.go)."""


class ShownChange(BaseModel):
    """One property that a step changes, for people: its path, and the values without secrets, shortened."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    path: str
    before: str
    after: str


class PlannedStep(BaseModel):
    """One step that changes something."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    op: str
    urn: str
    changed: tuple[str, ...] = ()
    """Properties that differ from the state."""
    forced_by: tuple[str, ...] = ()
    """Properties that force a replacement."""
    inputs: dict[str, str] = {}
    """A hash of the value of each input."""
    changes: tuple[ShownChange, ...] = ()

    @property
    def name(self) -> str:
        """The resource's name in the program."""
        return self.urn.rpartition("::")[2]

    @property
    def type(self) -> str:
        """The resource's type, without those of its parents."""
        return self.urn.split("::")[2].rpartition("$")[2]

    @property
    def does(self) -> str:
        """What it does, such as `update of template`."""
        words = f"{self.op} of {', '.join(self.changed)}" if self.changed else self.op
        return f"{words}, forced by {', '.join(self.forced_by)}" if self.forced_by else words

    @property
    def digest(self) -> str:
        """A hash of what it does."""
        return _sha256([self.op, self.urn, self.changed, self.forced_by, self.inputs])


def steps_of(preview: Mapping[str, object], secrets: Sequence[str] = ()) -> tuple[PlannedStep, ...]:
    """Return the steps of the engine's preview in JSON that change something, sorted: independent resources come in any order."""
    raw = (as_mapping(step) for step in as_sequence(preview.get("steps")))
    found = [_step(step, secrets) for step in raw if step.get("op") not in _QUIET]
    return tuple(sorted(found, key=lambda step: (step.urn, step.op, step.digest)))


def differences(planned: Sequence[PlannedStep], now: Sequence[PlannedStep]) -> Sequence[str]:
    """Return what differs between two previews, a clause for each resource: which, what was planned, and what it is now."""
    urns = dict.fromkeys(step.urn for step in (*planned, *now))
    pairs = ((urn, _of(planned, urn), _of(now, urn)) for urn in urns)
    return [_difference(urn, was, is_now) for urn, was, is_now in pairs if _digests(was) != _digests(is_now)]


def shortened_differences(found: Sequence[str]) -> str:
    """Return the first differences, and how many there are beside them."""
    rest = len(found) - _MOST_DIFFERENCES
    return "; ".join([*found[:_MOST_DIFFERENCES], *([f"and {rest} more"] if rest > 0 else [])])


def _of(steps: Sequence[PlannedStep], urn: str) -> Sequence[PlannedStep]:
    return [step for step in steps if step.urn == urn]


def _digests(steps: Sequence[PlannedStep]) -> Sequence[str]:
    return sorted(step.digest for step in steps)


def _difference(urn: str, was: Sequence[PlannedStep], is_now: Sequence[PlannedStep]) -> str:
    words = [" and ".join(step.does for step in steps) or "no change" for steps in (was, is_now)]
    if words[0] != words[1]:
        return f"`{urn}`: the plan has {words[0]}; now it is {words[1]}"
    other = {
        name
        for one, two in zip(was, is_now, strict=True)
        for name in one.inputs.keys() | two.inputs.keys()
        if one.inputs.get(name) != two.inputs.get(name)
    }
    return f"`{urn}`: {words[0]} is planned with another value of {', '.join(sorted(other))} than now"


def _step(step: Mapping[str, object], secrets: Sequence[str]) -> PlannedStep:
    new, old = (as_mapping(as_mapping(step.get(key)).get("inputs")) for key in ("newState", "oldState"))
    changed = tuple(sorted(map(str, as_sequence(step.get("diffReasons")))))
    paths = tuple(as_mapping(step.get("detailedDiff"))) or changed
    return PlannedStep(
        op=str(step.get("op") or ""),
        urn=str(step.get("urn") or ""),
        changed=changed,
        forced_by=tuple(sorted(map(str, as_sequence(step.get("replaceReasons"))))),
        inputs={key: _sha256(value) for key, value in new.items()},
        changes=tuple(_changes(sorted(paths)[:_MOST_CHANGES], old, new, secrets)),
    )


def _changes(
    paths: Sequence[str], old: Mapping[str, object], new: Mapping[str, object], secrets: Sequence[str]
) -> Iterator[ShownChange]:
    for path in paths:
        # Masked before it is cut, so that no part of a secret is left.
        before, after = (masked(_text(_value(path, values)), secrets) for values in (old, new))
        start = max(0, _shared(before, after) - _BEFORE_CHARACTERS)
        yield ShownChange(path=path, before=_cut(before, start), after=_cut(after, start))


def _value(path: str, inputs: Mapping[str, object]) -> object:
    value: object = inputs
    for quoted, index, plain in _KEY.findall(path):
        if index:
            items = as_sequence(value)
            value = items[int(index)] if int(index) < len(items) else _NO_VALUE
        else:
            value = as_mapping(value).get(quoted or plain, _NO_VALUE)
    return value


def _text(value: object) -> str:
    if value is _NO_VALUE:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    return text.replace(_UNKNOWN, "(known after up)")


def _shared(one: str, two: str) -> int:
    return sum(1 for _ in takewhile(_is_same, zip(one, two, strict=False)))


def _is_same(pair: tuple[str, str]) -> bool:
    return pair[0] == pair[1]


def _cut(text: str, start: int) -> str:
    if len(text) <= _SHOWN_CHARACTERS:
        return text
    shown = text[start : start + _SHOWN_CHARACTERS]
    return f"{'…' if start else ''}{shown}{'…' if start + _SHOWN_CHARACTERS < len(text) else ''}"


def _sha256(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
