"""Finish the teardowns that Google delayed: the next command of the folder deletes the networks that Google has released since."""

from collections.abc import Callable
from functools import partial
from typing import Final

from gemma_serving.cloud.google_api import connect
from gemma_serving.cloud.held import addresses_in
from gemma_serving.contracts.installation import product_program
from gemma_serving.contracts.parallel import each_within
from gemma_serving.engine.children import ended
from gemma_serving.scripts.stack.unfinished_teardown import HeldNetwork, held_networks

_ANSWER_LIMIT_S: Final = 5.0


def finish_held(say: Callable[[str], None], *, but: str = "") -> None:
    """Delete the networks of torn-down stacks that Google has released, and say until when it holds the others.

    Nothing else is deleted: without --yes and a terminal, a teardown refuses what its record does not name.
    """
    for stack, held in held_networks().items():
        if stack == but:
            continue
        if _is_held(held):
            say(f"stack {stack}: {held.sentence}")
            continue
        say(f"Google has released the network of stack {stack}: deleting it")
        command = product_program("gemma_serving.scripts.teardown", f"--stack={stack}")
        done = ended(command)
        if done.returncode != 0:
            say(f"its deletion failed: {done.stderr.strip().rpartition(chr(10))[2]} Run `gemma teardown {stack}`.")


def _is_held(held: HeldNetwork) -> bool:
    """Return whether Google holds a network, also if it does not answer."""
    asks = [partial(_has_addresses, name) for name in held.names if "/subnetworks/" in name]
    return any(found is not False for found, _ in each_within(asks, workers=len(asks), limit_s=_ANSWER_LIMIT_S))


def _has_addresses(subnetwork: str) -> bool:
    return bool(addresses_in(connect(subnetwork.split("/")[1]), subnetwork))
