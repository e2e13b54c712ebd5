"""Output of `gemma` without words: the stacks with their price, and the commands of a first day.

It does not call Google, and exits after ten seconds at most. Unreadable values are unknown.
"""

import time
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Final

from contracts.errors import ScriptError
from contracts.parallel import each_within
from engine import runner
from planning.units import duration
from scripts.gemma.arguments import ListedStack, listed
from scripts.gemma.catalog import ENTRIES, rows

FIRST_DAY: Final = ("plan", "doctor", "up", "chat", "status", "smoke", "bench", "teardown")
_LIMIT_S: Final = 5.0
"""Time for the list of stacks, and again for their states."""
_READERS: Final = 4


def first_lines() -> Sequence[str]:
    """Return the text line by line."""
    state, following = _state()
    commands = rows([ENTRIES[name] for name in FIRST_DAY])
    what = "Deploy Gemma 4 with vLLM in your own Google Cloud project."
    return [what, "", *state, *following, "", *commands, "", "`gemma help` lists all commands."]


def _state() -> tuple[Sequence[str], Sequence[str]]:
    """Return the lines about the deployed stacks, and the line with the next command."""
    ((stacks, error),) = each_within([partial(listed, limit_s=_LIMIT_S)], workers=1, limit_s=_LIMIT_S + 1)
    if stacks is None:
        return [f"The deployed stacks and their cost are unknown. {error}"], ()
    deployed = [stack for stack in stacks if stack.is_deployed]
    if not deployed:
        known = runner.stacks_in(runner.project_folder())
        return ["Nothing is deployed, nothing costs."], [
            f"Next: gemma plan {'tpu-v6e1' if 'tpu-v6e1' in known else min(known, default='--help')}"
        ]
    lines = each_within([partial(_line, stack) for stack in deployed], workers=_READERS, limit_s=_LIMIT_S)
    width = max(len(stack.name) for stack in deployed) + 2
    shown = [
        f"  {stack.name:<{width}}{line or f'price unknown: {error}'}"
        for stack, (line, error) in zip(deployed, lines, strict=True)
    ]
    return ["Deployed:", *shown], ["Next: gemma status"]


def _line(stack: ListedStack) -> str:
    """Return a stack's price and time left, as of its last `up`. Raises ScriptError."""
    from engine.state import read  # noqa: PLC0415 - only if a stack is deployed

    state = read(stack.name)
    outputs = state.outputs
    if state.status != "read":
        raise ScriptError(state.detail)
    if state.is_gateway:
        return "a gateway"
    if outputs is None:
        return "price unknown: its last `up` was not complete"
    price = f"${outputs.plan.cost.usd_per_hour:.2f}/h"
    if outputs.target == "cloud-run":
        return f"{price} for each instance that runs"
    if outputs.state != "ACTIVE":
        return f"{price} from the moment its capacity arrives; it was {outputs.state}"
    if not outputs.deadline:
        return f"{price}, without an end"
    left_s = datetime.fromisoformat(outputs.deadline).timestamp() - time.time()
    return f"{price}, {duration(left_s)} left" if left_s > 0 else "its run is over, so the machine costs nothing"
