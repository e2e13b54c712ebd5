"""A deployment ends with the new commit checked, or with the last good one back; nothing else is called success."""

import contextlib
import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from contracts.errors import ScriptError
from contracts.exit_codes import ExitCode
from contracts.fields import from_json
from contracts.outputs import StackOutputs
from engine import runner
from engine.checkout import git, other_checkout
from scripts.cli.command import run_command
from scripts.deploy import __main__ as command
from scripts.deploy.run import NOT_BROUGHT_BACK, DeployRequest, deploy_stack
from scripts.deploy.steps import BenchVerdict, EngineSteps, NotVerifiedError, ScriptRun
from scripts.preview.saved import PlanRefusedError
from tests.scripts.sample_outputs import sample_outputs

NEW, GOOD = "b" * 40, "a" * 40


@dataclass
class World:
    """Steps with planned results, which record their calls."""

    good: str | None = GOOD
    models: list = field(default_factory=lambda: ["m", "m"])
    up_error: str = ""
    back_error: str = ""
    failing: tuple = ()
    unknown: tuple = ()
    up_unknown: str = ""
    worse: bool = False
    asked: list = field(default_factory=list)
    plan_refused: str = ""
    """The step that finds that the plan is another one: `check` or `up`."""

    def require_plan(self):
        if self.plan_refused == "check":
            raise PlanRefusedError("other")

    def model(self):
        return self.models.pop(0) if len(self.models) > 1 else self.models[0]

    def good_commit(self):
        return self.good

    def up(self):
        if self.plan_refused == "up":
            raise PlanRefusedError("other")
        self.asked.append("up")
        if self.up_unknown:
            raise NotVerifiedError(self.up_unknown)
        if self.up_error:
            raise ScriptError(self.up_error)

    def smoke(self, name):
        self.asked.append(f"smoke {name}")
        return self._verdict(f"smoke {name}")

    def bench(self, name):
        self.asked.append(f"bench {name}")
        return self._verdict(f"bench {name}")

    def _verdict(self, step):
        return "failed" if step in self.failing else "unknown" if step in self.unknown else "passed"

    def compare(self):
        self.asked.append("compare")
        return BenchVerdict(worse=self.worse, reason="It got worse." if self.worse else "It did not get worse.")

    def remember(self, commit):
        self.asked.append(f"remember {commit[0]}")
        self.good = commit

    def up_at(self, commit):
        self.asked.append(f"up at {commit[0]}")
        if self.back_error:
            raise ScriptError(self.back_error)


def deploy(world, **options):
    said = []
    report = deploy_stack(DeployRequest(stack="x", commit=NEW, **options), world, said.append)
    return report, said


def test_a_commit_that_passes_is_the_next_one_to_roll_back_to():
    world = World()
    report, _ = deploy(world)
    assert world.asked == ["bench before", "up", "smoke after", "bench after", "compare", "remember b"]
    assert report.outcome == "deployed"
    assert report.exit_code is ExitCode.DONE
    assert report.benchmark == "It did not get worse."


@pytest.mark.parametrize(
    ("world", "reason"),
    [
        (World(up_error="no capacity"), "The deployment failed: no capacity"),
        (World(failing=("smoke after",)), "The smoke checks failed."),
        (World(failing=("bench after",)), "The benchmark failed"),
        (World(worse=True), "It got worse."),
    ],
)
def test_each_failed_check_brings_the_last_good_commit_back_and_fails(world, reason):
    report, said = deploy(world)
    assert report.outcome == "rolled back"
    assert report.exit_code is ExitCode.FAILED
    assert report.reason.startswith(reason)
    assert report.rolled_back_to == GOOD
    assert world.asked[-2:] == ["up at a", "smoke rolled-back"]
    assert world.good == GOOD
    assert any(NOT_BROUGHT_BACK in line for line in said)
    assert "cannot restore released TPU capacity" in report.markdown()


@pytest.mark.parametrize(("refused", "asked"), [("check", []), ("up", ["bench before"])])
def test_a_refused_plan_deploys_nothing_and_rolls_nothing_back(refused, asked):
    world = World(plan_refused=refused)
    with pytest.raises(PlanRefusedError):
        deploy(world, plan="plan-1")
    assert world.asked == asked
    assert PlanRefusedError.exit_code is ExitCode.REFUSED


