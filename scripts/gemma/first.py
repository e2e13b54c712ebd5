"""Output of `gemma` without words: the stacks with their price, and the commands of a first day.

It calls Google only about a network that it may have released, and exits after ten seconds at most. Unreadable values are unknown.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Final

from gemma_serving.contracts.installation import no_project, own_project
from gemma_serving.contracts.parallel import each_within
from gemma_serving.contracts.stack_facts import INCOMPLETE, ServesNow, StackFacts
from gemma_serving.engine import runner
from gemma_serving.engine.backend import shown_url
from gemma_serving.engine.locks import stack_locks
from gemma_serving.scripts.gemma.arguments import ListedStack, known_stacks
from gemma_serving.scripts.gemma.catalog import ENTRIES, command_rows

FIRST_DAY: Final = ("plan", "doctor", "up", "chat", "status", "smoke", "bench", "teardown")
_LIMIT_S: Final = 5.0
_READERS: Final = 4


def _utc_now() -> datetime:
    return datetime.now(UTC)


def first_lines(*, limit_s: float = _LIMIT_S, now: Callable[[], datetime] = _utc_now) -> Sequence[str]:
    """Return the text line by line. `limit_s`: time for the list of stacks, and again for their states."""
    state, following = _state(limit_s, now)
    commands = command_rows([ENTRIES[name] for name in FIRST_DAY])
    what = "Deploy Gemma 4 with vLLM in your own Google Cloud project."
    return [what, "", *state, *following, "", *commands, "", "`gemma help` lists all commands."]


def _state(limit_s: float, now: Callable[[], datetime]) -> tuple[Sequence[str], Sequence[str]]:
    """Return the lines about the deployed stacks, and the line with the next command."""
    if own_project() is None:
        return [no_project()], ()
    ((stacks, error),) = each_within([partial(known_stacks, limit_s=limit_s)], workers=1, limit_s=limit_s + 1)
    if stacks is None:
        return [f"The deployed stacks and their cost are unknown. {error}"], ()
    deployed = [stack for stack in stacks if stack.is_deployed or stack_locks(stack.name)]
    if not deployed:
        known = runner.stacks_in(runner.project_folder())
        return [
            f"No stack is deployed in {_backend()}.",
            "Google was not queried. To search the project for resources that cost money, run",
            "`gemma teardown --all --dry-run`.",
        ], [f"Next: gemma plan {'tpu-v6e1' if 'tpu-v6e1' in known else min(known, default='--help')}"]
    lines = each_within([partial(_line, stack, now) for stack in deployed], workers=_READERS, limit_s=limit_s)
    width = max(len(stack.name) for stack in deployed) + 2
    late = [stack.name for stack, (_, error) in zip(deployed, lines, strict=True) if isinstance(error, TimeoutError)]
    shown = [
        f"  {stack.name:<{width}}{line or ('price unknown' if stack.name in late else f'price unknown: {error}')}"
        for stack, (line, error) in zip(deployed, lines, strict=True)
    ]
    if late:
        shown.append(
            f"The states of {', '.join(late)} were not read within {limit_s:g} s; `gemma status` waits longer."
        )
    return ["Stacks, as of the last `up` of each (Google was not queried):", *shown], ["Next: gemma status"]


def _backend() -> str:
    """Return the backend that the engine reads."""
    url = shown_url()
    return f"backend {url}" if url else "the Pulumi backend"


def _line(stack: ListedStack, now: Callable[[], datetime]) -> str:
    """Return what a stack serves with its cost and its end, as of its last `up`."""
    from gemma_serving.engine.state import read  # noqa: PLC0415 - only if a stack is deployed
    from gemma_serving.scripts.stack.costs import recorded_costs  # noqa: PLC0415 - the same
    from gemma_serving.scripts.stack.facts import facts_of, held_sentence  # noqa: PLC0415 - the same
    from gemma_serving.scripts.stack.serves import is_being_deleted, serves_now  # noqa: PLC0415 - the same

    state = read(stack.name)
    facts = facts_of(state, locks=stack_locks(stack.name))
    serves = serves_now(facts)
    if serves.word == "ended" and not is_being_deleted(facts, serves):
        return f"{serves.why} Run `gemma up {stack.name}`."
    if serves.word in {"deployed", "waiting"} and facts.deployed is not None:
        costs = recorded_costs(state, "waiting" if serves.word == "waiting" else "running")
        return " and ".join(one.text for one in costs)
    # An entry and the interrupted operation on it are one server.
    costs = dict.fromkeys(one.sentence for one in recorded_costs(state, "unclear"))
    if facts.held and is_being_deleted(facts, serves) and not facts.locks:
        return held_sentence(state)
    return " ".join([_incomplete(facts, serves, now()), *costs])


def _incomplete(facts: StackFacts, serves: ServesNow, now: datetime) -> str:
    """Return what a stack without a server, or without the outputs of a complete `up`, has, and the next command."""
    from gemma_serving.scripts.stack import serves as sentences  # noqa: PLC0415 - as above

    stack = facts.stack
    if facts.locks:
        held = sentences.lock_sentence(facts.locks[0], now)
        return f"{INCOMPLETE}: {held} Run `{sentences.after_locks(facts, serves)}`."
    if sentences.is_being_deleted(facts, serves):
        return f"{INCOMPLETE}: {sentences.teardown_sentence(facts)} Run `gemma teardown {stack}`."
    if facts.recorded is not None and serves.word == "unknown":
        return f"{INCOMPLETE}: {serves.why} Run `gemma up {stack}`."
    if serves.word == "no server":
        return f"{serves.shown}: {serves.why} Run `gemma status {stack}`."
    return f"{serves.shown}: {serves.why}" if serves.why else serves.shown
