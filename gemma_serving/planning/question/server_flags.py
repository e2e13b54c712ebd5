"""Parser for `vllm serve` arguments that uses the image's table of flags and follows vLLM's rules.

Source: vLLM's utils/argparse_utils.py (FlexibleArgumentParser) and Python's argparse. `_` in a flag means `-`, a flag may be abbreviated
if unambiguous, `--flag=value` and `--flag value` are equal, `--flag.key=value` sets one key of a JSON value.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from itertools import chain
from typing import Final, Literal, cast

from msgspec import Struct
from msgspec.structs import replace

from gemma_serving.planning.data.tables import data_file
from gemma_serving.planning.model.support import known_key, version_key
from gemma_serving.planning.numbers import read_json
from gemma_serving.planning.settings.vllm_args import OPTIONS

Kind = Literal["switch", "toggle", "value", "values", "optional"]
_NUMBER: Final = re.compile(r"-\d+(\.\d*)?|-\.\d+")
_SHOWN_CHOICES: Final = 16
CHAT_TEMPLATE: Final = OPTIONS["chatTemplate"].flag
_LOAD_FORMAT: Final = OPTIONS["loadFormat"].flag
_SIZE: Final = re.compile(r"(\d+)([KMGT])|(\d+(?:\.\d+)?)([kmgt])")
"""vLLM's human_readable_int, in addition to plain whole numbers: powers of 1,024 by large letters, and of 1,000 by small ones."""
_AUTO: Final = "auto"
PLUGIN_OF: Final[Mapping[str, str]] = {
    OPTIONS["toolCallParser"].flag: "--tool-parser-plugin",
    OPTIONS["reasoningParser"].flag: "--reasoning-parser-plugin",
}
"""Flag that adds names to each kind of parser."""
_NUMBERS: Final[Mapping[str, str]] = {
    "int": "a whole number",
    "float": "a number",
    "size": "a whole number, such as 4096 or 4k",
}


class ServerFlag(Struct, frozen=True):
    """One flag of the server."""

    name: str
    """Long spelling."""
    kind: str
    """switch; toggle, which has a `--no-` form; value; values, one word or more; optional, one word or none."""
    choices: tuple[str, ...] = ()
    """Allowed values; empty if any is allowed. Of `--chat-template`: the templates of vLLM's sources, beside which an image may have others."""
    number: str = ""
    """int, float, or size (a whole number with k, M and so on); with a `?` if `None` is allowed too. Empty if it need not be a number."""
    group: str = ""
    """vLLM's group of flags, such as ParallelConfig; empty for flags of the command itself."""


class RemovedFlag(Struct, frozen=True):
    """A flag of older releases."""

    last: str
    """Newest release with it."""
    replacement: str
    """Flag to use instead, with its value if it has a fixed one; empty if there is none."""
    source: str
    """Release and file of vLLM that say so."""


class FlagTable(Struct, frozen=True):
    """The flags of one version of vLLM."""

    version: str
    """Name of the version in messages."""
    is_certain: bool
    """False if the version is outside the tables and may have flags that they lack."""
    flags: Mapping[str, ServerFlag]
    """Flag by spelling, including short ones and `--no-` forms. `--flag.key` is a key of a JSON value with choices of its own."""


class ServerArgument(Struct, frozen=True, kw_only=True):
    """One flag with its value, or a word that belongs to none."""

    words: tuple[int, ...]
    """Positions of its arguments."""
    written: str = ""
    """The flag as written, without its value; empty for a word that belongs to no flag."""
    flag: ServerFlag | None = None
    """None if the table has no such flag."""
    key: str = ""
    """The part of `--flag.key` after the first dot."""
    is_off: bool = False
    """True if it is the `--no-` form."""
    value: tuple[str, ...] = ()
    problem: str = ""
    """Reason that vLLM rejects it, as the end of a sentence and without any value; empty if it does not."""

    @property
    def name(self) -> str:
        """Long spelling of its flag; empty if the table has no such flag."""
        return self.flag.name if self.flag is not None else ""


@cache
def flag_table(version: str | None) -> FlagTable:
    """Return the table of a version. A version between two releases may have the flags of both, and an unknown one those of all."""
    text, key, releases = version or "", known_key(version or ""), flag_releases()
    keys = [_key(name) for name in releases]
    at = bisect_left(keys, key) if key else 0
    near = releases[max(at - (key not in keys), 0) : at + 1] if key else releases
    return FlagTable(f"vLLM {text}" if version_key(text) else "vLLM", key in keys or at > 0, _flags(near))


@cache
def flag_releases() -> tuple[str, ...]:
    """Return the releases with a table, oldest first."""
    return tuple(data_file("flags.json")["releases"].split())


