"""Options of `scripts.plan --solve`; kept apart from its work, so that `--help` stays quick."""

from dataclasses import dataclass
from typing import Annotated, Final

from planning.errors import PlanningError
from scripts.cli.options import Option
from scripts.plan.question import Comparison, Question


@dataclass(frozen=True, kw_only=True)
class Solving:
    """Search the cheapest deployments for a workload."""

    solve: Annotated[
        bool,
        Option(
            "Search all that this project deploys for --workload. --model (an id or a family such as 12B), --accelerator, "
            "--min-context, --max-usd-per-hour and --prices narrow it."
        ),
    ] = False
    max_ttft_s: Annotated[
        float | None, Option("With --solve: longest time to the first token, typical.", metavar="SECONDS", above=0)
    ] = None
    max_tpot_s: Annotated[
        float | None, Option("With --solve: longest time per further token, typical.", metavar="SECONDS", above=0)
    ] = None
    region: Annotated[
        tuple[str, ...],
        Option("With --solve: only this region. May be repeated.", metavar="REGION", repeated=True),
    ] = ()
    conservative: Annotated[
        bool, Option("With --solve: compare times at the slow end of their bands with the limits.", former="--sure")
    ] = False

    @property
    def given(self) -> str | None:
        """The first option that only --solve takes, None if none was given."""
        return next(
            (
                option
                for option, is_given in (
                    ("--max-ttft-s", self.max_ttft_s is not None),
                    ("--max-tpot-s", self.max_tpot_s is not None),
                    ("--region", bool(self.region)),
                    ("--conservative", self.conservative),
                )
                if is_given
            ),
            None,
        )


_CHOSEN: Final = ("platform", "quantization", "set", "config", "index", "draft_config", "device", "save")
"""Fields of a question that name what `--solve` chooses, or a model outside its catalog."""
_SWITCHES: Final = ("from_hub", "from_bucket", "text_only")


def check_solving(question: Question, comparison: Comparison, *, others: tuple[str, ...]) -> None:
    """Raise PlanningError for options that do not go with --solve; `others` are options of this command that are in use."""
    if question.stack is not None:
        raise PlanningError("--solve searches for a deployment, and --stack names one; leave one out.")
    if others:
        raise PlanningError(f"--solve prints a table of its own; leave out {', '.join(others)}.")
    if comparison.min_concurrency is not None:
        raise PlanningError("--solve takes the requests at a time from --workload; leave out --min-concurrency.")
    named = [name for name in _CHOSEN if getattr(question, name) not in {None, ()}]
    named += [name for name in _SWITCHES if getattr(question, name)]
    if named:
        raise PlanningError(
            f"--solve chooses among the checkpoints and places of the catalog; leave out --{named[0].replace('_', '-')}."
        )
    if question.workload is None:
        raise PlanningError("--solve needs the workload; add --workload in=4000,out=500,users=32.")
