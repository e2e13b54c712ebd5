"""A deployment: benchmark, deploy, check, benchmark again, and roll back if a check fails."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from contracts.errors import ScriptError
from contracts.exit_codes import ExitCode
from scripts.deploy.steps import CheckVerdict, EngineSteps, NotVerifiedError
from scripts.preview.face import PlanRefusedError

Outcome = Literal["deployed", "not verified", "rolled back", "failed"]
"""`not verified`: this commit is deployed, but it is unknown whether it serves."""

NOT_BROUGHT_BACK = (
    "A rollback cannot restore released TPU capacity; it requests new capacity and waits. "
    "It also cannot restore staged weights of a deleted bucket or the URL of a replaced service."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployReport:
    """Result of a deployment."""

    stack: str
    commit: str
    outcome: Outcome
    reason: str
    """Cause of a failure, or the checks that passed, in whole sentences."""
    benchmark: str = ""
    rolled_back_to: str = ""
    plan: str = ""
    """Id of the approved plan; empty without one."""

    @property
    def exit_code(self) -> ExitCode:
        """0 only if this commit is deployed and passed its checks."""
        return ExitCode.DONE if self.outcome == "deployed" else ExitCode.FAILED

    def to_json(self) -> dict[str, Any]:
        """Return the report in JSON types."""
        return {"schema_version": 1, **asdict(self)}

    def markdown(self) -> str:
        """Return the report for the summary of a workflow."""
        lines = [f"### `{self.stack}`: {self.outcome}", "", self.reason, ""]
        lines += [self.benchmark, ""] if self.benchmark else []
        lines += [f"Deployed now: `{self.rolled_back_to}`.", "", NOT_BROUGHT_BACK] if self.rolled_back_to else []
        return "\n".join(lines).rstrip() + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployRequest:
    """The commit to deploy and the checks to run."""

    stack: str
    commit: str
    bench: bool = True
    roll_back: bool = True
    plan: str = ""
    """Id of the plan to deploy; empty without one."""


def deploy_stack(request: DeployRequest, steps: EngineSteps, say: Callable[[str], None]) -> DeployReport:
    """Deploy, check, and roll back if a check fails. Raises only KeyboardInterrupt and CommandRefusedError."""
    steps.require_plan()  # before the benchmark, so that a refused plan costs no GPU time
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
    """Deploy and check. Returns outcome `not verified` if a check could not reach the server."""
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
    say("running the smoke checks")
    checked = steps.smoke("after")
    if checked == "passed":
        return _benchmark(report, steps, model, measured=measured, say=say) if request.bench else report
    if checked == "failed":
        return replace(report, outcome="failed", reason="The smoke checks failed.")
    reason = "The smoke checks could not reach the server. Their last lines have the cause."
    return replace(report, outcome="not verified", reason=reason)


def _measured(steps: EngineSteps, say: Callable[[str], None]) -> CheckVerdict:
    """Benchmark the current deployment, so that the comparison is on the same machine and day."""
    say("benchmarking the current deployment")
    return steps.bench("before")


def _benchmark(
    report: DeployReport, steps: EngineSteps, model: str | None, *, measured: bool, say: Callable[[str], None]
) -> DeployReport:
    """Benchmark the new deployment, and return the report with the comparison."""
    say("benchmarking the new deployment")
    done = steps.bench("after")
    if done == "unknown":
        reason = "The smoke checks passed, but the benchmark could not reach the server. Its last lines have the cause."
        return replace(report, outcome="not verified", reason=reason)
    if done == "failed":
        return replace(report, outcome="failed", reason="The benchmark failed because some points were not measured.")
    if not measured:
        why = "no earlier deployment exists" if model is None else "the previous deployment could not be measured"
        return replace(report, benchmark=f"The benchmark was not compared because {why}.")
    if model != steps.model():
        return replace(report, benchmark="The benchmark was not compared because the model changed.")
    verdict = steps.compare()
    report = replace(report, benchmark=verdict.reason)
    return replace(report, outcome="failed", reason=verdict.reason) if verdict.worse else report


def _roll_back(
    report: DeployReport, request: DeployRequest, steps: EngineSteps, good: str | None, say: Callable[[str], None]
) -> DeployReport:
    if not request.roll_back:
        return _with_sentence(report, "It was not rolled back because of --no-roll-back.")
    if good is None:
        return _with_sentence(report, "It was not rolled back because no commit of this stack has passed its checks.")
    if good == request.commit:
        return _with_sentence(report, "It was not rolled back because this commit is the last good one.")
    say(f"rolling back to {good[:12]}. {NOT_BROUGHT_BACK}")
    try:
        steps.up_at(good)
    except ScriptError as error:
        return _with_sentence(report, f"The rollback to {good} failed: {error}")
    checked = steps.smoke("rolled-back")
    if checked != "passed":
        result = "fail there too" if checked == "failed" else "could not reach the server"
        return _with_sentence(report, f"It was rolled back to {good}, but the smoke checks {result}.")
    return replace(
        _with_sentence(report, "It was rolled back, and the smoke checks pass."),
        outcome="rolled back",
        rolled_back_to=good,
    )


def _kept(report: DeployReport, good: str | None) -> DeployReport:
    """Keep the commit deployed, because an unreachable server does not mean that the commit is bad."""
    stack = report.stack
    check = f"From a machine that can reach it, run `python -m scripts.smoke --stack {stack}`."
    back = (
        f"If the checks fail, roll back manually: run `git checkout {good}`, then `pulumi up --stack {stack}`."
        if good is not None and good != report.commit
        else f"No other good commit of this stack is known. If the checks fail, run `python -m scripts.logs --stack {stack}`."
    )
    kept = "Nothing was rolled back. The commit stays deployed and is not recorded as good."
    return _with_sentence(report, f"{kept} {check} {back}")


def _with_sentence(report: DeployReport, sentence: str) -> DeployReport:
    return replace(report, reason=f"{report.reason} {sentence}".strip())
