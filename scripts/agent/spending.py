"""Spending limits: per hour, from the facts of all stacks in the backend, and of all that a server deploys."""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from gemma_serving.cloud.prices import total
from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.contracts.labels import PRODUCT
from gemma_serving.contracts.parallel import each
from gemma_serving.contracts.three_answers import Unknown
from gemma_serving.engine import runner
from gemma_serving.engine.state import StackState, read
from gemma_serving.scripts.agent.bounds import Bound
from gemma_serving.scripts.stack.costs import recorded_costs

_READERS: Final = 4
"""Number of states read concurrently; each read starts an engine."""
GOOGLE_LIMIT_S: Final = 60.0
"""Timeout of Google's answer about the server of one stack."""
_NOT_STARTED: Final = "No paid resource was started, because the cost of"


@dataclass(slots=True, kw_only=True)
class SpendingLimit:
    """Combined price of everything deployed, and total of what this server deploys, at most. Known prices and instance counts: upper bounds."""

    states: Callable[[], Mapping[str, float]]
    """Reads the price of each deployed stack in USD per hour. Raises CommandRefusedError if one is unknown."""
    usd_per_hour_limit: float
    usd_limit: float
    _deployed: Mapping[str, float] = field(default_factory=dict[str, float])
    _starting: dict[str, float] = field(default_factory=dict[str, float])
    """Stacks that this server changes now. No state has their new price yet."""
    _total: float = 0.0
    """What all deployments of this server cost at most, those that have ended too."""
    _runs: dict[str, float] = field(default_factory=dict[str, float])
    """The part of the last run or service of each stack, which a change of it does not add again."""

    def require(self, stack: str, usd_per_hour: float, bound: Bound) -> None:
        """Read the states, and refuse a deployment that exceeds a limit. Raises CommandRefusedError."""
        self._deployed = self.states()
        self._check(stack, usd_per_hour, bound)

    @contextmanager
    def reserved(self, stack: str, usd_per_hour: float, bound: Bound) -> Generator[None]:
        """Check again, and count a deployment while it runs, in the total also later unless it is refused. Raises CommandRefusedError."""
        added = self._check(stack, usd_per_hour, bound)
        before = self._runs.get(stack, 0.0)
        self._starting[stack] = usd_per_hour
        self._total += added
        self._runs[stack] = bound.usd if bound.is_new else before + added
        try:
            yield
        except CommandRefusedError:  # nothing was changed
            self._total -= added
            self._runs[stack] = before
            raise
        finally:
            self._deployed = self._counted()
            del self._starting[stack]

    def sentence(self) -> str:
        """Return the counted amounts as a sentence."""
        rates = self._counted()
        deployed = ", ".join(f"{stack} ${rate:.2f}" for stack, rate in sorted(rates.items())) or "nothing is deployed"
        hourly = f"${sum(rates.values()):.2f} of ${self.usd_per_hour_limit:.2f} per hour"
        return f"{hourly} is counted ({deployed}), and ${self._total:.2f} of ${self.usd_limit:.2f} in all for this server's deployments."

    def _counted(self) -> Mapping[str, float]:
        """Return the price of each stack: while it changes, the higher one, because a failed run can leave either."""
        higher = {stack: max(rate, self._deployed.get(stack, 0.0)) for stack, rate in self._starting.items()}
        return {**self._deployed, **higher}

    def _check(self, stack: str, usd_per_hour: float, bound: Bound) -> float:
        """Return what a deployment adds to the total. Raises CommandRefusedError."""
        others = {name: rate for name, rate in self._counted().items() if name != stack}
        rate = sum(others.values()) + usd_per_hour
        if not rate <= self.usd_per_hour_limit:  # also refuses nan
            listed = "".join(f", {name} ${price:.2f}" for name, price in sorted(others.items()))
            raise CommandRefusedError(
                f"Stack {stack} costs up to ${usd_per_hour:.2f} per hour, ${rate:.2f} with the other deployments{listed}; "
                f"the limit is ${self.usd_per_hour_limit:.2f} per hour. "
                "Tear down a stack, or request a higher --max-usd-per-hour from the user."
            )
        added = bound.usd if bound.is_new else max(0.0, bound.usd - self._runs.get(stack, 0.0))
        if not self._total + added <= self.usd_limit:  # as above
            raise CommandRefusedError(
                f"Stack {stack} costs up to ${bound.usd:.2f} in all, ${self._total + added:.2f} with what this server has deployed; the limit is "
                f"${self.usd_limit:.2f}. The user has to start the server again, or with a higher --max-usd."
            )
        return added


def deployed_now() -> Mapping[str, float]:
    """Return the price of each deployed stack in USD per hour. Raises CommandRefusedError if one is unknown."""
    try:
        names = runner.listed_stacks("--project", PRODUCT)
    except (ScriptError, ValueError) as error:
        raise CommandRefusedError(f"{_NOT_STARTED} the current deployments is unknown: {error}") from None
    states = each([partial(read, name) for name in sorted(names)], workers=_READERS)
    return {state.stack: rate for state in states if (rate := usd_per_hour_of(state)) is not None}


def usd_per_hour_of(state: StackState) -> float | None:
    """Return the maximum price of a stack per hour, None without a server. Raises CommandRefusedError if unknown."""
    from gemma_serving.scripts.stack.facts import facts_of, read_facts  # noqa: PLC0415 - loads Google's packages

    servers = recorded_costs(state)
    # Google is asked only about a server that the state may lack: one in the state counts even if it ended.
    facts = facts_of(state) if servers else read_facts(state, "server", limit_s=GOOGLE_LIMIT_S)
    usd_per_hour = total(costs.most for costs in servers)
    if isinstance(facts.state, Unknown):
        why = f"{facts.state.why} If its state is broken, the user can run `gemma up {state.stack}` in a terminal."
    elif facts.is_unrecorded:
        why = f"Google has its server, which its state does not have. The user can run `gemma up {state.stack}` in a terminal."
    elif isinstance(facts.server, Unknown):
        why = f"Cannot check whether its server exists: {facts.server.why}"
    elif usd_per_hour is None:
        why = (
            "The price list does not have its hardware. "
            f"The user can run `gemma up {state.stack}` with prices in its settings, or tear it down."
        )
    else:
        return usd_per_hour if servers else None
    raise CommandRefusedError(f"{_NOT_STARTED} stack {state.stack} is unknown: {why}")
