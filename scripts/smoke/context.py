"""What the checks share: the client, the target, and what earlier checks learned."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scripts.client.access import ServerAccess
    from scripts.client.metrics import Scrape
    from scripts.client.openai import OpenAIClient
    from scripts.smoke.results import Outcome
    from scripts.smoke.target import SmokeTarget

Say = Callable[[str], None]
"""Shows one line of progress."""


@dataclass(slots=True, kw_only=True)
class CheckContext:
    """One run of the checks. The mutable fields are what a check leaves for later ones."""

    client: OpenAIClient
    access: ServerAccess
    target: SmokeTarget
    say: Say
    simulated: str | None = None
    max_model_len: int | None = None
    """As the server states it."""
    scrape_before: Scrape | None = None
    """Metrics right after the server was ready."""
    ignore_eos: bool = True
    """Whether the server knows `ignore_eos`, which keeps answers at their full length."""
    generated_tokens: int = 0
    """Output tokens that the server has stated to us so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check: its name, how long it may take, and what it does."""

    name: str
    limit_s: Callable[[SmokeTarget], float]
    run: Callable[[CheckContext], Awaitable[Outcome]]
    needed: bool = False
    """Nothing after it makes sense when it fails."""


def percent_over(measured: float, limit: float) -> str:
    """How far `measured` is from `limit`, as a share of the limit."""
    return f"{abs(measured / limit - 1):.0%}" if limit else "∞"
