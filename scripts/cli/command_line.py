"""Command-line options as frozen dataclasses, read by argparse.

A field is an option: `turns: Annotated[int, Option("Requests of a session.", least=1)] = 1` is `--turns`. A field without a default is
required. A field whose type is such a dataclass is a group of options, with the dataclass's docstring as its heading.

The load tester is a distribution of its own and has this file as `loadtest.command_line`, so each reader accepts the options of both.
"""

import argparse
import dataclasses
import functools
import itertools
import math
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn, TypeVar, cast

T = TypeVar("T")

LARGEST: Final = 1e15
"""Maximum number that an option accepts."""
OPTION_WORD: Final = re.compile(r"-(?![\d.])\S+$|--\S+$")
"""A word that argparse reads as an option: neither a negative number nor a text with spaces."""
_UNEXPECTED: Final = re.compile(r"unrecognized arguments: (\S+)")
"""argparse's error about a word that it does not expect."""
_NO_VALUE: Final = re.compile(r"argument (--\S+): expected one argument$")
_METAVARS: Final[Mapping[type[object], str]] = {int: "N", float: "NUMBER", Path: "PATH"}


class UsageError(Exception):
    """A command line cannot be read. The message is one sentence."""


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
    """Parses the text. A ValueError's message completes the sentence "it must be ...", and its `known` are the possible words."""
    positional: bool = False
    repeated: bool = False
    """The option can be repeated; the field is a tuple."""
    many: bool = False
    """The option takes any number of words; the field is a tuple, or None without the option."""
    negatable: bool = False
    """A switch that also has a `--no-` form."""
    bare: str = ""
    """Value of the option without a value, read as any other; empty if it needs one."""
    rare: bool = False
    """True if only `--help --all` shows it."""
    hidden: bool = False
    """True if only the reference page shows it."""
    person: bool = False
    """Only for people: it writes or sends a file of the caller's choice, reaches another server or project, or belongs to a terminal."""
    text: bool = False
    """A text of any length. The value - reads it from standard input."""


