"""Steps of a deployment as commands: `pulumi up`, the smoke checks, the quick benchmark and its comparison."""

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
"""Stack tag for the last deployed commit that passed its checks."""
REPEATS: Final = 3
"""Measurements of every point. With fewer, a comparison cannot tell."""
CONFIDENCE: Final = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchVerdict:
    """Result of the comparison of two benchmarks. `reason` is a sentence."""

    worse: bool
    reason: str


CheckVerdict = Literal["passed", "failed", "unknown"]
"""`unknown`: the server was unreachable or the check itself broke, so the commit is neither good nor bad."""


class NotVerifiedError(ScriptError):
    """The new commit is deployed, but it is unknown whether it serves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptRun:
    """Result of a command of this project."""

    code: int
    report: Mapping[str, object]
    """Its `--json` output; empty if it printed nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSteps:
    """The steps with the real engine and the commands of this project. Results are in `out`."""

    stack: str
    out: Path
    source: str | None
    """Stack whose settings are used, for a stack without its own file; None for its own file."""
    threshold: float
    """Maximum fraction by which a benchmark metric may get worse."""
    plan: SavedPlan | None = None
    """The plan that `up` must match; None deploys this checkout as it is."""
    configure_docker: bool = False
    """Use gcloud's login for Docker at the registry of a stack that builds its image."""

    def model(self) -> str | None:
        """Return the deployed model; None if the stack is not deployed."""
        try:
            return stack_outputs(self.stack).model
        except CommandRefusedError:
            return None

    def good_commit(self) -> str | None:
        """Return the last deployed commit that passed, from the stack's tag; None without one."""
        answer = runner.run("stack", "tag", "get", GOOD_TAG, "--stack", self.stack)
        return answer.stdout.strip() or None if answer.returncode == 0 else None

    def require_plan(self) -> None:
        """Preview again in a private copy and compare with the plan, if any. Raises PlanRefusedError with the difference."""
        if self.plan is not None:
            self._take_settings()
            with frozen_here(self.stack) as frozen:
                self.plan.require_same(frozen)

    def up(self) -> None:
        """Run `pulumi up` and the rollout, if one is set. Create the stack if it does not exist. Raises ScriptError.

        Raises PlanRefusedError if the steps differ from the plan, and NotVerifiedError if a rollout could not reach the new revision.
        """
        self._take_settings()
        self._log_in_to_registry()
        if self.plan is None:
            self._select()
            runner.change(self.stack, "up", after_failure="")
        else:
            # The engine runs in the compared copy, so later edits of the checkout have no effect.
            root = runner.project_folder()
            with frozen_here(self.stack) as frozen:
                self._select()
                self.plan.require_same(frozen)
                try:
                    runner.change(self.stack, "up", *(["--refresh"] if self.plan.refresh else []), after_failure="")
                finally:
                    for path in frozen.edited(root):
                        say("deploy", f"{path} changed during the deployment and that change was not deployed")
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
        """Run the quick benchmark, with several measurements per point. Passes if every point was measured and no server failed."""
        folder = str(self.out / f"bench-{name}")
        done = self._script("bench", "--stack", self.stack, "--repeats", str(REPEATS), "--out", folder, "--json")
        ending = done.report.get("ending")
        if ending not in {"done", "server gone"}:
            return "unknown"
        if done.code == 0:
            return "passed"
        # A point that only the client made invalid is not a fault of the commit; the comparison leaves it out and names it.
        return (
            "passed"
            if ending == "done" and all(done.report.get(name) == 0 for name in ("failing", "empty"))
            else "failed"
        )

    def compare(self) -> BenchVerdict:
        """Compare the benchmarks `before` and `after`. A metric that is worse beyond the threshold fails."""
        from loadtest.compare import compare_folders, comparison_sentence  # noqa: PLC0415 - numpy takes 0.1 s
        from loadtest.errors import SweepError  # noqa: PLC0415 - the same
        from loadtest.reports.compare_page import comparison_markdown  # noqa: PLC0415 - the same

        before, after = self.out / "bench-before", self.out / "bench-after"
        try:
            found = compare_folders(before, after, threshold=self.threshold, confidence=CONFIDENCE)
        except SweepError as error:
            return BenchVerdict(worse=False, reason=f"The benchmarks cannot be compared: {error}")
        (self.out / "compare.md").write_text(comparison_markdown(found), encoding="utf-8")
        if found.compared_nothing:
            return BenchVerdict(worse=False, reason=f"The benchmarks cannot be compared: {comparison_sentence(found)}")
        worse = [f"{change.metric} at {change.point}" for change in found.changes if change.verdict == "worse"]
        worse += found.failures
        if not worse:
            return BenchVerdict(
                worse=False, reason=f"No benchmark metric got worse beyond the threshold: {comparison_sentence(found)}"
            )
        return BenchVerdict(worse=True, reason=f"The benchmark got worse: {'; '.join(worse)}.")

    def remember(self, commit: str) -> None:
        """Store a commit as the last good one in the stack's tag."""
        runner.query(["stack", "tag", "set", GOOD_TAG, commit, "--stack", self.stack])

    def up_at(self, commit: str) -> None:
        """Run `pulumi up` in a checkout of the commit, with its settings, program and provider and the installed packages.

        Its steps are not approved, so they are printed before they run. Raises ScriptError.
        """
        with other_checkout(commit) as folder, contextlib.chdir(folder):
            self._take_settings()
            self._log_in_to_registry()
            self._show_steps()
            runner.change(self.stack, "up", after_failure="")
            self._roll_out()

    def _roll_out(self) -> None:
        """Shift the traffic to the new revision if `up` does not. Raises ScriptError if a check failed and the old revision serves.

        Raises NotVerifiedError if the revision could not be checked or the rollout finished without a report.
        """
        rollout = stack_outputs(self.stack).rollout
        if rollout is None or rollout.traffic is not None:
            return
        done = self._script("rollout", "--stack", self.stack, "--json")
        if done.code == 0:
            return
        reason = str(done.report.get("reason") or "`scripts.rollout` exited without a report, see above.")
        outcome = done.report.get("outcome")
        if outcome == "not rolled back":
            raise ScriptError(f"`scripts.rollout` could not remove traffic from a revision that failed: {reason}")
        if outcome in {"rolled back", "failed", "refused"}:
            raise ScriptError(f"`scripts.rollout` left the traffic on the previous revision: {reason}")
        raise NotVerifiedError(reason)

    def _log_in_to_registry(self) -> None:
        """Configure Docker with gcloud's login, if requested and the stack builds its image. Raises ScriptError with gcloud's last line."""
        if not self.configure_docker:
            return
        settings = stack_settings(self.stack)
        if settings.image.build_context is None:
            return
        words = ["gcloud", "auth", "configure-docker", registry_host(settings), "--quiet"]
        try:
            done = ended(words)
        except OSError as error:
            raise ScriptError(f"Cannot run `{' '.join(words)}`: {error.strerror}. Install gcloud.") from None
        if done.returncode != 0:
            raise ScriptError(f"`{' '.join(words)}` failed: {last_words(done)}")

    def _select(self) -> None:
        """Select the stack, and create it if it does not exist."""
        chosen = runner.run("stack", "select", "--create", self.stack, *provider_options(self.stack))
        if chosen.returncode != 0:
            raise ScriptError(runner.error_of(chosen))

    def _show_steps(self) -> None:
        """Print the steps of `up`. A failed preview is ignored because `up` reports the error."""
        try:
            steps = steps_of(previewed(self.stack), environment_secrets())
        except ScriptError as error:
            say("deploy", f"rollback: preview failed: {masked(str(error))}")
            return
        for step in steps:
            say("deploy", f"rollback: {step.name} ({step.type}): {step.does}")
        if not steps:
            say("deploy", "rollback: no resource changes")

    def _take_settings(self) -> None:
        """Copy the settings file of the source stack."""
        if self.source is None:
            return
        folder = runner.project_folder()
        path = folder / f"Pulumi.{self.source}.yaml"
        if not path.is_file():
            raise CommandRefusedError(f"{path.name} not found. Pass a stack that has a settings file.")
        shutil.copyfile(path, folder / f"Pulumi.{self.stack}.yaml")

    @staticmethod
    def _script(name: str, *arguments: str) -> ScriptRun:
        """Run a command of this project with `--json` and progress on stderr, and return its result. A signal stops both."""
        words = [sys.executable, "-m", f"scripts.{name}", *arguments]
        folder = runner.project_folder()
        with started(words, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
            out, _ = process.communicate()
        if process.returncode == ExitCode.INTERRUPTED:
            raise KeyboardInterrupt
        return ScriptRun(code=process.returncode, report=json_object(out))
