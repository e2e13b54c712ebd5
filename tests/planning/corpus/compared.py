"""What the planner says of a boot: its figures and its verdict, compared with what was measured."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from gemma_serving.planning.planner import plan_of
from gemma_serving.planning.question.types import Plan
from tests.planning.corpus.measured import Boot, LoggedFigure, Measurements, subject_of

SPARE_GIB: Final = 1.0
"""A warning about a server that ran is correct if less than this was free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedFigure:
    """A measured figure of a boot and its prediction."""

    boot: Boot
    figure: LoggedFigure
    predicted: float

    @property
    def error(self) -> float:
        """Relative error; positive if the prediction is too high."""
        return self.predicted / self.figure.measured - 1

    @property
    def is_within(self) -> bool:
        """True if the error is within the tolerance of its kind."""
        return abs(self.error) <= self.figure.kind.tolerance


def compared_figures(boots: Iterable[Boot]) -> Iterator[ComparedFigure]:
    """Yield each figure with its prediction."""
    for boot in boots:
        if boot.figures:
            subject = subject_of(boot)
            for figure in boot.figures:
                yield ComparedFigure(boot=boot, figure=figure, predicted=figure.kind.read(subject))


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedBoot:
    """A boot and the planner's verdict."""

    boot: Boot
    planned: str
    """fits, may fail, or the rules that block it."""
    is_right: bool
    is_counted: bool
    """False if the image was patched until it ran, or if a later image fixed what this one could not do."""


def judge_boot(boot: Boot) -> JudgedBoot:
    """Return the planner's verdict on a boot. It is correct if it blocks a crashed boot and no other.

    A warning of too little memory for programs is correct if the server crashed for that reason, or ran with less than 1 GiB free.
    """
    plan = plan_of(subject_of(boot))
    planned = _in_words(plan)
    is_close = boot.spare_gib is not None and boot.spare_gib < SPARE_GIB
    is_margin_right = boot.at == "programs" if boot.died else is_close
    return JudgedBoot(
        boot=boot,
        planned=planned,
        is_right=is_margin_right if planned == "may fail" else plan.fits is not boot.died,
        is_counted=not boot.superseded and not (boot.patched and not boot.died),
    )


def _in_words(plan: Plan) -> str:
    if not plan.fits:
        stops = [finding.id for finding in plan.findings if finding.severity == "block"]
        return f"{'out of memory' if plan.verdict == 'out-of-memory' else 'blocked'}: {', '.join(stops)}"
    return "fits" if plan.margin is None else "may fail"


def started_boots(boots: Iterable[Boot]) -> tuple[Boot, ...]:
    """Return the boots that were started; the others are file lists."""
    return tuple(boot for boot in boots if boot.outcome != "files")


def first_sight(measurements: Measurements) -> Sequence[ComparedFigure]:
    """Return the figures whose prediction was recorded when they were first read."""
    return [
        ComparedFigure(boot=boot, figure=figure, predicted=figure.first)
        for boot in measurements.boots
        for figure in boot.figures
        if figure.first is not None
    ]
