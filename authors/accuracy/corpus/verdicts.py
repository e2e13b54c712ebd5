"""The planner's verdict on a boot, compared with the outcome."""

from dataclasses import dataclass
from typing import Final

from authors.accuracy.corpus.measured import Boot, subject_of
from planning.planner import plan_of
from planning.question.types import Plan

SPARE_GIB: Final = 1.0
"""A warning about a server that ran is correct if less than this was free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedBoot:
    """A boot and the planner's verdict."""

    boot: Boot
    planned: str
    """fits, may fail, or the rules that block it."""
    is_right: bool
    is_counted: bool
    """False if the image was patched until it ran, or if a later image fixed what this one could not do."""


def judged(boot: Boot) -> JudgedBoot:
    """Return the planner's verdict on a boot. It is correct if it blocks a crashed boot and no other.

    A warning of too little memory for programs is correct if the server crashed for that reason, or ran with less than 1 GiB free.
    """
    plan = plan_of(subject_of(boot))
    planned = _in_words(plan)
    is_close = boot.spare_gib is not None and boot.spare_gib < SPARE_GIB
    is_margin_right = boot.died_at == "programs" if boot.died else is_close
    is_right = is_margin_right if planned == "may fail" else plan.fits is not boot.died
    return JudgedBoot(
        boot=boot,
        planned=planned,
        is_right=is_right,
        is_counted=not boot.superseded and not (boot.is_patched and not boot.died),
    )


def _in_words(plan: Plan) -> str:
    if not plan.fits:
        stops = [finding.id for finding in plan.findings if finding.severity == "block"]
        return f"{'out of memory' if plan.verdict == 'out-of-memory' else 'blocked'}: {', '.join(stops)}"
    return "fits" if plan.margin is None else "may fail"


def started(boots: tuple[Boot, ...]) -> tuple[Boot, ...]:
    """Return the boots that were started; the others are file lists."""
    return tuple(boot for boot in boots if boot.outcome != "files")
