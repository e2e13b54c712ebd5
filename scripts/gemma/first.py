"""What `gemma` without words prints: the deployed stacks, and the commands of a first day. It calls nothing of Google."""

from collections.abc import Sequence
from typing import Final

from contracts.errors import ScriptError
from engine import runner
from scripts.gemma.arguments import listed
from scripts.gemma.catalog import ENTRIES, rows

FIRST_DAY: Final = ("plan", "doctor", "up", "chat", "status", "smoke", "bench", "teardown")
_LIMIT_S: Final = 5.0
"""Time for the list of stacks."""


def first_lines() -> Sequence[str]:
    """Return the lines."""
    commands = rows([ENTRIES[name] for name in FIRST_DAY])
    what = "Deploy Gemma 4 with vLLM in your own Google Cloud project."
    return [what, "", *_state(), "", *commands, "", "`gemma help` lists all commands."]


def _state() -> Sequence[str]:
    """Return the lines about what is deployed, with the next command."""
    try:
        deployed = [stack.name for stack in listed(limit_s=_LIMIT_S) if stack.resources != 0]
    except ScriptError as error:
        return [f"What is deployed, and what it costs, is unknown. {error}"]
    if deployed:
        return [f"Deployed: {', '.join(deployed)}.", "Next, for state and costs: gemma status"]
    known = runner.stacks_in(runner.project_folder())
    first = "tpu-v6e1" if "tpu-v6e1" in known else min(known, default="--help")
    return ["Nothing is deployed, nothing costs.", f"Next: gemma plan {first}"]
