"""What one parameter weighs in each precision."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

FULL_BYTES: Final = 2.0
"""Bytes of a bf16 parameter; tensors that a scheme leaves alone (embeddings, norms, routers, towers) keep them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """How the linear layers are stored. Bytes a parameter, scales included."""

    name: str
    linear_bytes: float


SCHEMES: Final[Mapping[str, Scheme]] = {
    "bf16": Scheme(name="bf16", linear_bytes=FULL_BYTES),
    # One byte, and one 4-byte scale for each output row of thousands.
    "fp8": Scheme(name="fp8", linear_bytes=1.0 + 4 / 2_816),
    # 4 bits, symmetric, and one bf16 scale for each group of 32 (Google's QAT checkpoints, compressed-tensors pack-quantized;
    # vllm-project/recipes#514). Embeddings, router, towers and output head stay bf16.
    "w4a16": Scheme(name="w4a16", linear_bytes=0.5 + 2 / 32),
}
