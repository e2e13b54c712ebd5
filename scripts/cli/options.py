"""Command-line options as frozen dataclasses, parsed by argparse.

A field is an option: `concurrency: Annotated[int | None, Option("Requests in flight.", least=1)] = None` is `--concurrency`. A field
without a default is required. A field whose type is such a dataclass is a group of options; the dataclass's docstring is its heading.

argparse instead of typer, because `scripts.plan --json` has to stay under 0.2 s. An empty interpreter takes 15 ms here,
`import argparse` 25 ms more, `import typer` 76 ms more; `scripts.plan --json` takes 103 ms with argparse. argparse is also part of
Python, which saves two packages.
"""

import argparse
import dataclasses
import itertools
import math
import os
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn, TypeVar, cast

from contracts.errors import CommandRefusedError
from contracts.spelling import UnknownWordError, did_you_mean
from planning.numbers import number, whole_number

T = TypeVar("T")

_OPTION_WORD: Final = re.compile(r"-(?![\d.])\S+$|--\S+$")
"""A word that argparse reads as an option: neither a negative number nor a text with spaces."""
_UNEXPECTED: Final = re.compile(
    r"argument COMMAND: invalid choice: '(?P<choice>[^']*)'|unrecognized arguments: (?P<extra>\S+)"
)
"""argparse's errors about a word that it does not expect."""
_NO_VALUE: Final = re.compile(r"argument (--\S+): expected one argument$")
_SYNONYMS: Final[Mapping[str, str]] = {
    "--tail": "--lines", "-n": "--lines", "-f": "--follow", "-y": "--yes", "--users": "--workload", "--cost": "--costs",
}  # fmt: skip
"""Options of other tools, with the one that does the same."""
_METAVARS: Final[Mapping[type[object], str]] = {int: "N", float: "NUMBER", Path: "PATH"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Option:
    """Command-line form of a field."""

    help: str = dataclasses.field(kw_only=False)
    flag: str = ""
    """Default: the field's name, `--max-in-flight` for `max_in_flight`."""
    metavar: str | None = None
    least: float | None = None
    above: float | None = None
    most: float | None = None
    parse: Callable[[str], object] | None = None
    """Parses the text. A ValueError's message completes the sentence "it must be ..."."""
    positional: bool = False
    repeated: bool = False
    """The option can be repeated; the field is a tuple."""
    negatable: bool = False
    """A switch that also has a `--no-` form."""
    variable: str = ""
    """Environment variable that provides a default."""


StackName = Annotated[str, Option("Name of the stack.", metavar="NAME")]
JsonSwitch = Annotated[bool, Option("Print one JSON object on stdout.", flag="--json")]


class Parser(argparse.ArgumentParser):
    """argparse with errors of one sentence, which suggest the option or subcommand that was meant."""

    flags: Sequence[str] = ()
    """Options that it accepts, set by `add_options`."""
    subcommand_names: Sequence[str] = ()
    _given: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # noqa: ANN401 # pyright: ignore[reportIncompatibleMethodOverride] - argparse has overloads
        """Parse a command line. A subcommand reports its unknown words itself, because its options are known here."""
        self._given = list(sys.argv[1:] if args is None else args)
        known, others = cast("tuple[Any, list[str]]", super().parse_known_args(self._given, namespace))
        if others:
            self.error(f"unrecognized arguments: {' '.join(others)}")
        return known, others

    def error(self, message: str) -> NoReturn:
        """Reject a command line."""
        sentence = self._unknown_option() or self._unknown_word(message) or message[:1].upper() + message[1:]
        raise CommandRefusedError(f"{sentence.rstrip('.')}{'' if sentence.endswith('?') else '.'} See --help.")

    def _unknown_option(self) -> str:
        """Return the sentence about the first option that does not exist; empty if all exist."""
        own = itertools.takewhile(lambda word: word != "--" and word not in self.subcommand_names, self._given)
        names = (word.partition("=")[0] for word in own if _OPTION_WORD.match(word))
        wrong = next((name for name in names if name not in {*self.flags, "-h", "--help"}), None)
        other = _SYNONYMS.get(wrong or "")
        found = f" Did you mean {other}?" if other in self.flags else did_you_mean(wrong or "", self.flags)
        return f"{wrong} is not an option.{found}" if wrong else ""

    def _unknown_word(self, message: str) -> str:
        """Return the sentence about a word that is not a subcommand, one too many, or one too few; empty for other errors."""
        found = _UNEXPECTED.match(message)
        if found is None:
            return _NO_VALUE.sub(r"\1 has no value.", message) if _NO_VALUE.match(message) else ""
        word = found["choice"] or found["extra"]
        hint = did_you_mean(word, self.subcommand_names)
        if not hint and "--stack" in self.flags and "--stack" not in self._given:
            hint = f" To select a stack, pass --stack {word}."
        commands = f" Commands: {', '.join(self.subcommand_names)}." if self.subcommand_names and not hint else ""
        return f"{word} is not {'a command' if self.subcommand_names else 'expected'}.{hint}{commands}"


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
    values: dict[str, object] = {}
    for field, hint, option in _fields(kind):
        if option is None:
            values[field.name] = read_options(hint, parsed)
        else:
            value: object = getattr(parsed, field.name)
            values[field.name] = tuple(cast("list[object]", value)) if option.repeated else value
    return kind(**values)


def positional_names(kind: type[object]) -> Sequence[str]:
    """Return the names of the positional arguments, in capitals."""
    found = [(field, option) for field, _, option in _fields(kind) if option is not None and option.positional]
    return [
        f"[{option.metavar or field.name.upper()} ...]" if option.repeated else field.name.upper()
        for field, option in found
    ]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OptionField:
    """An option, for programs that build a command line."""

    option: Option
    flag: str
    kind: type[object]
    """Type of one value."""
    is_required: bool = False

    def words(self, values: Sequence[str]) -> Sequence[str]:
        """Return the option with these values. A list option joins several values with commas."""
        if self.option.positional:
            return values
        if self.option.repeated:
            return [word for value in values for word in (self.flag, value)]
        return (self.flag, ",".join(values))


def option_fields(kind: type[object]) -> Mapping[str, OptionField]:
    """Return every option of a dataclass by field name, including groups."""
    found: dict[str, OptionField] = {}
    for field, hint, option in _fields(kind):
        if option is None:
            found |= option_fields(hint)
        else:
            found[field.name] = OptionField(
                option=option,
                flag=_flag(field, option),
                kind=hint,
                is_required=field.default is dataclasses.MISSING,
            )
    return found


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DescribedOption:
    """Reference entry for an option."""

    group: str
    """Heading of its group; empty for the command's own."""
    words: str
    """Syntax, such as `--limit N`."""
    meaning: str
    default: str
    """`required` or the default value; empty for a switch or an option without a default."""


def described_options(kind: type[object]) -> Iterator[DescribedOption]:
    """Yield every option of a dataclass in field order, including groups."""
    for field, hint, option in _fields(kind):
        if option is not None:
            yield _described(field, hint, option)
        else:
            heading = (hint.__doc__ or "").rstrip(".")
            yield from (dataclasses.replace(inner, group=heading) for inner in described_options(hint))


def _described(field: "dataclasses.Field[object]", hint: type[object], option: Option) -> DescribedOption:
    name, value = _flag(field, option), _metavar(field, hint, option)
    if option.negatable:
        name = f"{name}, --no-{name.removeprefix('--')}"
    words = value if option.positional else name if hint is bool else f"{name} {value}"
    return DescribedOption(
        group="",
        words=f"{words} ..." if option.repeated else words,
        meaning=f"{option.help} Default: {option.variable} in the environment." if option.variable else option.help,
        default="required" if field.default is dataclasses.MISSING else _shown_default(field),
    )


def _flag(field: "dataclasses.Field[object]", option: Option) -> str:
    return option.flag or f"--{field.name.replace('_', '-')}"


def _flags(kind: type[object]) -> Iterator[str]:
    """Yield every option that a parser of this dataclass accepts, including groups."""
    for one in option_fields(kind).values():
        if not one.option.positional:
            yield one.flag
            if one.option.negatable:
                yield f"--no-{one.flag.removeprefix('--')}"


def _metavar(field: "dataclasses.Field[object]", hint: type[object], option: Option) -> str:
    return option.metavar or (field.name.upper() if option.positional else _METAVARS.get(hint, "TEXT"))


def _shown_default(field: "dataclasses.Field[object]") -> str:
    """Return a default as text; empty if it needs no mention."""
    default = field.default
    return "" if default is None or default is False or default == () else str(default)


def _fields(kind: type[object]) -> Iterator[tuple["dataclasses.Field[object]", type[object], Option | None]]:
    """Yield each field, the type of its value, and its option. A group of options has none."""
    hints = typing.get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(cast("Any", kind)):
        hint: object = hints[field.name]
        option = next((found for item in getattr(hint, "__metadata__", ()) if (found := _as_option(item))), None)
        yield field, _value_type(getattr(hint, "__origin__", hint) if option else hint), option


@typing.runtime_checkable
class _OptionOfAPackage(typing.Protocol):
    """The option of a package that has its own command line, such as `loadtest.command_line.Option`: a dataclass with some of these fields."""

    help: str
    metavar: str | None
    parse: Callable[[str], object] | None
    __dataclass_fields__: typing.ClassVar[dict[str, "dataclasses.Field[Any]"]]


def _as_option(marker: object) -> Option | None:
    """Return the option in a field's annotation; None for any other annotation."""
    if isinstance(marker, Option):
        return marker
    return Option(**vars(marker)) if isinstance(marker, _OptionOfAPackage) else None


def _value_type(hint: object) -> type[object]:
    """Return the type of one value: `int` for `int | None` and for `tuple[int, ...]`."""
    members = [member for member in typing.get_args(hint) if member is not types.NoneType] or [hint]
    return cast("type[object]", members[0])


def _add(add: Callable[..., object], field: "dataclasses.Field[object]", hint: type[object], option: Option) -> None:
    flag = _flag(field, option)
    required = field.default is dataclasses.MISSING
    default = None if required else field.default
    shown = "" if required else _shown_default(field)
    words: dict[str, Any] = {"help": f"{option.help} Default: {shown}." if shown else option.help, "default": default}
    if hint is bool:
        words["action"] = argparse.BooleanOptionalAction if option.negatable else "store_true"
    else:
        words |= {
            "type": _reader(_metavar(field, hint, option) if option.positional else flag, hint, option),
            "metavar": _metavar(field, hint, option),
        }
    if option.positional:
        many = {"nargs": "*"} if option.repeated else {"nargs": "?"}
        add(field.name, **words if required else words | many)
        return
    if option.variable in os.environ:
        words["default"], required = os.environ[option.variable], False
    if option.repeated:
        words |= {"action": "append", "default": list[object]()}
    add(flag, dest=field.name, required=required, **words)


def _reader(name: str, hint: type[object], option: Option) -> Callable[[str], object]:
    def read(text: str) -> object:
        try:
            if option.parse is not None:
                return option.parse(text)
            return _number(text, hint, option) if hint in {int, float} else cast("Any", hint)(text)
        except UnknownWordError as error:
            raise CommandRefusedError(
                f"{name} is {text!r}; it must be {error}.{did_you_mean(text, error.known)}"
            ) from None
        except ValueError as error:
            raise CommandRefusedError(f"{name} is {text!r}; it must be {error}.") from None

    return read


def _number(text: str, hint: type[object], option: Option) -> float:
    least, above, most = option.least, option.above, option.most
    try:
        value = whole_number(text) if hint is int else number(text)
    except ValueError:
        value = math.nan
    allowed = (
        not math.isnan(value)
        and (least is None or value >= least)
        and (above is None or value > above)
        and (most is None or value <= most)
    )
    if not allowed:
        limits = [f"{least:g} or more"] if least is not None else []
        limits += [f"more than {above:g}"] if above is not None else []
        limits += [f"{most:g} or less"] if most is not None else []
        kind = "a whole number" if hint is int else "a number"
        raise ValueError(f"{kind} of {' and '.join(limits)}" if limits else kind)
    return value