@pytest.mark.parametrize(
    ("world", "reason"),
    [
        (World(unknown=("smoke after",)), "The smoke checks could not reach the server."),
        (World(unknown=("bench after",)), "The smoke checks passed, but the benchmark could not"),
        (World(up_unknown="Revision s-2 could not be checked."), "Revision s-2 could not be checked."),
    ],
)
def test_a_server_that_was_not_reached_keeps_its_commit_and_makes_it_neither_good_nor_bad(world, reason):
    report, _ = deploy(world)
    assert (report.outcome, report.exit_code) == ("not verified", ExitCode.FAILED)
    assert report.reason.startswith(reason)
    assert not [step for step in world.asked if step.startswith(("up at", "remember"))]
    assert world.good == GOOD
    assert "Nothing was rolled back. The commit stays deployed" in report.reason
    for wanted in ("`python -m scripts.smoke --stack x`", f"`git checkout {GOOD}`", "`pulumi up --stack x`"):
        assert wanted in report.reason, wanted
    assert report.rolled_back_to == ""
    assert report.markdown().startswith("### `x`: not verified")


def test_without_a_good_commit_an_unverified_one_names_the_logs():
    report, _ = deploy(World(good=None, unknown=("smoke after",)))
    assert "No other good commit of this stack is known" in report.reason
    assert "`python -m scripts.logs --stack x`" in report.reason


@pytest.mark.parametrize(
    ("script", "ending", "verdict"),
    [
        ("smoke", (0, '{"verdict": "passed"}'), "passed"),
        ("smoke", (1, '{"verdict": "failed"}'), "failed"),
        ("smoke", (2, '{"verdict": "unreachable"}'), "unknown"),
        # The tunnel did not open: a sentence on stderr and no report.
        ("smoke", (2, ""), "unknown"),
        # A command that broke has a traceback, and exit code 1 too.
        ("smoke", (1, ""), "unknown"),
        ("smoke", (-9, '{"verd'), "unknown"),
        ("bench", (0, '{"ending": "done"}'), "passed"),
        ("bench", (1, '{"ending": "done"}'), "failed"),
        ("bench", (1, '{"ending": "done", "failing": 1, "empty": 0, "invalid": 1}'), "failed"),
        # The machine of the client was busy: no fault of the commit.
        ("bench", (1, '{"ending": "done", "failing": 0, "empty": 0, "invalid": 1}'), "passed"),
        ("bench", (1, '{"ending": "server gone"}'), "failed"),
        ("bench", (2, '{"ending": "unreachable"}'), "unknown"),
        ("bench", (1, '{"ending": "client failed"}'), "unknown"),
        ("bench", (2, ""), "unknown"),
    ],
)
def test_only_a_report_of_a_failed_check_is_a_failed_check(monkeypatch, tmp_path, script, ending, verdict):
    code, printed = ending
    monkeypatch.setattr(runner, "project_folder", lambda: tmp_path)
    asked = []

    @contextlib.contextmanager
    def started(words, **_):
        asked.append(words[2])
        yield SimpleNamespace(communicate=lambda: (printed, None), returncode=code)

    monkeypatch.setattr("scripts.deploy.steps.started", started)
    steps = EngineSteps(stack="a", out=tmp_path, source=None, threshold=0.1)
    assert getattr(steps, script)("after") == verdict
    assert asked == [f"scripts.{script}"]


@pytest.mark.parametrize(
    ("world", "options", "words"),
    [
        (World(good=None, up_error="x"), {}, "no commit of this stack has passed its checks"),
        (World(good=NEW, up_error="x"), {}, "this commit is the last good one"),
        (World(up_error="x"), {"roll_back": False}, "--no-roll-back"),
        (World(up_error="x", back_error="no capacity"), {}, f"The rollback to {GOOD} failed: no capacity"),
        (World(up_error="x", failing=("smoke rolled-back",)), {}, "the smoke checks fail there too"),
        (World(up_error="x", unknown=("smoke rolled-back",)), {}, "but the smoke checks could not reach the server"),
    ],
)
def test_what_could_not_be_rolled_back_is_never_called_rolled_back(world, options, words):
    report, _ = deploy(world, **options)
    assert report.outcome == "failed"
    assert report.exit_code is ExitCode.FAILED
    assert words in report.reason
    assert report.rolled_back_to == ""
    assert not any(step.startswith("remember") for step in world.asked)


