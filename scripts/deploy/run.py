"""A deployment: measure what runs, deploy, check, measure again, and roll back if a check fails."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from contracts.errors import ScriptError
from contracts.exit_codes import ExitCode
from scripts.deploy.steps import CheckVerdict, EngineSteps, NotVerifiedError
from scripts.preview.face import PlanRefusedError

Outcome = Literal["deployed", "not verified", "rolled back", "failed"]
"""`not verified`: this commit is what runs, and whether it serves is not known."""

NOT_BROUGHT_BACK = (
    "A roll-back cannot bring back TPU capacity that was given up: it asks for new capacity and waits. "
    "It cannot bring back staged weights of a deleted bucket either, nor the URL of a service that was replaced."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployReport:
    """How a deployment ended."""

    stack: str
    commit: str
    outcome: Outcome
    reason: str
    """Why it failed, or what was checked; whole sentences."""
    benchmark: str = ""
    rolled_back_to: str = ""
    plan: str = ""
    """Id of the plan that was approved; empty without one."""

    @property
    def exit_code(self) -> ExitCode:
        """0 only if this commit is what runs now and passed its checks."""
        return ExitCode.DONE if self.outcome == "deployed" else ExitCode.FAILED

    def to_json(self) -> dict[str, Any]:
        """Return the report in JSON types."""
        return {"schema_version": 1, **asdict(self)}

    def markdown(self) -> str:
        """Return the report for the summary of a workflow."""
        lines = [f"### `{self.stack}`: {self.outcome}", "", self.reason, ""]
        lines += [self.benchmark, ""] if self.benchmark else []
        lines += [f"What runs now is `{self.rolled_back_to}`.", "", NOT_BROUGHT_BACK] if self.rolled_back_to else []
        return "\n".join(lines).rstrip() + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployRequest:
    """What to deploy, and which checks decide."""

    stack: str
    commit: str
    bench: bool = True
    roll_back: bool = True
    plan: str = ""
    """Id of the plan that is deployed; empty without one."""


def deploy_stack(request: DeployRequest, steps: EngineSteps, say: Callable[[str], None]) -> DeployReport:
    """Deploy, check, and roll back where a check fails. Raises nothing but KeyboardInterrupt and CommandRefusedError."""
    steps.require_plan()  # also before the measurement: a refused plan costs no GPU time
    good, model = steps.good_commit(), steps.model()
    measured = request.bench and model is not None and _measured(steps, say) == "passed"
    report = _deployed(request, steps, model, measured=measured, say=say)
    if report.outcome == "failed":
        return _roll_back(report, request, steps, good, say)
    if report.outcome == "not verified":
        return _kept(report, good)
    steps.remember(request.commit)
    return replace(report, reason=report.reason or "The smoke checks passed.")


def _deployed(
    request: DeployRequest, steps: EngineSteps, model: str | None, *, measured: bool, say: Callable[[str], None]
) -> DeployReport:
    """Deploy and check. The outcome is `not verified` if a check could not reach the server."""
    report = DeployReport(stack=request.stack, commit=request.commit, plan=request.plan, outcome="deployed", reason="")
    try:
        say(f"deploying {request.commit[:12]}")
        steps.up()
    except PlanRefusedError:
        raise  # nothing was deployed
    except NotVerifiedError as error:
        return replace(report, outcome="not verified", reason=str(error))
    except ScriptError as error:
        return replace(report, outcome="failed", reason=f"The deployment failed: {error}")
    say("checking what the server answers")
    checked = steps.smoke("after")
    if checked == "passed":
        return _benchmark(report, steps, model, measured=measured, say=say) if request.bench else report
    if checked == "failed":
        return replace(report, outcome="failed", reason="The smoke checks failed.")
    reason = "The smoke checks could not reach the server; their last lines say why."
    return replace(report, outcome="not verified", reason=reason)


def _measured(steps: EngineSteps, say: Callable[[str], None]) -> CheckVerdict:
    """Measure what runs now: the comparison is then of the same machine on the same day."""
    say("measuring what runs now")
    return steps.bench("before")


def _benchmark(
    report: DeployReport, steps: EngineSteps, model: str | None, *, measured: bool, say: Callable[[str], None]
) -> DeployReport:
    """Measure what was deployed, and return the report with the comparison."""
    say("measuring what was deployed")
    done = steps.bench("after")
    if done == "unknown":
        reason = "The smoke checks passed, and the benchmark could not reach the server; its last lines say why."
        return replace(report, outcome="not verified", reason=reason)
    if done == "failed":
        return replace(report, outcome="failed", reason="The benchmark failed: not every point could be measured.")
    if not measured:
        why = "nothing was deployed" if model is None else "what ran before could not be measured"
        return replace(report, benchmark=f"The benchmark is not compared, because {why}.")
    if model != steps.model():
        return replace(report, benchmark="The benchmark is not compared, because the model changed.")
    verdict = steps.compare()
    report = replace(report, benchmark=verdict.reason)
    return replace(report, outcome="failed", reason=verdict.reason) if verdict.worse else report


def _roll_back(
    report: DeployReport, request: DeployRequest, steps: EngineSteps, good: str | None, say: Callable[[str], None]
) -> DeployReport:
    if not request.roll_back:
        return _told(report, "It was not rolled back, because --no-roll-back was given.")
    if good is None:
        return _told(report, "There is nothing to roll back to: no commit of this stack has passed its checks yet.")
    if good == request.commit:
        return _told(report, "It was not rolled back: the last good commit is this one.")
    say(f"rolling back to {good[:12]}. {NOT_BROUGHT_BACK}")
    try:
        steps.up_at(good)
    except ScriptError as error:
        return _told(report, f"The roll-back to {good} failed: {error}")
    checked = steps.smoke("rolled-back")
    if checked != "passed":
        met = "fail there too" if checked == "failed" else "could not reach the server there"
        return _told(report, f"It was rolled back to {good}, and the smoke checks {met}.")
    return replace(
        _told(report, "It was rolled back, and the smoke checks pass."), outcome="rolled back", rolled_back_to=good
    )


def _kept(report: DeployReport, good: str | None) -> DeployReport:
    """Keep the commit deployed: that this machine cannot reach the server says nothing about it."""
    stack = report.stack
    check = f"Check it from a machine that can reach it: `python -m scripts.smoke --stack {stack}`."
    back = (
        f"If it fails there, roll back by hand: `git checkout {good}` and `pulumi up --stack {stack}`."
        if good is not None and good != report.commit
        else f"No other commit of this stack is known to be good: if it fails there, `python -m scripts.logs --stack {stack}` shows its lines."
    )
    kept = "Nothing was rolled back, the commit stays deployed, and it is not kept as a good one."
    return _told(report, f"{kept} {check} {back}")


def _told(report: DeployReport, sentence: str) -> DeployReport:
    return replace(report, reason=f"{report.reason} {sentence}".strip())
