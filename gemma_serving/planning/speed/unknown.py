"""Figures that are unknown because a constant was never measured on the accelerator's family. None is ever taken from another family."""

from collections.abc import Callable, Iterator
from typing import TypeVar

from gemma_serving.planning.machine.families import NotMeasuredError
from gemma_serving.planning.question.resolved import Resolved
from gemma_serving.planning.question.types import UnknownFigure
from gemma_serving.planning.speed.startup import compile_s_of
from gemma_serving.planning.speed.steps import expert_rows_s, flops_per_s, least_step_s

T = TypeVar("T")


def or_none(figure: Callable[[], T]) -> T | None:
    """Return a figure, or None if it needs a constant that was not measured on the accelerator's family."""
    try:
        return figure()
    except NotMeasuredError:
        return None


def unknown_figures(resolved: Resolved) -> Iterator[UnknownFigure]:
    """Yield the figures of a deployment that need a constant which was not measured: decode, prefill and start."""
    try:
        least_step_s(resolved)
        if resolved.question.settings.workload is not None and resolved.question.settings.workload.adapters:
            resolved.accelerator.measured("TPU_LORA_LAYER_S")
    except NotMeasuredError:
        yield "decode"
    try:
        flops_per_s(resolved)
        expert_rows_s(resolved, 1)
    except NotMeasuredError:
        yield "prefill"
    try:
        compile_s_of(resolved, is_cached=False)
    except NotMeasuredError:
        yield "start"
