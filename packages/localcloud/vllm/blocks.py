"""Blocks of the KV cache: handed out as tokens come, and full at some point.

Simpler than vLLM: a block belongs to one sequence, so prompts with a common start hold it twice.
"""

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class BlockPool:
    """All blocks, in units of `block_size` tokens. `in_use` may exceed `blocks` for one sequence that is longer than the cache."""

    block_size: int
    blocks: int
    in_use: int = 0

    def needed(self, tokens: int) -> int:
        """Return the blocks of a sequence with this many tokens."""
        return -(-tokens // self.block_size)

    def fits(self, more: int) -> bool:
        """Return whether this many blocks are free."""
        return self.in_use + more <= self.blocks

    @property
    def usage(self) -> float:
        """Return the fraction in use, at most 1."""
        return min(1.0, self.in_use / self.blocks)
