"""Completion for shells: candidates after the words on the command line."""

from collections.abc import Mapping, Sequence
from typing import Final

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.engine import runner
from gemma_serving.scripts.cli.options import option_fields
from gemma_serving.scripts.gemma.arguments import call_of
from gemma_serving.scripts.gemma.catalog import ENTRIES, CommandEntry, entry_of

_SCRIPTS: Final[Mapping[str, str]] = {
    "bash": """\
# Add to ~/.bashrc: eval "$(gemma completion bash)"
_gemma() {
    local IFS=$'\\n'
    COMPREPLY=($(gemma __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _gemma gemma
""",
    "zsh": """\
# Add to ~/.zshrc, after compinit: eval "$(gemma completion zsh)"
_gemma() {
    local -a found
    found=("${(@f)$(gemma __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    compadd -a found || _files
}
compdef _gemma gemma
""",
    "fish": """\
# Write to ~/.config/fish/completions/gemma.fish
complete -c gemma -a '(gemma __complete (commandline -opc)[2..] (commandline -ct) 2>/dev/null)'
""",
}


def script(words: Sequence[str]) -> str:
    """Return the completion script of a shell. Raises CommandRefusedError for another word."""
    shell = words[0] if words else ""
    if len(words) != 1 or shell not in _SCRIPTS:
        raise CommandRefusedError(
            f"completion takes one shell, not {shell!r}. Run `gemma completion {' | '.join(_SCRIPTS)}`."
        )
    return _SCRIPTS[shell]


def candidates(words: Sequence[str]) -> Sequence[str]:
    """Return the candidates for the last word, sorted; none if the words before it name no command."""
    *before, start = words or [""]
    found = [*ENTRIES, "completion", "help"]
    if before:
        entry = entry_of(before[0])
        found = _of_command(entry, before[1:]) if entry else list(_SCRIPTS) if before[0] == "completion" else []
    return sorted(one for one in found if one.startswith(start) and (one[0] != "-" or start[:1] == "-"))


def _of_command(entry: CommandEntry, words: Sequence[str]) -> list[str]:
    call = call_of(entry, words)
    options = option_fields(call.command.options)
    is_stack_next = "stack" in options and (not call.words or call.words[-1] == "--stack")
    return [
        *(runner.settings_names() if is_stack_next else ()),
        *(() if call.lead else [sub.name for sub in call.command.subcommands]),
        *(option.flag for option in options.values() if not option.option.positional),
        "--help",
    ]
