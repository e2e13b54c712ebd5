"""Compiles programs for the slice and records what each needs; chooses which of vLLM's programs are compiled."""

import functools
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from dev.judges.tpu_compiler.server.events import Events, words_of
from dev.judges.tpu_compiler.server.patching import replace
from dev.judges.tpu_compiler.server.refusals import UpstreamRefusalError
from dev.judges.tpu_compiler.server.shapes import Shape, has_shapes, is_shape, mesh_of

_GIB, _MIB = 2**30, 2**20


_FIGURES = ("arguments_gib", "temporaries_gib", "outputs_gib", "aliased_gib", "code_mib", "flops")


@dataclass
class Programs:
    """The programs that are compiled from here on; before, calls on shapes only return shapes."""

    events: Events
    is_recording: bool = False
    task: Mapping[str, Any] = field(default_factory=dict)
    """Name and sizes of the program that is compiled now."""
    count: int = 0
    """Programs recorded so far."""

    def compile(self, lowered: Any) -> Any:
        """Return the compiled program, recorded. Raises UpstreamRefusalError with the compiler's words."""
        start_s = self.events.elapsed_s
        try:
            compiled = lowered.compile()
        except jax.errors.JaxRuntimeError as error:
            self._record(start_s, dict.fromkeys(_FIGURES), words_of(error))
            size = self.task.get("tokens") or self.task.get("sequences")
            named = ", ".join(str(part) for part in (self.task["name"], size) if part)
            raise UpstreamRefusalError(words_of(error), program=named) from error
        memory = compiled.memory_analysis()
        figures = {
            "arguments_gib": memory.argument_size_in_bytes / _GIB,
            "temporaries_gib": memory.temp_size_in_bytes / _GIB,
            "outputs_gib": memory.output_size_in_bytes / _GIB,
            "aliased_gib": memory.alias_size_in_bytes / _GIB,
            "code_mib": memory.generated_code_size_in_bytes / _MIB,
            "flops": (compiled.cost_analysis() or {}).get("flops"),
        }
        self._record(start_s, figures, "")
        return compiled

    def _record(self, start_s: float, figures: Mapping[str, float | None], error: str) -> None:
        seconds = round(self.events.elapsed_s - start_s, 1)
        self.count += 1
        sizes = {"tokens": None, "sequences": None, **self.task}
        self.events.send("program", **sizes, **figures, seconds=seconds, error=error)

    def recorded(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        """Return a function whose program is compiled wherever it is called."""

        def call(*arguments: Any, **options: Any) -> Any:
            before = (self.is_recording, self.task)
            self.is_recording, self.task = True, {"name": name}
            try:
                return function(*arguments, **options)
            finally:
                self.is_recording, self.task = before

        return call


class ShapeJit:
    """`jax.jit` of a function. Called with shapes, it returns shapes, and compiles if programs are recorded."""

    def __init__(self, function: Callable[..., Any], jitted: Any, programs: Programs) -> None:
        self._jitted, self._programs = jitted, programs
        functools.update_wrapper(self, function, updated=())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._jitted, name)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def lower(self, *arguments: Any, **options: Any) -> Any:
        """Lower the function, as `jax.jit` does."""
        return self._jitted.lower(*arguments, **options)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Call the function on arrays, or compute the shapes of its result."""
        if not has_shapes(arguments, options):
            return self._jitted(*arguments, **options)
        lowered = self._jitted.lower(*arguments, **options)
        if self._programs.is_recording:
            shardings = self._programs.compile(lowered).output_shardings
        else:
            first = next(leaf for leaf in jax.tree.leaves((arguments, options)) if is_shape(leaf))
            whole = NamedSharding(mesh_of(first), PartitionSpec())
            shardings = jax.tree.map(lambda _leaf: whole, lowered.out_info)
        return jax.tree.map(
            lambda leaf, sharding: Shape(leaf.shape, leaf.dtype, sharding=sharding), lowered.out_info, shardings
        )


def let_jit_take_shapes(programs: Programs) -> None:
    """Let `jax.jit` take shapes in all modules that are imported from here on."""
    own = jax.jit

    def jit(function: Callable[..., Any] | None = None, **options: Any) -> Any:
        if function is None:
            return lambda decorated: jit(decorated, **options)
        return ShapeJit(function, own(function, **options), programs)

    replace(jax, "jit", jit)


@dataclass(frozen=True)
class ProgramChoice:
    """Which of vLLM's programs are compiled."""

    is_all: bool
    steps: frozenset[int]
    """Tokens of the steps that are compiled."""
    most_requests: int
    most_logits: int | None
    """Tokens that the largest batch verifies; None without speculative decoding."""

    def has(self, name: str, sizes: Mapping[str, Any]) -> bool:
        """Return whether a program is compiled: all, or the chosen steps, of the draft model too, and the samplers of the largest batch."""
        is_largest = sizes.get("num_reqs") in {None, self.most_requests}
        is_largest = is_largest and sizes.get("num_logits") in {None, self.most_logits}
        if self.is_all:
            return True
        if name in {"backbone", "drafter_propose"}:
            return is_largest and sizes.get("num_tokens") in self.steps
        is_sampler = name in {"sample", "random_rejection_sampler"}
        return is_sampler and is_largest and bool(sizes.get("do_sampling", True) and sizes.get("logprobs", True))


def choice_of(
    programs: str, token_paddings: list[int], most_requests: int, most_logits: int | None = None
) -> ProgramChoice | None:
    """Return the choice that a request names; None for no programs.

    `default` is the largest step, the smallest, and the sampler; `2048,4096` are steps of these sizes, and the sampler.
    """
    if programs == "none":
        return None
    if programs in {"default", "all"}:
        return ProgramChoice(
            programs == "all", frozenset((token_paddings[0], token_paddings[-1])), most_requests, most_logits
        )
    return ProgramChoice(False, frozenset(int(step) for step in programs.split(",")), most_requests, most_logits)
