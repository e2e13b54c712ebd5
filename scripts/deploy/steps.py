"""The steps of a deployment as other commands: `pulumi up`, the smoke checks, the quick benchmark and its comparison."""

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from contracts.errors import CommandRefusedError, ScriptError
from contracts.exit_codes import ExitCode
from contracts.fields import json_object
from contracts.former_names import current_outcome
from contracts.labels import PRODUCT
from contracts.masking import masked
from engine import runner
from engine.checkout import other_checkout
from engine.children import ended, last_words, started
from engine.previewed import previewed
from engine.secrets_provider import provider_options
from engine.stack import stack_outputs
from engine.steps import steps_of
from scripts.cli.command import say
from scripts.cli.frozen import frozen_here
from scripts.cli.hidden import environment_secrets
from scripts.cli.settings import registry_host, stack_settings
from scripts.preview.face import SavedPlan

GOOD_TAG: Final = f"{PRODUCT}:good-commit"
"""Tag of a stack: the commit that was deployed last and passed its checks."""
REPEATS: Final = 3
"""Measurements of every point: with fewer, a comparison says at most "unclear"."""
CONFIDENCE: Final = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchVerdict:
    """What the comparison of two benchmarks says. `reason` is a sentence."""

    worse: bool
    reason: str


CheckVerdict = Literal["passed", "failed", "unknown"]
"""`unknown`: the server could not be reached, or the check itself broke, so that it says nothing about the commit."""


