"""What a change does to a server that runs, and how long that takes: the sentences of the comment and of `gemma up`."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from scripts.preview.effects import TRAFFIC, StackEffect, rolls_out
from scripts.preview.figures import duration
from scripts.preview.plans import DescribedPlan, StackDescription

NEW_CAPACITY: Final = "New capacity can take hours or never arrive. Google does not hold your place, and a rollback has to request it again."


@dataclass(frozen=True, slots=True, kw_only=True)
class Consequences:
    """The effect on a deployed server, and what the plan knows about the new one."""

    stack: str
    effect: StackEffect
    after: StackDescription
    plan: DescribedPlan
    compiles: bool
    """True if the model or the image changes, so that compiled programs are of no use."""
    rolled_out: bool
    """True if `gemma rollout` moves the traffic of the deployed service."""
    shares: str | None
    """The traffic split of the deployed settings."""
    is_certain: bool = True
    """False if capacity is released only in some zones."""

    def sentences(self, code: Callable[[str], str]) -> Iterator[str]:
        """Yield one sentence or two per text. `code` marks keys and commands."""
        start = duration(self.plan.start_s)
        if self.effect == "restart":
            yield from self._restart(start)
        elif self.effect == "revision" and rolls_out(self.after):
            mover = TRAFFIC if TRAFFIC in self.after.settings else f"gemma rollout {self.stack}"
            yield f"The old revision keeps serving. The new one receives traffic when {code(mover)} routes it."
            yield f"The new revision is ready within {start} (planned). From then on, both use GPU quota."
        elif self.effect == "revision":
            yield f"The old revision serves until the new one is ready, within {start} (planned). Until then, both use GPU quota."
        elif self.effect in {"capacity", "target", "service"}:
            comes = "The" if self.is_certain else "If the capacity must be requested again, the"
            most = "" if is_tpu(self.after) else "at most "
            yield f"{comes} first start takes {most}{start} (planned)."
        elif self.effect == "update":
            yield "No requests are lost."
        yield from self._moved(code)

    def _restart(self, start: str) -> Iterator[str]:
        about = f"about {duration(self.plan.start_s if self.compiles else self.plan.restart_s)} (planned)"
        cold = f"{about}, because the new model compiles. The image and weights are fetched before the restart"
        warm = f"{about}, up to {start} if it compiles again"
        yield (
            f"Requests fail while the server restarts: {cold if self.compiles else warm}. "
            "Queued resource, node and address stay the same."
        )
        yield "If the new server does not become ready, the node restores the previous configuration and `up` fails with the reason."

    def _moved(self, code: Callable[[str], str]) -> Iterator[str]:
        """Yield how `up` changes a service's traffic, according to its rollout settings."""
        shares = self.after.settings.get(TRAFFIC)
        if shares and shares != self.shares:
            yield f"`up` sets the traffic split, in percent: {code(shares)}."
        elif self.rolled_out and not rolls_out(self.after) and not is_tpu(self.after):
            yield "Without `cloudRun.rollout`, the latest ready revision receives all traffic, even one that a check rejected."


def is_tpu(described: StackDescription | None) -> bool:
    """Return whether a stack's target is a TPU."""
    return described is not None and described.settings.get("target") == "tpu"


def permission(after: StackDescription | None) -> str:
    """Return the sentence about what `up` needs to release capacity."""
    if after is None or not is_tpu(after):
        return "`up` deletes it together with the resources of the old target."
    if after.settings.get("tpu.allowReplaceActive") == "true":
        return "`tpu.allowReplaceActive` is true, so `up` does it without confirmation."
    return "`up` rejects this while the capacity is ACTIVE, because `tpu.allowReplaceActive` is false."