@pytest.mark.parametrize(
    ("world", "words"),
    [
        (World(models=[None, "m"]), "because no earlier deployment exists"),
        (World(models=["m", "other"]), "because the model changed"),
        (World(failing=("bench before",)), "because the previous deployment could not be measured"),
    ],
)
def test_a_benchmark_without_a_comparison_says_why_and_fails_nothing(world, words):
    report, _ = deploy(world)
    assert report.outcome == "deployed"
    assert words in report.benchmark
    assert "compare" not in world.asked


def test_without_the_benchmark_only_the_smoke_checks_decide():
    world = World()
    deploy(world, bench=False)
    assert world.asked == ["up", "smoke after", "remember b"]


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "Pulumi.yaml").write_text("name: x\n")
    (folder / "Pulumi.a.yaml").write_text("config: {}\n")
    monkeypatch.chdir(folder)
    for arguments in (("init", "--quiet"), ("add", "."), ("commit", "--quiet", "--message", "one")):
        identity = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *identity, *arguments], check=True, capture_output=True, timeout=60)
    return folder


def test_another_commit_stands_beside_the_checkout_and_leaves_nothing(checkout):
    (checkout / "Pulumi.a.yaml").write_text("config: {changed: true}\n")
    with other_checkout("HEAD") as folder:
        assert (folder / "Pulumi.a.yaml").read_text() == "config: {}\n"
        assert (folder / ".venv").is_symlink()
    assert not folder.exists()
    assert len(git("worktree", "list").splitlines()) == 1
    assert "changed" in (checkout / "Pulumi.a.yaml").read_text()


@pytest.mark.parametrize(
    ("arguments", "prepare", "words"),
    [
        (("--stack", "b"), None, "Pulumi.b.yaml not found. Stacks with a settings file: a."),
        (("--stack", "a", "--settings-of", "a"), None, "--settings-of would overwrite"),
        (("--stack", "a"), "Pulumi.a.yaml", "Pulumi.a.yaml has uncommitted changes"),
        (("--stack", "a"), "out/x", "--out out is not empty. Pass a new folder."),
    ],
)
def test_what_could_not_be_rolled_back_later_is_refused_before_anything_is_done(
    checkout, capsys, arguments, prepare, words
):
    if prepare:
        (checkout / prepare).parent.mkdir(exist_ok=True)
        (checkout / prepare).write_text("changed: true\n")
    assert run_command(command.COMMAND, [*arguments, "--out", "out"]) == ExitCode.REFUSED
    assert words in capsys.readouterr().err


def test_the_report_goes_to_the_folder_and_to_the_summary_of_the_workflow(checkout, monkeypatch, capsys):
    world = World()
    monkeypatch.setattr("scripts.deploy.steps.EngineSteps", lambda **_: world)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(checkout / "summary.md"))
    assert run_command(command.COMMAND, ["--stack", "a", "--out", "out", "--json"]) == ExitCode.DONE
    report = json.loads(capsys.readouterr().out)
    assert report == json.loads((checkout / "out" / "deploy.json").read_text())
    assert report["commit"] == git("rev-parse", "HEAD")
    assert (checkout / "summary.md").read_text().startswith("### `a`: deployed")


def test_a_preview_environment_takes_the_settings_of_its_stack(checkout, monkeypatch):
    asked = []
    monkeypatch.setattr(runner, "run", lambda *a, **_: subprocess.CompletedProcess(a, 0, "", ""))
    monkeypatch.setattr(
        runner, "change", lambda *a, **_: asked.append((a, (checkout / "Pulumi.pr-12.yaml").read_text()))
    )
    monkeypatch.setattr("scripts.deploy.steps.stack_outputs", lambda _: from_json(StackOutputs, sample_outputs()))
    EngineSteps(stack="pr-12", out=checkout, source="a", threshold=0.1).up()
    assert asked == [(("pr-12", "up"), "config: {}\n")]


