"""Finish the teardowns that Google delayed: the next command of the folder deletes the networks that Google has released since."""

import subprocess
from collections.abc import Callable
from functools import partial
from typing import Final

from gemma_serving.cloud.google_api import connect
from gemma_serving.cloud.held import is_reserved
from gemma_serving.contracts.installation import product_program
from gemma_serving.contracts.parallel import each_within
from gemma_serving.scripts.stack.unfinished_teardown import held_names, held_sentence, held_stacks, held_until

_LIMIT_S: Final = 600.0
_ANSWER_LIMIT_S: Final = 5.0


def finish_held(say: Callable[[str], None], *, but: str = "") -> None:
    """Delete the networks of torn-down stacks that Google has released, and say until when it holds the others.

    Nothing else is deleted: without --yes and a terminal, a teardown refuses what its record does not name.
    """
    for stack in held_stacks():
        until = held_until(stack)
        if until is None or stack == but:
            continue
        if _is_held(stack):
            say(f"stack {stack}: {held_sentence(until)}")
            continue
        say(f"Google has released the network of stack {stack}: deleting it")
        reason = _finish(stack)
        if reason:
            say(f"the network of stack {stack} is not deleted: {reason} Run `gemma teardown {stack}`.")


def _is_held(stack: str) -> bool:
    """Return whether Google holds a network of a stack, also if it does not answer."""
    names = [name for name in held_names(stack) if "/subnetworks/" in name]
    asks = [partial(_asks, name) for name in names]
    return any(held is not False for held, _ in each_within(asks, workers=len(asks) or 1, limit_s=_ANSWER_LIMIT_S))


def _asks(subnetwork: str) -> bool:
    return is_reserved(connect(subnetwork.split("/")[1]), subnetwork)


def _finish(stack: str) -> str:
    """Tear a stack down without a question. Return why it failed; empty if it did not."""
    command = product_program("gemma_serving.scripts.teardown", f"--stack={stack}")
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["It printed nothing."])[-1]