Rare: Final = functools.partial(Option, rare=True)
"""An option that only `--help --all` shows."""
JsonSwitch = Annotated[bool, Option("Print one JSON object on stdout.", flag="--json", person=True)]


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the question that suggests a known word, with a space in front; empty if none is close."""
    import difflib  # noqa: PLC0415 - only a misspelling needs it

    near = difflib.get_close_matches(word, list(known), n=1)
    return f" Did you mean {near[0]}?" if near else ""


class OptionParser(argparse.ArgumentParser):
    """argparse with errors of one sentence, which suggest the option or subcommand that was meant."""

    hint: Callable[[str, Iterable[str]], str] = staticmethod(nearest)
    """Suggests the word that was meant, as `nearest` does."""
    synonyms: Mapping[str, str] = types.MappingProxyType({})
    """Options that do not exist, with the one that does the same, or with a sentence that starts with an option."""
    flags: Sequence[str] = ()
    """Options that it accepts, set by `add_options`."""
    subcommand_names: Sequence[str] = ()
    rare: Mapping[str, str] = types.MappingProxyType({})
    """Help of the options that only `--help --all` shows, by field, set by `add_options`."""
    _given: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # noqa: ANN401 # pyright: ignore[reportIncompatibleMethodOverride] - argparse has overloads
        """Parse a command line."""
        self._given = list(sys.argv[1:] if args is None else args)
        if "--all" in self._given and {"-h", "--help"} & {*self._given}:
            for action in self._actions:
                action.help = self.rare.get(action.dest, action.help)
            self.rare = {}
        elif self.rare:
            self.epilog = f"{len(self.rare)} more options: --help --all\n{self.epilog or ''}"
        known, others = cast("tuple[Any, list[str]]", super().parse_known_args(self._given, namespace))
        if others:
            self.error(f"unrecognized arguments: {' '.join(others)}")
        return known, others

    def error(self, message: str) -> NoReturn:
        """Reject a command line."""
        sentence = self._unknown_option() or self._unknown_word(message) or message[:1].upper() + message[1:]
        raise UsageError(f"{sentence.rstrip('.')}{'' if sentence.endswith('?') else '.'} See --help.")

    def _unknown_option(self) -> str:
        """Return the sentence about the first option that does not exist; empty if all exist."""
        before = itertools.takewhile(lambda word: word != "--", self._given)
        names = (word.partition("=")[0] for word in before if OPTION_WORD.match(word))
        wrong = next((name for name in names if name not in {*self.flags, "-h", "--help"}), None)
        other = self.synonyms.get(wrong or "", "")
        answer = other if " " in other else f"Did you mean {other}?"
        found = f" {answer}" if other.partition(" ")[0] in self.flags else self.hint(wrong or "", self.flags)
        return f"{wrong} is not an option.{found}" if wrong else ""

    def _unknown_word(self, message: str) -> str:
        """Return the sentence about a word that is not a subcommand, one too many, or one too few; empty for other errors."""
        found = _UNEXPECTED.match(message)
        if found is None:
            return _NO_VALUE.sub(r"\1 has no value.", message) if _NO_VALUE.match(message) else ""
        word = found[1]
        hint = self.hint(word, self.subcommand_names)
        commands = self.subcommand_names if hint or "--stack" not in self._given else ()
        if Path(word).suffix:
            hint = f" Add > {word} to write the output to a file."
        elif not hint and "--stack" in self.flags and "--stack" not in self._given:
            hint = f" To select a stack, pass --stack {word}."
        known = f" Commands: {', '.join(commands)}." if commands and not hint else ""
        return f"{word} is not {'a command' if commands else 'expected'}.{hint}{known}"


def number(text: str) -> float:
    """Return the number in a text. Raises ValueError, even for nan, inf and 1e400."""
    value = float(text)
    if not -LARGEST <= value <= LARGEST:
        raise ValueError("not a number")
    return value


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OptionField:
    """An option of a dataclass."""

    name: str
    """Name of the field."""
    option: Option
    flag: str
    kind: type[object]
    """Type of one value."""
    default: object
    """None if it is required."""
    is_required: bool
    group: str = ""
    """Heading of its group; empty for the command's own."""

    @property
    def metavar(self) -> str:
        """Stands for the value in a help text."""
        name = self.name.upper() if self.option.positional else _METAVARS.get(self.kind, "TEXT")
        return self.option.metavar or name

    @property
    def words_of_value(self) -> str:
        """The value in a reference entry, in brackets if it may be missing."""
        if self.option.many:
            return f"[{self.metavar} ...]"
        return f"[{self.metavar}]" if self.option.bare else self.metavar

    @property
    def shown_default(self) -> str:
        """Default as text; empty if it needs no mention."""
        return "" if self.default is None or self.default is False or self.default == () else str(self.default)

    @property
    def flags(self) -> Sequence[str]:
        """Words that set it; empty for a positional argument."""
        if self.option.positional:
            return ()
        return (self.flag, f"--no-{self.flag.removeprefix('--')}") if self.option.negatable else (self.flag,)

    def words(self, values: Sequence[str]) -> Sequence[str]:
        """Return the option with these values. A list option joins several values with commas."""
        if self.option.positional:
            return values
        if self.option.repeated:
            return [word for value in values for word in (self.flag, value)]
        return (self.flag, ",".join(values))


def option_fields(kind: type[object]) -> Mapping[str, OptionField]:
    """Return every option of a dataclass by field name, including groups, in order."""
    found: dict[str, OptionField] = {}
    for field, hint, option in _fields(kind):
        if option is None:
            heading = (hint.__doc__ or "").rstrip(".")
            found |= {name: dataclasses.replace(one, group=heading) for name, one in option_fields(hint).items()}
            continue
        is_required = field.default is dataclasses.MISSING
        found[field.name] = OptionField(
            name=field.name,
            option=option,
            flag=option.flag or f"--{field.name.replace('_', '-')}",
            kind=hint,
            default=None if is_required else field.default,
            is_required=is_required,
        )
    return found


def add_options(parser: OptionParser, kind: type[object]) -> None:
    """Add every field of a dataclass to a parser."""
    fields = option_fields(kind).values()
    parser.flags = [flag for field in fields for flag in field.flags]
    for heading, members in itertools.groupby(fields, key=lambda field: field.group):
        group = parser.add_argument_group(heading) if heading else parser
        for field in members:
            _add(parser, group.add_argument, field)


def read_options(kind: type[T], parsed: argparse.Namespace) -> T:
    """Return the dataclass with the values of the command line."""
    values: dict[str, object] = {}
    for field, hint, option in _fields(kind):
        if option is None:
            values[field.name] = read_options(hint, parsed)
        else:
            value: object = getattr(parsed, field.name)
            is_list = option.repeated or (option.many and value is not None)
            values[field.name] = tuple(cast("list[object]", value)) if is_list else value
    return kind(**values)


