"""Completion for shells: candidates after the words on the command line."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Final, cast

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.settings_files import example_stacks
from gemma_serving.engine import runner
from gemma_serving.scripts.cli.options import OptionField, option_fields, parted
from gemma_serving.scripts.gemma.arguments import call_of
from gemma_serving.scripts.gemma.catalog import ENTRIES, CommandEntry, entry_of

_FAMILY: Final = "google/gemma-4-"
_SHELLS: Final = ("bash", "zsh", "fish")
"""Shells that have a script, `completion.SHELL`, in this folder."""
_CHOICE: Final = " | ".join(_SHELLS)
_HELP: Final = f"""usage: gemma completion {_CHOICE}

Print the completion script of a shell. Its first line shows how to load it.
"""


def script(words: Sequence[str]) -> str:
    """Return the completion script of a shell, or the help. Raises CommandRefusedError for another word."""
    if {"-h", "--help"} & {*words}:
        return _HELP
    shell = " ".join(words)
    if shell not in _SHELLS:
        raise CommandRefusedError(f"completion takes one shell, not {shell!r}. Run `gemma completion {_CHOICE}`.")
    return Path(__file__).with_name(f"completion.{shell}").read_text(encoding="utf-8")


def candidates(words: Sequence[str]) -> Sequence[str]:
    """Return the candidates for the last word, sorted; none if the words before it name no command."""
    *before, start = words or [""]
    found = [*ENTRIES, "completion", "help"]
    if before:
        entry = entry_of(before[0])
        found = _of_command(entry, before[1:]) if entry else list(_SHELLS) if before[0] == "completion" else []
    return sorted(one for one in found if one.startswith(start) and (one[0] != "-" or start[:1] == "-"))


def _of_command(entry: CommandEntry, words: Sequence[str]) -> list[str]:
    call = call_of(entry, words)
    options = option_fields(call.command.options)
    begun = next((one for one in options.values() if call.words and call.words[-1] in one.flags), None)
    if begun is not None and begun.kind is not bool:
        return [*_values(begun)]
    is_stack_next = "stack" in options and not parted(call.words, call.command.options)[0]
    return [
        *(runner.settings_names() if is_stack_next else ()),
        *(() if call.lead else [sub.name for sub in call.command.subcommands]),
        *(option.flag for option in options.values() if not (option.option.positional or option.option.hidden)),
        *(value for option in options.values() if option.option.positional for value in _values(option)),
        "--help",
    ]


def _values(option: OptionField) -> Iterable[str]:
    """Return the values that an option has by its name, or that it names when it refuses one."""
    if (values := _VALUES.get(option.name)) is not None:
        return values()
    if (table := _TABLES.get(option.name)) is not None:
        module, _, name = table.partition(":")
        return getattr(import_module(module), name)
    try:
        return () if option.option.parse is None else (str(option.option.parse("")),)
    except ValueError as error:
        return cast("Iterable[str]", getattr(error, "known", ()))


def _examples() -> Iterable[str]:
    return {*runner.settings_names(), *example_stacks()}


def _models() -> Iterable[str]:
    from gemma_serving.planning.model.catalog import model_ids  # noqa: PLC0415 - only its completion needs it

    ids = model_ids()
    sizes = {one.removeprefix(_FAMILY).removesuffix("-it") for one in ids if one.startswith(_FAMILY)}
    return [*ids, *(size for size in sizes if f"{_FAMILY}{size}-it" in ids)]


def _keys() -> Iterable[str]:
    from gemma_serving.scripts.plan.api import set_keys  # noqa: PLC0415 - as above

    return (f"{key}=" for key in set_keys())


_VALUES: Final[Mapping[str, Callable[[], Iterable[str]]]] = {
    "stack": runner.settings_names,
    "compare": runner.settings_names,
    "like": _examples,
    "model": _models,
    "set": _keys,
}
"""Values by the field of an option, which means the same in each command."""
_TABLES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("accelerator", "accelerators"), "gemma_serving.planning.machine.hardware:ACCELERATORS"),
    "finding": "gemma_serving.planning.rules.findings:RULES",
    "image": "gemma_serving.planning.data.images:IMAGES",
    "preset": "loadtest.load_options:PRESETS",
}
"""Tables with the values of an option as keys, imported only for its completion."""
