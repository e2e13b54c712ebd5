"""Counters of speculative decoding, as in vLLM (v1/spec_decode/metrics.py): drafts, proposed and accepted tokens, accepted by position.

Simpler than vLLM: tokens come one by one, at the mean rate of their steps, not those of one step together.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

_ACCEPTED_NGRAM: Final = 0.25
_ACCEPTED_DRAFTER: Final = 0.60
"""Accepted share of the proposals. Assumed; public reports of draft models have 0.5 to 0.8."""
_LOOKUPS: Final = frozenset({"ngram", "ngram_gpu", "suffix"})
_GOLDEN: Final = (math.sqrt(5) - 1) / 2
"""Multiples of it, modulo 1, fill the unit interval evenly, so the share of accepted tokens is exact after a few drafts."""
_HALVINGS: Final = 40
_PROPOSAL_STEPS: Final = 0.15
"""Steps that a proposal takes, with its verification if that was not measured. Assumed."""


class Speculation:
    """Proposals of one server. The accepted ones are always the first of a draft."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Create the counters from the value of `--speculative-config`."""
        self.proposals = int(config.get("num_speculative_tokens") or 0)
        looked_up = config.get("model") is None or str(config.get("method", "")) in _LOOKUPS
        self._chance = _chance_per_token(_ACCEPTED_NGRAM if looked_up else _ACCEPTED_DRAFTER, self.proposals)
        share = sum(self._chance ** (position + 1) for position in range(self.proposals))
        self.tokens_per_step = 1 + share
        self._is_looked_up = looked_up
        self.drafts = 0
        self.accepted_by_position = [0] * self.proposals

    @property
    def proposed(self) -> int:
        """Return the number of proposed tokens."""
        return self.drafts * self.proposals

    @property
    def accepted(self) -> int:
        """Return the number of accepted tokens."""
        return sum(self.accepted_by_position)

    def steps(self, *, is_verification_known: bool) -> float:
        """Return the time of a step with its proposals, in such steps without them. Proposals from the prompt take only their verification."""
        is_free = self._is_looked_up and is_verification_known
        return 1 + (0 if is_free else self.proposals * _PROPOSAL_STEPS)

    def draft(self) -> int:
        """Count one draft. Return the tokens of its step: the accepted ones and one more."""
        drawn = (self.drafts * _GOLDEN) % 1
        self.drafts += 1
        accepted = sum(1 for position in range(self.proposals) if drawn < self._chance ** (position + 1))
        for position in range(accepted):
            self.accepted_by_position[position] += 1
        return accepted + 1

    def lines(self, labels: str) -> Iterator[str]:
        """Yield the exposition lines."""
        for name, description, value in (
            ("drafts", "Number of spec decoding drafts.", self.drafts),
            ("draft_tokens", "Number of draft tokens.", self.proposed),
            ("accepted_tokens", "Number of accepted tokens.", self.accepted),
        ):
            yield f"# HELP vllm:spec_decode_num_{name}_total {description}"
            yield f"# TYPE vllm:spec_decode_num_{name}_total counter"
            yield f"vllm:spec_decode_num_{name}_total{{{labels}}} {float(value)}"
        yield "# HELP vllm:spec_decode_num_accepted_tokens_per_pos_total Accepted tokens per draft position."
        yield "# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter"
        for position, number in enumerate(self.accepted_by_position):
            name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
            yield f'{name}{{{labels},position="{position}"}} {float(number)}'


def _chance_per_token(share: float, proposals: int) -> float:
    """Return the chance that a proposal is accepted after the ones before it, so `share` of all proposals are accepted."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if sum(middle ** (position + 1) for position in range(proposals)) < share * proposals:
            low = middle
        else:
            high = middle
    return high
