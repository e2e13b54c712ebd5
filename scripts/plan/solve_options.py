"""Options of `scripts.plan --solve`, separate from its implementation to keep `--help` fast."""

from dataclasses import dataclass
from typing import Annotated, Final

from planning.errors import PlanningError
from planning.numbers import number
from scripts.cli.options import Option
from scripts.plan.question import Comparison, Question

STEADY: Final = "steady"
_BURST: Final = "burst="
_HOUR_MINUTES: Final = 60


def parse_traffic(text: str) -> float:
    """Return the minutes of traffic in each hour. Raises ValueError with the allowed values."""
    if text == STEADY:
        return float(_HOUR_MINUTES)
    try:
        minutes = number(text.removeprefix(_BURST)) if text.startswith(_BURST) else 0.0
    except ValueError:
        minutes = 0.0
    if 1 <= minutes < _HOUR_MINUTES:
        return minutes
    raise ValueError("steady, or burst=MINUTES with the minutes of traffic in each hour, from 1 to 59, e.g. burst=10")


@dataclass(frozen=True, kw_only=True)
class Solving:
    """Search for the cheapest deployments."""

    solve: Annotated[
        bool,
        Option(
            "Search all deployments of this project for --workload. Narrow it with --model (an id "
            "or a family such as 12B), --accelerator, --min-context, --max-usd-per-hour, --prices."
        ),
    ] = False
    max_ttft_s: Annotated[
        float | None, Option("With --solve: maximum typical time to first token.", metavar="SECONDS", above=0)
    ] = None
    max_tpot_s: Annotated[
        float | None, Option("With --solve: maximum typical time per output token.", metavar="SECONDS", above=0)
    ] = None
    region: Annotated[
        tuple[str, ...],
        Option("With --solve: only this region. Repeatable.", metavar="REGION", repeated=True),
    ] = ()
    conservative: Annotated[bool, Option("With --solve: apply the limits to the slow ends of the bands.")] = False
    hours_per_day: Annotated[
        float | None,
        Option(
            "With --solve: compare what the server costs per day if clients use it for this many hours.",
            metavar="H",
            least=0.25,
            most=24,
        ),
    ] = None
    traffic: Annotated[
        float | None,
        Option(
            "With --hours-per-day: steady, or burst=MINUTES for one burst of that length in each hour. Default: steady.",
            metavar="SHAPE",
            parse=parse_traffic,
        ),
    ] = None
    latency_first: Annotated[bool, Option("With --solve: choose the shortest request, not the lowest price.")] = False
    throughput_first: Annotated[
        bool,
        Option(
            "With --solve: choose the lowest price per token. Without users or rate, the server is full, as for a batch job."
        ),
    ] = False

    @property
    def given(self) -> str | None:
        """First option that requires --solve; None if there is none."""
        return next(
            (
                option
                for option, is_given in (
                    ("--max-ttft-s", self.max_ttft_s is not None),
                    ("--max-tpot-s", self.max_tpot_s is not None),
                    ("--region", bool(self.region)),
                    ("--conservative", self.conservative),
                    ("--hours-per-day", self.hours_per_day is not None),
                    ("--traffic", self.traffic is not None),
                    ("--latency-first", self.latency_first),
                    ("--throughput-first", self.throughput_first),
                )
                if is_given
            ),
            None,
        )


_CHOSEN: Final = (
    *("platform", "quantization", "vllm", "image", "set", "config", "index", "draft_config", "device", "save"),
)
"""Fields of a question that `--solve` chooses itself, or that describe a model outside its catalog."""
_SWITCHES: Final = ("from_hub", "from_bucket", "text_only")


def check_solving(question: Question, comparison: Comparison, solving: Solving, *, others: tuple[str, ...]) -> None:
    """Raise PlanningError for options that cannot be combined with --solve. `others` are the other options in use."""
    if question.stack is not None:
        raise PlanningError("--solve and --stack cannot be combined.")
    if others:
        raise PlanningError(f"--solve and {', '.join(others)} cannot be combined.")
    if solving.latency_first and solving.throughput_first:
        raise PlanningError("--latency-first and --throughput-first cannot be combined.")
    if solving.traffic is not None and solving.hours_per_day is None:
        raise PlanningError("--traffic requires --hours-per-day.")
    if comparison.min_concurrency is not None:
        raise PlanningError("--solve and --min-concurrency cannot be combined. Set the concurrency in --workload.")
    named = [name for name in _CHOSEN if getattr(question, name) not in {None, ()}]
    named += [name for name in _SWITCHES if getattr(question, name)]
    if named:
        raise PlanningError(
            f"--solve and --{named[0].replace('_', '-')} cannot be combined, because the search chooses from the catalog."
        )
    if question.workload is None:
        raise PlanningError("--solve requires a workload. Add --workload in=4000,out=500,users=32.")