class NotVerifiedError(ScriptError):
    """The new commit is deployed, and whether it serves is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptRun:
    """How a command of this project ended."""

    code: int
    report: Mapping[str, object]
    """What it printed with `--json`; empty if it printed nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSteps:
    """The steps with the real engine and the commands of this project. Results lie below `out`."""

    stack: str
    out: Path
    source: str | None
    """Stack whose settings are used, for a stack without a file of its own; None for its own file."""
    threshold: float
    """Share by which a figure of the benchmark may get worse."""
    plan: SavedPlan | None = None
    """What `up` may do; None deploys whatever this checkout says."""
    configure_docker: bool = False
    """Whether Docker gets gcloud's login for the registry of a stack whose image is built."""

    def model(self) -> str | None:
        """Return the model that is deployed, None if the stack is not deployed."""
        try:
            return stack_outputs(self.stack).model
        except CommandRefusedError:
            return None

    def good_commit(self) -> str | None:
        """Return the commit that was deployed last and passed, that of the stack's tag; None if none did."""
        answer = runner.run("stack", "tag", "get", GOOD_TAG, "--stack", self.stack)
        return answer.stdout.strip() or None if answer.returncode == 0 else None

    def require_plan(self) -> None:
        """Preview again in a private copy, and compare with the plan, if there is one. Raises PlanRefusedError with what differs."""
        if self.plan is not None:
            self._take_settings()
            with frozen_here(self.stack) as frozen:
                self.plan.require_same(frozen)

    def up(self) -> None:
        """Run `pulumi up` and the roll-out, if one is set; make the stack if the backend does not know it. Raises ScriptError.

        Raises PlanRefusedError if that is not what the plan says, and NotVerifiedError if a roll-out could not reach the new revision.
        """
        self._take_settings()
        self._log_in_to_registry()
        if self.plan is None:
            self._select()
            runner.change(self.stack, "up", after_failure="")
        else:
            # The engine runs in the copy that was compared: an edit of the checkout that comes later reaches no run.
            root = runner.project_folder()
            with frozen_here(self.stack) as frozen:
                self._select()
                self.plan.require_same(frozen)
                try:
                    runner.change(self.stack, "up", *(["--refresh"] if self.plan.refresh else []), after_failure="")
                finally:
                    for path in frozen.edited(root):
                        say("deploy", f"{path} was changed during the deployment; the change is not deployed")
                    for sentence in frozen.bring_back_engine_lines(root):
                        say("deploy", sentence)
        self._roll_out()

    def smoke(self, name: str) -> CheckVerdict:
        """Run the smoke checks against the stack's thresholds."""
        junit = str(self.out / f"smoke-{name}.xml")
        done = self._script("smoke", "--stack", self.stack, "--junit", junit, "--json")
        verdict = done.report.get("verdict")
        return "passed" if verdict == "passed" else "failed" if verdict == "failed" else "unknown"

    def bench(self, name: str) -> CheckVerdict:
        """Run the quick benchmark, each point several times. Passed: every point was measured."""
        folder = str(self.out / f"bench-{name}")
        done = self._script("bench", "--stack", self.stack, "--repeats", str(REPEATS), "--out", folder, "--json")
        if done.report.get("ending") not in {"done", "server gone"}:
            return "unknown"
        return "passed" if done.code == 0 else "failed"

    def compare(self) -> BenchVerdict:
        """Compare the benchmarks `before` and `after`; a figure that is worse beyond the threshold fails."""
        from loadtest.compare import compare_folders  # noqa: PLC0415 - numpy takes 0.1 s
        from loadtest.errors import SweepError  # noqa: PLC0415 - the same
        from loadtest.reports.compare_page import comparison_markdown  # noqa: PLC0415 - the same

        before, after = self.out / "bench-before", self.out / "bench-after"
        try:
            found = compare_folders(before, after, threshold=self.threshold, confidence=CONFIDENCE)
        except SweepError as error:
            return BenchVerdict(worse=False, reason=f"The benchmarks cannot be compared: {error}")
        (self.out / "compare.md").write_text(comparison_markdown(found), encoding="utf-8")
        worse = [f"{change.metric} at {change.point}" for change in found.changes if change.verdict == "worse"]
        worse += found.failures
        if not worse:
            return BenchVerdict(worse=False, reason="No figure of the benchmark got worse beyond the threshold.")
        return BenchVerdict(worse=True, reason=f"The benchmark got worse: {'; '.join(worse)}.")

    def remember(self, commit: str) -> None:
        """Keep a commit as the last good one, in the stack's tag."""
        runner.query(["stack", "tag", "set", GOOD_TAG, commit, "--stack", self.stack])

    def up_at(self, commit: str) -> None:
        """Run `pulumi up` in a checkout of the commit: with its settings, its program and its provider, and the packages that are installed.

        No approval covers its steps: they are printed before they run. Raises ScriptError.
        """
        with other_checkout(commit) as folder, contextlib.chdir(folder):
            self._take_settings()
            self._log_in_to_registry()
            self._show_steps()
            runner.change(self.stack, "up", after_failure="")
            self._roll_out()

    def _roll_out(self) -> None:
        """Give the requests to the new revision where `up` does not. Raises ScriptError if a check failed: the old revision serves then.

        Raises NotVerifiedError if the revision could not be checked, or if the roll-out ended without a report.
        """
        rollout = stack_outputs(self.stack).rollout
        if rollout is None or rollout.traffic is not None:
            return
        done = self._script("rollout", "--stack", self.stack, "--json")
        if done.code == 0:
            return
        reason = str(done.report.get("reason") or "`scripts.rollout` ended without a report, see above.")
        outcome = current_outcome(done.report.get("outcome"))
        if outcome == "not rolled back":
            raise ScriptError(f"`scripts.rollout` could not take the requests from a revision that failed: {reason}")
        if outcome in {"rolled back", "failed", "refused"}:
            raise ScriptError(f"`scripts.rollout` left the requests with the revision that served before: {reason}")
        raise NotVerifiedError(reason)

    def _log_in_to_registry(self) -> None:
        """Let gcloud sign Docker in, if that is wanted and the stack builds its image. Raises ScriptError with gcloud's last line."""
        if not self.configure_docker:
            return
        settings = stack_settings(self.stack)
        if settings.image.build_context is None:
            return
        words = ["gcloud", "auth", "configure-docker", registry_host(settings), "--quiet"]
        try:
            done = ended(words)
        except OSError as error:
            raise ScriptError(f"`{' '.join(words)}` cannot be run: {error.strerror}. Install gcloud.") from None
        if done.returncode != 0:
            raise ScriptError(f"`{' '.join(words)}` failed: {last_words(done)}")

    def _select(self) -> None:
        """Select the stack; create it if the backend does not know it."""
        chosen = runner.run("stack", "select", "--create", self.stack, *provider_options(self.stack))
        if chosen.returncode != 0:
            raise ScriptError(runner.error_of(chosen))

    def _show_steps(self) -> None:
        """Print what `up` is going to do. A preview that fails stops nothing: `up` reports its reason."""
        try:
            steps = steps_of(previewed(self.stack), environment_secrets())
        except ScriptError as error:
            say("deploy", f"the roll-back could not be previewed: {masked(str(error))}")
            return
        for step in steps:
            say("deploy", f"roll-back: {step.name} ({step.type}): {step.does}")
        if not steps:
            say("deploy", "roll-back: no resource changes")

    def _take_settings(self) -> None:
        """Copy the settings of the stack that they are taken from."""
        if self.source is None:
            return
        folder = runner.project_folder()
        path = folder / f"Pulumi.{self.source}.yaml"
        if not path.is_file():
            raise CommandRefusedError(f"There is no {path.name}; name a stack with settings.")
        shutil.copyfile(path, folder / f"Pulumi.{self.stack}.yaml")

    @staticmethod
    def _script(name: str, *arguments: str) -> ScriptRun:
        """Run a command of this project with `--json`, its words on stderr, and return how it ended. A signal ends both."""
        words = [sys.executable, "-m", f"scripts.{name}", *arguments]
        folder = runner.project_folder()
        with started(words, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
            out, _ = process.communicate()
        if process.returncode == ExitCode.INTERRUPTED:
            raise KeyboardInterrupt
        return ScriptRun(code=process.returncode, report=json_object(out))
