"""Speculative decoding: how many of its proposals the simulated model accepts.

Simpler than vLLM: tokens come one by one, at the mean rate of their steps, not those of one step together. A draft accepts the mean number of
proposals, rounded up or down, so the last position of a long draft is never accepted.
"""

from collections.abc import Mapping
from typing import Any, Final

_ACCEPTED_NGRAM: Final = 0.25
_ACCEPTED_DRAFTER: Final = 0.60
"""Accepted share of the proposals. Assumed; public reports of draft models have 0.5 to 0.8."""
_LOOKUPS: Final = frozenset({"ngram", "ngram_gpu", "suffix"})
_PROPOSAL_STEPS: Final = 0.15
"""Steps that a proposal takes, with its verification. Assumed."""


class Speculation:
    """Proposals of one server. The accepted ones are always the first of a draft."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Read the value of `--speculative-config`."""
        self.proposals = int(config.get("num_speculative_tokens") or 0)
        is_looked_up = config.get("model") is None or str(config.get("method", "")) in _LOOKUPS
        self._accepted = self.proposals * (_ACCEPTED_NGRAM if is_looked_up else _ACCEPTED_DRAFTER)
        self._due = 0.0
        self.tokens_per_step = 1 + self._accepted
        self.steps = 1 + self.proposals * _PROPOSAL_STEPS
        """Time of a step with its proposals, in such steps without them."""

    def draft(self) -> int:
        """Return the accepted tokens of the next draft."""
        self._due += self._accepted
        accepted = int(self._due)
        self._due -= accepted
        return accepted
