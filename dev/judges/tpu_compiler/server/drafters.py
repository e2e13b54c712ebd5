"""Loads a draft model beside the served one."""

from typing import Any

import jax.numpy as jnp
from tpu_inference.spec_decode.jax import eagle3

from dev.judges.tpu_compiler.server.patching import ModuleView, replace
from dev.judges.tpu_compiler.server.shapes import is_shape


def load_shapes() -> None:
    """Let tpu-inference's proposer, which compares the embeddings of both models, compare shapes.

    It shares the served model's embeddings if those of the draft model are zeros or equal, and with Gemma 4's drafters always.
    """
    replace(eagle3, "jnp", ModuleView(jnp, any=_any, array_equal=_array_equal))


def leaves_of(runner: Any) -> Any:
    """Return the weights of the draft model; none without one, or if its proposer has no weights (n-gram)."""
    return getattr(runner.drafter, "state_leaves", ())


def _any(array: Any) -> Any:
    return True if is_shape(array) else jnp.any(array)


def _array_equal(one: Any, other: Any) -> Any:
    return False if is_shape(one) else jnp.array_equal(one, other)