@cache
def _flags(releases: tuple[str, ...]) -> Mapping[str, ServerFlag]:
    """Return the flags of all of these releases, with the choices of all. A flag without choices in one of them has none."""
    rows: dict[str, str] = data_file("flags.json")["flags"]
    flags: dict[str, ServerFlag] = {}
    for line, bounds in rows.items():
        having = [release for release in releases if is_of(bounds, release)]
        if not having:
            continue
        facts, _, group = line.partition(" @")
        words = facts.split(" ")
        names = [word for word in words if word.startswith("-")]
        kind, allowed = (*words[len(names) :], "")[:2]
        is_number = allowed.startswith("<")
        choices = () if is_number else tuple(dict.fromkeys(chain(*(choices_of(allowed, one) for one in having))))
        if names[0] in flags:
            choices = (*flags[names[0]].choices, *choices) if flags[names[0]].choices and choices else ()
        flag = ServerFlag(names[0], kind, choices, allowed.strip("<>") if is_number else "", group)
        flags |= dict.fromkeys(names, flag)
        if kind == "toggle":
            flags[f"--no-{names[0].removeprefix('--')}"] = flag
    return flags


def choices_of(text: str, release: str) -> tuple[str, ...]:
    """Return the choices of a flag's line that a release has."""
    parts = [word.partition("@") for word in text.split("|") if word]
    return tuple(word for word, _, bounds in parts if is_of(bounds, release))


def is_of(bounds: str, release: str) -> bool:
    """Return whether a release is within `FIRST-LAST`, or at `FIRST` or later."""
    first, _, last = bounds.partition("-")
    return _key(first) <= _key(release) <= _key(last or release)


def _key(version: str) -> tuple[int, ...]:
    return version_key(version) or ()


@cache
def removed_flags() -> Mapping[str, RemovedFlag]:
    """Return the flags that vLLM's releases up to the newest table have removed or renamed."""
    rows: dict[str, str] = data_file("flags.json")["removed"]
    return {name: RemovedFlag(*facts.split(" | ")) for names, facts in rows.items() for name in names.split()}


def parse_arguments(arguments: Sequence[str], table: FlagTable) -> tuple[ServerArgument, ...]:
    """Return the arguments in order, each flag with its values. A parser's name is not judged beside a plugin, which adds names."""
    read = tuple(_parsed(arguments, table))
    given = {one.name for one in read}
    has_own = {one for one in read if one.value and PLUGIN_OF.get(one.name) in given}
    return tuple(replace(one, problem="") if one in has_own else one for one in read)


def _parsed(arguments: Sequence[str], table: FlagTable) -> Iterator[ServerArgument]:
    position = 0
    while position < len(arguments):
        word = arguments[position]
        if not _is_flag(word):
            yield ServerArgument(words=(position,), problem=f"argument {position + 1} does not belong to a flag")
            position += 1
            continue
        found = _read(arguments, position, table)
        yield found
        position = found.words[-1] + 1


