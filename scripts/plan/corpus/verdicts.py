"""Whether the planner says of a boot what became of it."""

from dataclasses import dataclass
from typing import Final

from planning.planner import plan_of
from planning.question.types import Plan
from scripts.plan.corpus.measured import Boot, subject_of

SPARE_GIB: Final = 1.0
"""A warning about a server that ran is right if less than this was left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedBoot:
    """A boot and what the planner says of it."""

    boot: Boot
    planned: str
    """fits, may fail, or the rules that stop it."""
    is_right: bool
    is_counted: bool
    """False where the image was patched until it ran, or where a later image did what this one could not."""


def judged(boot: Boot) -> JudgedBoot:
    """Return the planner's verdict on a boot. It is right if it stops what died, and stops nothing that ran.

    A warning of too little memory for programs is right about a server that died of that, or ran with less than 1 GiB to spare.
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
    """Return the boots that somebody started; the others are lists of files."""
    return tuple(boot for boot in boots if boot.outcome != "files")
