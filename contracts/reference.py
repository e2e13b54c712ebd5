"""The tables of docs/authors/contracts.md. `python -m authors.docs` writes them."""

import dataclasses
import typing
from collections.abc import Iterator, Mapping

from contracts.exit_codes import ExitCode
from contracts.fields import camel_case, documented
from contracts.guest_attributes import GUEST_ATTRIBUTES, PHASES
from contracts.labels import LABELS
from contracts.outputs import DETAILS, StackOutputs
from contracts.rollout import ROLLOUT_KEYS
from contracts.rollout_record import RolloutRecord
from contracts.serving_document import DOCUMENT_KEYS


def tables() -> Mapping[str, str]:
    """Return every table by the name that marks it in the page."""
    return {
        "labels": table("label", LABELS),
        "serving-document": table("key", DOCUMENT_KEYS),
        "rollout": table("key", ROLLOUT_KEYS),
        "guest-attributes": table("key", GUEST_ATTRIBUTES),
        "phases": table("phase", PHASES),
        "stack-outputs": table("printed output", _outputs(are_details=False)),
        "stack-details": table("other output", _outputs(are_details=True)),
        "nested-outputs": "\n".join(_section(path, kind) for path, kind in _nested(StackOutputs, "")),
        "rollout-record": "\n".join(
            [
                table("key", dict(documented(RolloutRecord))),
                *(_section(path, kind) for path, kind in _nested(RolloutRecord, "")),
            ]
        ),
        "exit-codes": table("code", {str(int(code)): code.meaning for code in ExitCode}),
    }


def _outputs(*, are_details: bool) -> Mapping[str, str]:
    return {key: text for key, text in documented(StackOutputs) if (key in DETAILS) == are_details}


def table(heading: str, rows: Mapping[str, str]) -> str:
    """Return a Markdown table of keys and their meaning."""
    lines = [f"| {heading} | meaning |", "| --- | --- |", *(f"| `{key}` | {text} |" for key, text in rows.items())]
    return "".join(f"{line}\n" for line in lines)


def _section(path: str, kind: type[object]) -> str:
    summary = (kind.__doc__ or "").partition("\n")[0]
    return f"### `{path}`\n\n{summary}\n\n{table('key', dict(documented(kind)))}"


def _nested(kind: type[object], path: str) -> Iterator[tuple[str, type[object]]]:
    """Yield the path and the type of each object inside an object, the outer ones first."""
    for name, hint in typing.get_type_hints(kind).items():
        for member in (hint, *typing.get_args(hint)):
            if isinstance(member, type) and dataclasses.is_dataclass(member):
                inner = f"{path}{camel_case(name)}"
                yield inner, member
                yield from _nested(member, f"{inner}.")
