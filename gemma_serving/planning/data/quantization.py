"""Bytes per parameter in each precision."""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

FULL_BYTES: Final = 2.0
"""Bytes of a bf16 parameter; tensors that a scheme does not quantize (embeddings, norms, routers, towers) stay at this size."""

INT4_BYTES: Final = 0.5
GROUP: Final = 32
"""Weights that share a scale in Google's 4-bit checkpoints."""
QWIX: Final = "qwix"
"""First word of the names of the schemes to which rules of qwix convert (vLLM on TPU)."""


class Scheme(Struct, frozen=True, kw_only=True):
    """Storage format of the linear layers, in bytes per parameter including scales."""

    name: str
    linear_bytes: float
    unquantized: frozenset[str] = frozenset()
    """Roles of linear layers that stay in bf16."""

    @property
    def is_of_qwix(self) -> bool:
        """True if rules of qwix convert a bf16 checkpoint to it while it loads."""
        return self.name.startswith(QWIX)

    def bytes_of(self, role: str) -> float:
        """Return the bytes per parameter of a linear layer with this role."""
        return FULL_BYTES if role in self.unquantized else self.linear_bytes


SCHEMES: Final[Mapping[str, Scheme]] = {
    "bf16": Scheme(name="bf16", linear_bytes=FULL_BYTES),
    # One byte, and one 4-byte scale for each output row of thousands.
    "fp8": Scheme(name="fp8", linear_bytes=1.0 + 4 / 2_816),
    # 4 bits, symmetric, and one bf16 scale for each group of 32 (Google's QAT checkpoints, compressed-tensors pack-quantized;
    # vllm-project/recipes#514). Embeddings, router, towers and output head stay bf16.
    "w4a16": Scheme(name="w4a16", linear_bytes=INT4_BYTES + 2 / GROUP),
    # 4-bit floating point, and one fp8 scale for each group of 16 (compressed-tensors nvfp4-pack-quantized, ModelOpt NVFP4).
    "nvfp4": Scheme(name="nvfp4", linear_bytes=INT4_BYTES + 1 / 16),
    # 4-bit floating point, and one 8-bit exponent for each group of 32 (OCP microscaling; compressed-tensors mxfp4-pack-quantized).
    "mxfp4": Scheme(name="mxfp4", linear_bytes=INT4_BYTES + 1 / GROUP),
    # vLLM's own loader of OpenAI's checkpoints (quantization/mxfp4.py) quantizes experts only.
    "mxfp4-experts": Scheme(
        name="mxfp4-experts", linear_bytes=INT4_BYTES + 1 / GROUP, unquantized=frozenset({"attention", "mlp"})
    ),
    # NVIDIA's conversions of Gemma 4 (the recipes nvfp4_mlp_only and nvfp4_experts_only of NVIDIA/Model-Optimizer#1219). Files of 26B-A4B have 17.50 GiB,
    # 17.50 planned for experts only; 31B takes 31 GiB.
    "nvfp4-mlp": Scheme(name="nvfp4-mlp", linear_bytes=INT4_BYTES + 1 / 16, unquantized=frozenset({"attention"})),
    "nvfp4-experts": Scheme(
        name="nvfp4-experts", linear_bytes=INT4_BYTES + 1 / 16, unquantized=frozenset({"attention", "mlp"})
    ),
}

QUANTIZED_BY_VLLM: Final = ("fp8",)
"""Schemes to which vLLM converts a bf16 checkpoint while loading. All others need an already quantized checkpoint."""
