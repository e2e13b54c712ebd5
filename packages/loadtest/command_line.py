"""Command-line options as frozen dataclasses, read by argparse.

A field is an option: `turns: Annotated[int, Option("Requests of a session.", least=1)] = 1` is `--turns`. A field without a default is
required. A field whose type is such a dataclass is a group of options, with the dataclass's docstring as its heading.
"""

import argparse
import dataclasses
import difflib
import math
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn, TypeVar, cast

from loadtest.errors import SweepError

T = TypeVar("T")

LARGEST: Final = 1e15
"""Maximum number that an option accepts."""
_METAVARS: Final[Mapping[type[object], str]] = {int: "N", float: "NUMBER", Path: "PATH"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Option:
    """Command-line form of a field."""

    help: str = dataclasses.field(kw_only=False)
    flag: str = ""
    """Default: the field's name, `--max-in-flight` for `max_in_flight`."""
    metavar: str | None = None
    least: float | None = None
    most: float | None = None
    parse: Callable[[str], object] | None = None
    """Parser of the text. A ValueError's message completes the sentence "expected ..."."""
    positional: bool = False
    repeated: bool = False
    """A positional argument that can be repeated; the field is a tuple."""


JsonSwitch = Annotated[bool, Option("Print one JSON object on stdout.", flag="--json")]


class Parser(argparse.ArgumentParser):
    """argparse parser that reports errors as one sentence, and suggests the option that was meant."""

    flags: Sequence[str] = ()
    """Options that it accepts, set by `add_options`."""
    _given: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # noqa: ANN401 # pyright: ignore[reportIncompatibleMethodOverride] - argparse has overloads
        """Parse a command line, and keep its words for the error."""
        self._given = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(self._given, namespace)

    def error(self, message: str) -> NoReturn:
        """Reject a command line."""
        sentence = self._unknown_option() or f"{message[:1].upper()}{message[1:].rstrip('.')}."
        raise SweepError(f"{sentence} Run with --help for the options.")

    def _unknown_option(self) -> str:
        """Return the sentence about the first option that does not exist; empty if all exist."""
        names = [word.partition("=")[0] for word in self._given if word.startswith("--") and " " not in word]
        wrong = next((name for name in names if name not in {*self.flags, "--", "--help"}), None)
        if wrong is None:
            return ""
        near = difflib.get_close_matches(wrong, self.flags, n=1)
        return f"{wrong} is not an option.{f' Did you mean {near[0]}?' if near else ''}"


def number(text: str) -> float:
    """Return the number in a text. Raises ValueError, also for nan, inf and 1e400."""
    value = float(text)
    if not -LARGEST <= value <= LARGEST:
        raise ValueError("not a number")
    return value


def add_options(parser: Parser, kind: type[object]) -> None:
    """Add every field of a dataclass to a parser."""
    parser.flags = list(_flags(kind))
    for field, hint, option in _fields(kind):
        if option is not None:
            _add(parser.add_argument, field, hint, option)
            continue
        group = parser.add_argument_group((hint.__doc__ or "").rstrip("."))
        for inner, inner_hint, inner_option in _fields(hint):
            if inner_option is not None:
                _add(group.add_argument, inner, inner_hint, inner_option)


def read_options(kind: type[T], parsed: argparse.Namespace) -> T:
    """Return the dataclass with the values of the command line."""
    return kind(
        **{
            field.name: read_options(hint, parsed) if option is None else _value(getattr(parsed, field.name), option)
            for field, hint, option in _fields(kind)
        }
    )


def _value(value: object, option: Option) -> object:
    return tuple(cast("list[object]", value)) if option.repeated else value


def _fields(kind: type[object]) -> Iterator[tuple["dataclasses.Field[object]", type[object], Option | None]]:
    """Yield each field, its value type and its option; a group of options has no option."""
    hints = typing.get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(cast("Any", kind)):
        hint: object = hints[field.name]
        option = next((item for item in getattr(hint, "__metadata__", ()) if isinstance(item, Option)), None)
        yield field, _value_type(getattr(hint, "__origin__", hint) if option else hint), option


def _flags(kind: type[object]) -> Iterator[str]:
    """Yield every option that a parser of this dataclass accepts, including groups."""
    for field, hint, option in _fields(kind):
        if option is None:
            yield from _flags(hint)
        elif not option.positional:
            yield _flag(field, option)


def _flag(field: "dataclasses.Field[object]", option: Option) -> str:
    return option.flag or f"--{field.name.replace('_', '-')}"


def _value_type(hint: object) -> type[object]:
    """Return the type of one value: `int` for `int | None` and for `tuple[int, ...]`."""
    members = [member for member in typing.get_args(hint) if member is not types.NoneType] or [hint]
    return cast("type[object]", members[0])


def _add(add: Callable[..., object], field: "dataclasses.Field[object]", hint: type[object], option: Option) -> None:
    flag = _flag(field, option)
    required = field.default is dataclasses.MISSING
    default = None if required else field.default
    shown = "" if default is None or default is False or default == () else f" Default: {default}."
    words: dict[str, Any] = {"help": f"{option.help}{shown}", "default": default}
    if hint is bool:
        words["action"] = "store_true"
    else:
        words["type"] = _reader(flag, hint, option)
        words["metavar"] = option.metavar or (field.name.upper() if option.positional else _METAVARS.get(hint, "TEXT"))
    if option.positional:
        add(field.name, **words | ({"nargs": "*"} if option.repeated else {}))
    else:
        add(flag, dest=field.name, required=required, **words)


def _reader(flag: str, hint: type[object], option: Option) -> Callable[[str], object]:
    def read(text: str) -> object:
        try:
            if option.parse is not None:
                return option.parse(text)
            return _number(text, hint, option) if hint in {int, float} else cast("Any", hint)(text)
        except ValueError as error:
            raise SweepError(f"{flag} is {text!r}: expected {error}.") from None

    return read


def _number(text: str, hint: type[object], option: Option) -> float:
    try:
        value = int(text) if hint is int else float(text)
    except ValueError:
        value = math.nan
    least, most = option.least, option.most
    allowed = -LARGEST <= value <= LARGEST and (least is None or value >= least) and (most is None or value <= most)
    if allowed:
        return value
    limits = [f"{least:g} or more"] if least is not None else []
    limits += [f"{most:g} or less"] if most is not None else []
    kind = "a whole number" if hint is int else "a number"
    raise ValueError(f"{kind} of {' and '.join(limits)}" if limits else kind)
