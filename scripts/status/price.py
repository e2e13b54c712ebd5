"""Price of the tokens that a stack has served, beside the planned one and a public API's.

Cost and tokens are of the same time: since the first start or of the last day, or else since the start of the server's process.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from gemma_serving.contracts.outputs import StackOutputs
from gemma_serving.contracts.stack_facts import CloudFacts
from gemma_serving.contracts.three_answers import Answer, Present, Unknown
from gemma_serving.planning.units import DAY_S, HOUR_S, figure

_MILLION: Final = 1e6
_DIGITS: Final = 3
InOut = tuple[float, float]
"""Input and output tokens, or their prices in US dollars per million."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCost:
    """Cost of a time and the tokens that were served in it. None: unknown."""

    since_s: float
    """Seconds since 1970."""
    usd: float | None
    tokens: InOut | None
    usd_per_million_output_tokens: float | None = None
    """Pays for the input tokens too. None also if no tokens were served."""
    unknown: str = ""
    """Why the price is unknown, as a clause."""

    @property
    def text(self) -> str:
        """The price, or why there is none."""
        price = self.usd_per_million_output_tokens
        if price is None or self.tokens is None:
            return f"unknown ({self.unknown})" if self.unknown else "no output tokens served"
        given, made = self.tokens
        return f"${figure(price, _DIGITS)} per 1M output tokens (${self.usd:,.2f}; {made:,.0f} out, {given:,.0f} in)"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPrice:
    """Price of a stack's tokens in US dollars. None: unknown."""

    since_start: TokenCost
    last_day: TokenCost
    """The same as `since_start` if the stack is younger."""
    planned_usd_per_million_output_tokens: float | None
    """At full load."""
    usd_per_day: float | None
    """Cost of a TPU VM for 24 hours, or of a service as it was billed."""
    api: InOut | None
    """Price of the API; None if the caller named none."""
    api_usd_per_million_output_tokens: float | None
    """The same for output tokens with their input tokens, as they were served."""
    break_even_output_tokens_per_day: float | None
    """Output tokens per day above which the stack costs less. None also if it cannot serve so many at the planned speed."""

    @property
    def api_text(self) -> str:
        """The price of the API and the break-even; empty without an API."""
        if self.api is None:
            return ""
        if self.api_usd_per_million_output_tokens is None or self.usd_per_day is None:
            return "unknown, as the price of the stack"
        words = f"${figure(self.api_usd_per_million_output_tokens, _DIGITS)} per 1M output tokens with their input"
        if self.break_even_output_tokens_per_day is None:
            return f"{words}; never more than the stack at the planned speed"
        return f"{words}; more than the stack above {figure(self.break_even_output_tokens_per_day, _DIGITS)} per day"


def token_price(
    cloud: CloudFacts,
    outputs: StackOutputs,
    counted: tuple[InOut, float] | None,
    tokens: tuple[Answer[InOut], Answer[InOut]],
    *,
    api: InOut | None,
    now: datetime,
) -> TokenPrice | None:
    """Return the price of the tokens since the start and of the last day; None if no server has started yet.

    `counted`: what the server counts, and since when. `tokens`: by Cloud Monitoring, since the start and in the last day.
    """
    if cloud.since is None:
        return None
    start, day = datetime.fromisoformat(cloud.since), now - timedelta(days=1)
    rate, speed = cloud.running_usd_per_hour, outputs.plan.throughput.saturated_tok_per_s
    since_start = token_cost(start.timestamp(), None if cloud.usd_is_least else cloud.usd, tokens[0])
    if since_start.unknown and counted and rate:
        usd = rate * (now.timestamp() - counted[1]) / HOUR_S
        since_start = token_cost(counted[1], usd, Present(counted[0]))
    last_day = since_start if start >= day else token_cost(day.timestamp(), cloud.usd_last_day, tokens[1])
    latest = since_start if last_day.usd_per_million_output_tokens is None else last_day
    usd_per_day = rate and rate * DAY_S / HOUR_S
    if outputs.target != "tpu":
        usd_per_day = latest.usd and latest.usd * DAY_S / (now.timestamp() - latest.since_s)
    planned = rate / (speed * HOUR_S) * _MILLION if rate and speed else None
    api_usd = _api_usd(api, latest.tokens)
    is_never = planned is not None and api_usd is not None and planned >= api_usd
    break_even = usd_per_day / api_usd * _MILLION if usd_per_day and api_usd and not is_never else None
    return TokenPrice(
        since_start=since_start,
        last_day=last_day,
        planned_usd_per_million_output_tokens=planned,
        usd_per_day=usd_per_day,
        api=api,
        api_usd_per_million_output_tokens=api_usd,
        break_even_output_tokens_per_day=break_even,
    )


def token_cost(since_s: float, usd: float | None, answer: Answer[InOut]) -> TokenCost:
    """Return the price of the tokens served since a time. A cost of 0 is not known yet."""
    if not isinstance(answer, Present):
        why = answer.why if isinstance(answer, Unknown) else "no metrics"
        cause, _, _advice = why.partition(". ")
        return TokenCost(since_s=since_s, usd=usd, tokens=None, unknown=cause.rstrip("."))
    tokens = answer.value
    if tokens[1] and not (usd and usd > 0):
        return TokenCost(since_s=since_s, usd=None, tokens=tokens, unknown="a part of the cost")
    price = usd / tokens[1] * _MILLION if usd and tokens[1] else None
    return TokenCost(since_s=since_s, usd=usd, tokens=tokens, usd_per_million_output_tokens=price)


def _api_usd(api: InOut | None, tokens: InOut | None) -> float | None:
    if api is None or tokens is None or not tokens[1]:
        return None
    return api[0] * tokens[0] / tokens[1] + api[1]
