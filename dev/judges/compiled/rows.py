"""Servers that the compiler judges: shipped stacks, other sizes and features, memory that the plan blocks, and a grid of programs.

A row of the grid is one step of one server. The half of the rows whose name has an even SHA-256 is for fitting, the other half is held out;
the list was committed before any fit.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from gemma_serving.contracts.settings_files import shipped_files
from gemma_serving.planning.data.tables import data_file
from gemma_serving.scripts.plan.plan_options import QuestionOptions

Group = Literal["stack", "other", "blocked", "grid"]
_ROOT: Final = Path(__file__).parents[3]


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedRow:
    """One server."""

    name: str
    group: Group
    question: QuestionOptions
    programs: str
    """As `dev.judges.tpu_compiler.question` has it."""
    steps: tuple[int, ...] = ()
    """Tokens of the compiled steps of a row of the grid."""

    @property
    def step_names(self) -> tuple[str, ...]:
        """Name of each step of the grid."""
        return tuple(f"{self.name} {step} tokens" for step in self.steps)


def _stacks() -> tuple[JudgedRow, ...]:
    names = sorted(path.name.split(".")[1] for path in shipped_files(_ROOT) if path.name.startswith("Pulumi.tpu-"))
    return tuple(
        JudgedRow(name=name, group="stack", question=QuestionOptions(stack=name), programs="default") for name in names
    )


def _model(size: str) -> str:
    return next(name for name in data_file("models.json") if f"-{size}-" in name)


def _keys(changes: Iterable[str]) -> tuple[str, ...]:
    """Return changes of vLLM options as `--set` takes them."""
    return tuple(f"vllm.{change}" for change in changes)


def _server(size: str, accelerator: str, sequences: int, kv: str, most_tokens: int, *steps: int) -> JudgedRow:
    changes = (
        f"maxNumSeqs={sequences}",
        f"maxNumBatchedTokens={most_tokens}",
        "maxModelLen=4096",
        *((f"kvCacheDtype={kv}",) if kv != "auto" else ()),
        # vLLM's own choice for this length, where the planner recommends another for mixtures of experts.
        *(("blockSize=256",) if size == "26B" else ()),
    )
    return JudgedRow(
        name=f"{size} {accelerator} {sequences} seq {kv}",
        group="grid",
        question=QuestionOptions(model=_model(size), accelerator=accelerator, text_only=True, set=_keys(changes)),
        programs=",".join(map(str, steps)),
        steps=steps,
    )


def _planned(group: Group, size: str, accelerator: str, *changes: str, programs: str = "none") -> JudgedRow:
    words = ", ".join((f"{size}, {accelerator}", *changes))
    question = QuestionOptions(model=_model(size), accelerator=accelerator, set=_keys(changes))
    return JudgedRow(name=words, group=group, question=question, programs=programs)


_GRID: Final = (
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
_QWIX: Final = "tpuQuantization=qwix-fp8"
_OTHER: Final = (
    _planned("other", "31B", "v6e-8"),
    _planned("other", "26B", "v6e-8"),
    _planned("other", "12B", "v6e-8"),
    _planned("other", "12B", "v6e-1", "maxModelLen=4096"),
    _planned("other", "E2B", "v5e-1"),
    _planned("other", "E2B", "v5e-4"),
    _planned("other", "31B", "v5e-8", "maxModelLen=8192"),
    _planned("other", "31B", "v6e-4", _QWIX, "maxModelLen=16384", "maxNumSeqs=32", programs="default"),
    _planned("other", "31B", "v6e-8", _QWIX, "tensorParallelSize=4", "dataParallelSize=2", "kvCacheDtype=fp8"),
    _planned("other", "26B", "v6e-4", _QWIX),
    _planned("other", "E2B", "v6e-1", _QWIX),
    _planned("other", "E4B", "v5e-1", _QWIX, "maxModelLen=4096"),
    _planned("other", "31B", "tpu7x-4", _QWIX, "tensorParallelSize=2", "dataParallelSize=4", "kvCacheDtype=fp8"),
)
_BLOCKED: Final = (
    _planned("blocked", "31B", "v6e-1"),
    _planned("blocked", "26B", "v6e-1"),
    _planned("blocked", "12B", "v6e-1", "maxModelLen=65536"),
    _planned("blocked", "31B", "v5e-4"),
    _planned("blocked", "12B", "v5e-1"),
    _planned("blocked", "E4B", "v5e-1", "gpuMemoryUtilization=0.85"),
    # At the edge of the device: the plan leaves no room for programs.
    _planned("blocked", "E2B", "v6e-1", "gpuMemoryUtilization=1", programs="4096"),
    _planned("blocked", "31B", "v6e-4", "gpuMemoryUtilization=0.99", programs="4096"),
    _planned("blocked", "E2B", "v6e-8"),
    _planned("blocked", "E4B", "v5e-8"),
)
ROWS: Final = (*_stacks(), *_OTHER, *_BLOCKED, *_GRID)


STEPS: Final = frozenset(step for row in ROWS for step in row.step_names)
"""Steps of the grid. Those of the stacks were neither for the fit nor for its test."""


def half_of(step: str) -> str:
    """Return what a compiled step is for: `fit`, `held out`, or `stack`."""
    if step not in STEPS:
        return "stack"
    return "held out" if is_held_out(step) else "fit"


def is_held_out(step: str) -> bool:
    """Return whether a step of the grid is for testing the fit, by the parity of its name's SHA-256."""
    return int(hashlib.sha256(step.encode()).hexdigest(), 16) % 2 == 1