def positional_names(kind: type[object]) -> Sequence[str]:
    """Return the names of the positional arguments, in capitals, in brackets if they are optional."""
    found = [field for field in option_fields(kind).values() if field.option.positional]
    names = {field.name: f"{field.metavar} ..." if field.option.repeated else field.name.upper() for field in found}
    return [names[field.name] if field.is_required else f"[{names[field.name]}]" for field in found]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DescribedOption:
    """Reference entry for an option."""

    group: str
    words: str
    """Syntax, such as `--limit N`."""
    meaning: str
    default: str
    """`required` or the default value; empty for a switch or an option without a default."""


def described_options(kind: type[object]) -> Iterator[DescribedOption]:
    """Yield every option of a dataclass in field order, including groups."""
    for field in option_fields(kind).values():
        option, name = field.option, ", ".join(field.flags)
        words = field.metavar if option.positional else name if field.kind is bool else f"{name} {field.words_of_value}"
        yield DescribedOption(
            group=field.group,
            words=f"{words} ..." if option.repeated else words,
            meaning=option.help,
            default="required" if field.is_required else field.shown_default,
        )


def _fields(kind: type[object]) -> Iterator[tuple["dataclasses.Field[object]", type[object], Option | None]]:
    """Yield each field, the type of its value, and its option. A group of options has none."""
    hints = typing.get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(cast("Any", kind)):
        hint: object = hints[field.name]
        found = (item for item in getattr(hint, "__metadata__", ()) if type(item).__name__ == Option.__name__)
        option = cast("Option | None", next(found, None))
        yield field, _value_type(getattr(hint, "__origin__", hint) if option else hint), option


def _value_type(hint: object) -> type[object]:
    """Return the type of one value: `int` for `int | None`, for `tuple[int, ...]` and for both."""
    members = [member for member in typing.get_args(hint) if member is not types.NoneType]
    return _value_type(members[0]) if members else cast("type[object]", hint)


def _add(parser: OptionParser, add: Callable[..., object], field: OptionField) -> None:
    option = field.option
    shown = field.shown_default
    required = field.is_required
    help_text = f"{option.help} Default: {shown}." if shown else option.help
    words: dict[str, Any] = {"help": help_text, "default": field.default}
    if option.rare or option.hidden:
        words["help"] = argparse.SUPPRESS
    if option.rare:
        parser.rare = {**parser.rare, field.name: help_text}
    if field.kind is bool:
        words["action"] = argparse.BooleanOptionalAction if option.negatable else "store_true"
    else:
        words |= {"type": _reader(parser, field), "metavar": field.metavar}
    if option.positional:
        many = {"nargs": "*"} if option.repeated else {"nargs": "?"}
        add(field.name, **words if required else words | many)
        return
    if option.repeated:
        words |= {"action": "append", "default": list[object]()}
    if option.many:
        words["nargs"] = "*"
    if option.bare:
        words |= {"nargs": "?", "const": option.bare}
    add(field.flag, dest=field.name, required=required, **words)


def _reader(parser: OptionParser, field: OptionField) -> Callable[[str], object]:
    name = field.metavar if field.option.positional else field.flag

    def read(text: str) -> object:
        try:
            if field.option.parse is not None:
                return field.option.parse(text)
            return _number(text, field) if field.kind in {int, float} else cast("Any", field.kind)(text)
        except ValueError as error:
            hint = parser.hint(text, cast("Iterable[str]", getattr(error, "known", ())))
            raise UsageError(f"{name} is {text!r}; it must be {error}.{hint}") from None

    return read


def _number(text: str, field: OptionField) -> float:
    least = field.option.least
    above = field.option.above
    most = field.option.most
    try:
        value = int(text) if field.kind is int else float(text)
    except ValueError:
        value = math.nan
    is_allowed = (
        -LARGEST <= value <= LARGEST
        and (least is None or value >= least)
        and (above is None or value > above)
        and (most is None or value <= most)
    )
    if is_allowed:
        return value
    limits = [f"{least:g} or more"] if least is not None else []
    limits += [f"more than {above:g}"] if above is not None else []
    limits += [f"{most:g} or less"] if most is not None else []
    kind = "a whole number" if field.kind is int else "a number"
    raise ValueError(f"{kind} of {' and '.join(limits)}" if limits else kind)
