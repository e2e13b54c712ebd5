"""Servers whose programs the compiler is asked for, to fit and to test the planner's memory of programs.

A row is one step of one server. The half of the rows whose name has an even SHA-256 is for fitting, the other half is held out;
the list was committed before any fit.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class GridServer:
    """A server of text, and the steps of it that are compiled."""

    model: str
    accelerator: str
    sequences: int
    kv: str
    """Type of the KV cache: `auto` (bf16) or `fp8`."""
    most_tokens: int
    """Tokens of the largest step."""
    steps: tuple[int, ...]
    """Tokens of the compiled steps."""

    @property
    def name(self) -> str:
        """Name of the server."""
        return f"{self.model} {self.accelerator} {self.sequences} seq {self.kv}"

    def rows(self) -> Iterator[str]:
        """Yield the name of each step."""
        yield from (f"{self.name} {step} tokens" for step in self.steps)


def _server(model: str, accelerator: str, sequences: int, kv: str, most_tokens: int, *steps: int) -> GridServer:
    return GridServer(
        model=model, accelerator=accelerator, sequences=sequences, kv=kv, most_tokens=most_tokens, steps=steps
    )


SERVERS: Final = (
    _server("31B", "v6e-4", 32, "auto", 8192, 512, 2048, 4096, 8192),
    _server("26B", "v6e-4", 256, "fp8", 4096, 512, 2048, 4096),
    _server("12B", "v6e-4", 256, "auto", 4096, 512, 2048, 4096),
    _server("E4B", "v6e-4", 256, "auto", 4096, 2048, 4096),
    _server("31B", "v6e-8", 64, "auto", 4096, 2048, 4096),
    _server("26B", "v6e-8", 64, "auto", 4096, 1024, 4096),
    _server("12B", "v6e-8", 64, "auto", 4096, 2048),
    _server("E2B", "v6e-1", 256, "auto", 4096, 512, 2048, 4096),
    _server("E2B", "v6e-4", 256, "fp8", 4096, 1024, 4096),
    _server("E4B", "v6e-1", 64, "auto", 4096, 512, 2048, 4096),
    _server("12B", "v6e-1", 16, "auto", 4096, 1024, 2048, 4096),
    _server("E2B", "v5e-1", 64, "auto", 4096, 512, 2048, 4096),
    _server("E4B", "v5e-4", 16, "fp8", 4096, 2048, 4096),
    _server("E2B", "v6e-1", 16, "fp8", 8192, 2048, 8192),
)


def is_held_out(row: str) -> bool:
    """Return whether a row is for testing the fit, by the parity of its name's SHA-256."""
    return int(hashlib.sha256(row.encode()).hexdigest(), 16) % 2 == 1