@pytest.mark.parametrize(
    ("outcome", "ends"),
    [
        ("rolled out", None),
        ("rolled back", ScriptError),
        ("failed", ScriptError),
        ("refused", ScriptError),
        ("not rolled back", ScriptError),
        ("not verified", NotVerifiedError),
        ("held", NotVerifiedError),
        ("stopped", NotVerifiedError),
        (None, NotVerifiedError),
    ],
)
def test_a_stack_with_a_roll_out_is_deployed_when_its_new_revision_has_the_requests(
    checkout, monkeypatch, outcome, ends
):
    rollout = {"service": "s", "steps": [100], "requests": 4, "maxSlowdown": 1.5, "maxFailed": 0.0}
    outputs = from_json(StackOutputs, sample_outputs(rollout=rollout))
    asked = []
    monkeypatch.setattr(runner, "run", lambda *a, **_: subprocess.CompletedProcess(a, 0, "", ""))
    monkeypatch.setattr(runner, "change", lambda *a, **_: asked.append("up"))
    monkeypatch.setattr("scripts.deploy.steps.stack_outputs", lambda _: outputs)
    report = {"outcome": outcome, "reason": "All requests go to s-1."} if outcome else {}
    done = ScriptRun(code=0 if ends is None else 1, report=report)
    monkeypatch.setattr(EngineSteps, "_script", staticmethod(lambda *words: asked.append(words) or done))
    steps = EngineSteps(stack="a", out=checkout, source=None, threshold=0.1)
    if ends is None:
        steps.up()
    else:
        words = "All requests go to s-1" if outcome else "exited without a report"
        with pytest.raises(ScriptError, match=words) as raised:
            steps.up()
        assert type(raised.value) is ends
    assert asked == ["up", ("rollout", "--stack", "a", "--json")]


def test_a_deployment_moves_no_requests_where_the_settings_do(checkout, monkeypatch):
    rollout = {"service": "s", "steps": [100], "requests": 4, "maxSlowdown": 1.5, "maxFailed": 0.0}
    outputs = from_json(StackOutputs, sample_outputs(rollout={**rollout, "traffic": {"s-1": 100}}))
    monkeypatch.setattr(runner, "run", lambda *a, **_: subprocess.CompletedProcess(a, 0, "", ""))
    monkeypatch.setattr(runner, "change", lambda *_, **__: None)
    monkeypatch.setattr("scripts.deploy.steps.stack_outputs", lambda _: outputs)
    monkeypatch.setattr(EngineSteps, "_script", staticmethod(lambda *_: pytest.fail("a roll-out was started")))
    EngineSteps(stack="a", out=checkout, source=None, threshold=0.1).up()


TPU = """config:
  gemma-serving:target: tpu
  gemma-serving:model: google/gemma-4-31B-it-qat-w4a16-ct
  gemma-serving:image: {image}
  gemma-serving:weights: hub
  gemma-serving:tpu: {{ acceleratorType: v6e-1, zones: [europe-west4-a, us-east5-a], provisioning: flex-start, maxRunDuration: 4h }}
"""


@pytest.mark.parametrize(
    ("image", "wanted", "said"),
    [
        ("vllm-tpu-w4a16", True, [["gcloud", "auth", "configure-docker", "europe-west4-docker.pkg.dev", "--quiet"]]),
        ("vllm-tpu-w4a16", False, []),
        ("vllm-tpu", True, []),
    ],
)
def test_docker_is_signed_in_where_the_stack_builds_its_image(checkout, monkeypatch, image, wanted, said):
    (checkout / "Pulumi.a.yaml").write_text(TPU.format(image=image))
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "my-project")
    asked, code = [], [0]

    def run(words, **_):
        asked.append(words)
        return subprocess.CompletedProcess(words, code[0], "", "ERROR: (gcloud.auth) not signed in")

    monkeypatch.setattr("scripts.deploy.steps.subprocess.run", run)
    steps = EngineSteps(stack="a", out=checkout, source=None, threshold=0.1, configure_docker=wanted)
    steps._log_in_to_registry()
    assert asked == said
    if said:
        code[0] = 1
        with pytest.raises(ScriptError, match=r"configure-docker europe-west4-docker\.pkg\.dev --quiet` failed: ERROR"):
            steps._log_in_to_registry()


def test_both_deployments_sign_in_before_the_engine_runs(checkout, monkeypatch):
    order = []
    monkeypatch.setattr(EngineSteps, "_log_in_to_registry", lambda _: order.append("sign in"))
    monkeypatch.setattr(EngineSteps, "_roll_out", lambda _: None)
    monkeypatch.setattr(runner, "run", lambda *a, **_: subprocess.CompletedProcess(a, 0, "", ""))
    monkeypatch.setattr(runner, "change", lambda *_, **__: order.append("up"))
    steps = EngineSteps(stack="a", out=checkout, source=None, threshold=0.1, configure_docker=True)
    steps.up()
    steps.up_at("HEAD")
    assert order == ["sign in", "up"] * 2


def test_the_workflow_signs_docker_in():
    script = (Path(command.__file__).parent / "ci_deploy.sh").read_text()
    assert "--configure-docker" in script