def _is_flag(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and not _NUMBER.fullmatch(word) and " " not in word.partition("=")[0]


def _read(arguments: Sequence[str], start: int, table: FlagTable) -> ServerArgument:
    """Return the argument that starts at a position, with the words that belong to it."""
    written, attached, given = _split(arguments[start], table)
    base, dot, key = written.partition(".")
    spelling, problem = _spelling(base, table)
    flag = table.flags.get(spelling)
    kind = "value" if dot else flag.kind if flag else "values"
    end = start + 1
    if not attached:
        most = {"switch": 0, "toggle": 0, "value": 1, "optional": 1, "values": len(arguments)}[kind]
        while end < len(arguments) and end - start <= most and not _is_flag(arguments[end]):
            end += 1
    value = (given,) if attached else tuple(arguments[start + 1 : end])
    return ServerArgument(
        words=tuple(range(start, end)),
        written=written,
        flag=flag,
        key=key,
        is_off=spelling.startswith("--no-") and flag is not None and flag.name != spelling,
        value=value,
        problem=problem or (_value_problem(written, flag, value, key, table) if flag else ""),
    )


def _split(word: str, table: FlagTable) -> tuple[str, bool, str]:
    """Return the flag as written, whether a value is attached to it, and that value."""
    if word.startswith("-O") and len(word) > 2 and word[2] != ".":  # noqa: PLR2004 - the letter, then the level
        return "-O", True, word[2:].removeprefix("=")
    name, equals, value = word.partition("=")
    if not word.startswith("--") and name.partition(".")[0] not in table.flags and word[:2] in table.flags:
        return word[:2], True, word[2:]  # -qfp8
    return name, bool(equals), value


def _spelling(base: str, table: FlagTable) -> tuple[str, str]:
    """Return the spelling in the table that a written flag means, and the problem with it."""
    name = base.replace("_", "-") if base.startswith("--") else base
    if name in {"-O", "-h", "--help"}:
        problem = "" if name == "-O" else f"{base} prints the help and exits"
        return ("--optimization-level" if name == "-O" else name), problem
    if name in table.flags:
        return name, ""
    may_be_short = name.startswith("--") and name not in removed_flags()
    longer = [known for known in table.flags if known.startswith(name) and "." not in known] if may_be_short else []
    if len({(table.flags[known].name, known.startswith("--no-")) for known in longer}) == 1:
        return longer[0], ""
    if longer:
        return name, f"{base} could be {', '.join(longer[:3])}{' and others' if len(longer) > 3 else ''}"  # noqa: PLR2004 - shown
    hint = _past_or_future(name, table)
    return name, "" if hint is None else f"{base} is not a flag of {table.version}{hint}"


def _past_or_future(name: str, table: FlagTable) -> str | None:
    """Return what is known of a flag that a table lacks: the newer or older release with it, or the flag that is meant. None if an older table may have it."""
    release = table.version.removeprefix("vLLM ")
    newer = next((one for one in flag_releases() if _key(one) > _key(release) and name in flag_table(one).flags), None)
    if newer is not None:
        return f" (its first release is {newer})"
    removed = removed_flags().get(name.replace("--no-", "--", 1))
    if removed is None:
        return _suggestion(name, tuple(table.flags))
    if known_key(release) and _key(release) <= _key(removed.last):
        return None
    return f" (its last release is {removed.last}; {f'use {removed.replacement}' if removed.replacement else 'leave it out'})"


@lru_cache(maxsize=256)
def _suggestion(name: str, flags: tuple[str, ...]) -> str:
    """Return a similar flag. Every remedy is planned as a whole, so the same misspelling is read many times."""
    from difflib import get_close_matches  # noqa: PLC0415 - only for a misspelling

    same = [flag for flag in flags if _sense(flag) == _sense(name)]  # never the opposite
    close = get_close_matches(name, same, n=1, cutoff=0.75)
    return f" (did you mean {close[0]}?)" if close else ""


def _sense(flag: str) -> str:
    """Return the word with which a flag turns something on or off; empty for any other flag."""
    return next((word for word in ("--enable-", "--disable-", "--no-") if flag.startswith(word)), "")


def _value_problem(written: str, flag: ServerFlag, value: tuple[str, ...], key: str, table: FlagTable) -> str:
    """Return why vLLM rejects the value of a flag, or of one key of its JSON value; empty if it does not."""
    if key:
        inner = table.flags.get(f"{flag.name}.{key}")
        return _text_problem(written, inner, value) if inner else ""
    problem = _text_problem(written, flag, value)
    for name, text in _words_of_json(value):
        problem = problem or _value_problem(f"{written}.{name}", flag, (text,), name, table)
    return problem


def _text_problem(written: str, flag: ServerFlag, value: tuple[str, ...]) -> str:
    if flag.kind in {"switch", "toggle"}:
        return f"{written} takes no value" if value else ""
    if not value:
        return "" if flag.kind == "optional" else f"{written} has no value"
    if not _is_allowed(flag, value[0]):
        others = " and others" if len(flag.choices) > _SHOWN_CHOICES else ""
        allowed = f"; allowed: {', '.join(flag.choices[:_SHOWN_CHOICES])}{others}"
        return f"{written} has an invalid value{_suggestion(value[0], flag.choices) or allowed}"
    if flag.number and not _is_number(value[0], flag.number):
        return f"{written} has an invalid value; expected {_NUMBERS[flag.number.rstrip('?')]}"
    return ""


def _is_allowed(flag: ServerFlag, text: str) -> bool:
    """Return whether a text is one of a flag's choices, as vLLM compares it. An image may have more chat templates than vLLM."""
    if not flag.choices or flag.name == CHAT_TEMPLATE:
        return True
    if flag.name.endswith("backend"):
        return _plain(text) in map(_plain, flag.choices)
    return (text.lower() if flag.name == _LOAD_FORMAT else text) in flag.choices


def _words_of_json(value: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield the texts of a JSON object by key; nothing for any other value."""
    if value and value[0].startswith("{"):
        with suppress(ValueError):
            values = cast("Mapping[str, object]", read_json(value[0]))
            yield from ((name, word) for name, word in values.items() if isinstance(word, str))


def _is_number(text: str, number: str) -> bool:
    """Return whether vLLM's parser reads a text as this number."""
    if (number.endswith("?") and text in {"", "None"}) or (number.startswith("size") and text.lower() == _AUTO):
        return True
    try:
        read_number(text, number)
    except ValueError:
        return False
    return True


def read_number(text: str, number: str) -> float:
    """Return the number that vLLM's parser reads in a text. Raises ValueError. `number`: as of `ServerFlag`."""
    if number.startswith("float"):
        return float(text)
    size = _SIZE.fullmatch(text.strip()) if number.startswith("size") else None
    if size is None:
        return int(text)
    whole, binary, decimal, letter = size.groups()
    if binary:
        return int(whole) * 1_024 ** ("KMGT".index(binary) + 1)
    return int(float(decimal) * 1_000 ** ("kmgt".index(letter) + 1))


def _plain(value: str) -> str:
    return value.lower().replace("-", "_")
