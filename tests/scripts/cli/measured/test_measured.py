"""The loop from plan to measurement: what smoke and bench keep, what `scripts.plan --measured` says of it, and what a check finds."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from contracts.fields import from_json, to_json
from contracts.outputs import SmokeThresholds, StackOutputs
from loadtest.tests.model_pool import ModelPool, ModelServer
from planning.cost.subject import examine
from planning.planner import plan_of
from planning.question.types import Band
from planning.question.vllm_args import given_options
from planning.solve.residuals import SmokeFigures, decode_band, residual, usual_causes
from scripts.bench.__main__ import COMMAND as BENCH
from scripts.cli.access import ServerAccess, open_url_access
from scripts.cli.command import run_command
from scripts.cli.measured.store import measured_path, read_measured
from scripts.plan.__main__ import main as plan_main
from scripts.smoke.__main__ import COMMAND as SMOKE
from scripts.smoke.context import Check
from scripts.smoke.results import Outcome
from scripts.smoke.run import PLAN_CHECK, run_smoke
from scripts.smoke.target import SmokeTarget
from stacks.loading import from_file
from stacks.planned import to_deployment
from tests.scripts.sample_outputs import sample_outputs

ROOT = Path(__file__).parents[4]
STACK = "l4-qat"
CANARY = "sk-canary-3f9a"
LOAD = ("--concurrency", "2", "--requests", "4", "--input-tokens", "16", "--output-tokens", "8", "--warm-up", "0")


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with the project's file and the stack's settings; results lie below it."""
    for name in ("Pulumi.yaml", f"Pulumi.{STACK}.yaml"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def slower(start_server):
    """A server of 250 tok/s for each stream: an L4 could be as fast."""
    return start_server("--ttft-s", "0.1", "--tpot-s", "0.004", "--max-model-len", "2048")


@pytest.fixture
def deployed(project, slower, monkeypatch):
    """The stack as if it were deployed, with the server of known timing behind it; call it to change the outputs."""

    def deploy(**changes):
        settings = from_file(project / f"Pulumi.{STACK}.yaml", project="my-project")
        plan = plan_of(examine(to_deployment(settings)))
        options = given_options(replace(plan.vllm, served_model_name=settings.model))
        raw = sample_outputs(
            model=settings.model,
            servedModel="timed",
            endpoint=f"https://{CANARY}.run.app",
            project="my-project",
            apiKeySecret=f"projects/p/secrets/{CANARY}/versions/1",
            image=f"us-docker.pkg.dev/{CANARY}/vllm@{settings.image.digest}",
            plan=to_json(plan.summary()),
            vllm=dict(options),
        )
        raw["smoke"] |= {"maxTtftS": 2.0, "minDecodeTokPerS": 30, "burstRequests": 2, "maxModelLen": None}
        raw |= changes
        outputs = from_json(StackOutputs, json.loads(json.dumps(raw), parse_int=float))
        for room in ("engine.stack", "scripts.bench.run", "scripts.bench.keep"):
            monkeypatch.setattr(f"{room}.stack_outputs", lambda _: outputs)
        # A busy machine makes a real load invalid, and an invalid point is not kept.
        server = ModelServer(slots=2, ttft_s=0.025, tpot_s=0.025)
        monkeypatch.setattr("loadtest.sweep.WorkerPool", lambda: ModelPool(server))
        for room in ("scripts.cli.access", "scripts.bench.run"):
            monkeypatch.setattr(f"{room}.open_stack_access", lambda _: open_url_access(slower))
        return raw

    deploy()
    return deploy


@pytest.fixture
def run(capsys):
    """Run a command in this process; returns exit code, stdout and stderr."""

    def ran(command, *words):
        code = plan_main(words) if command is plan_main else run_command(command, words)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return ran


def measured(run):
    _, out, _ = run(plan_main, "--stack", STACK, "--measured", "--json")
    return json.loads(out)


def test_without_a_file_one_sentence_says_what_to_run(project, run):
    code, out, err = run(plan_main, "--stack", STACK, "--measured")
    assert (code, out) == (2, "")
    assert "gemma smoke l4-qat" in err
    assert "gemma bench l4-qat" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--model", "google/gemma-4-E2B-it", "--accelerator", "L4"), "--measured requires --stack NAME"),
        (("--stack", STACK, "--costs"), "cannot be combined with --explain, --costs"),
        (("--stack", STACK, "--workload", "users=2"), "cannot be combined with --workload"),
    ],
)
def test_options_that_measured_has_no_use_for_are_refused(project, run, words, sentence):
    code, _, err = run(plan_main, *words, "--measured")
    assert code == 2
    assert sentence in err


def test_smoke_and_bench_keep_figures_that_the_plan_shows_and_prices(deployed, project, run):
    run(SMOKE, "--stack", STACK)
    smoke_only = measured(run)["measured"]
    assert smoke_only["rate"]["source"].startswith("smoke, burst of 2")
    code, _, err = run(BENCH, "--stack", STACK, *LOAD, "--out", "out")
    assert code == 0, err
    assert "1 point recorded in" in err
    found = measured(run)
    rows = {row["figure"]: row for row in found["measured"]["rows"]}
    stream = rows["one stream, tok/s"]
    assert (stream["low"], stream["planned"]) < (stream["planned"], stream["high"])
    # 250 tok/s on an idle machine; the sides of a band are proved on planted figures below.
    assert stream["measured"] > 0
    assert stream["within"] is (stream["low"] <= stream["measured"] <= stream["high"])
    assert stream["difference"] == pytest.approx(stream["measured"] / stream["planned"] - 1)
    assert rows["KV blocks"]["booted"] == 1000
    assert rows["KV blocks"]["within"] is False
    assert (rows["block size"]["planned"], rows["block size"]["booted"]) == (None, 16)
    assert rows["2 users, 16 in, 8 out: tok/s"]["planned"] > 0
    rate = found["measured"]["rate"]
    assert rate["source"].startswith("bench, 2 users, 16 in, 8 out")
    usd = found["cost"]["usd_per_hour"] / 3600 / rate["tok_per_s"] * 1e6
    assert found["cost"]["usd_per_million_tokens"] == pytest.approx(usd, rel=1e-3)
    code, out, _ = run(plan_main, "--stack", STACK, "--measured")
    assert code == 0
    assert "SIMULATED" in out
    assert "With the measured" in out
    assert len(read_measured(STACK).deployments) == 1


def test_figures_of_another_image_or_other_settings_are_shown_as_old_and_not_used(deployed, project, run):
    raw = deployed()
    deployed(image=f"i@sha256:{'0' * 64}")
    run(BENCH, "--stack", STACK, *LOAD, "--out", "a")
    deployed(vllm=raw["vllm"] | {"maxModelLen": 8192})
    run(BENCH, "--stack", STACK, *LOAD, "--out", "b")
    found = measured(run)["measured"]
    assert (found["rate"], found["rows"]) == (None, [])
    assert "image sha256:000000000000, now sha256:" in found["old"][0]
    assert "maxModelLen 8192, now 16384" in found["old"][1]
    code, out, _ = run(plan_main, "--stack", STACK, "--measured")
    assert code == 0
    assert "Stack l4-qat has no measurements for its current image and settings" in out
    assert "With the measured" not in out
    deployed()
    run(BENCH, "--stack", STACK, *LOAD, "--out", "c")
    assert measured(run)["measured"]["rate"] is not None
    assert len(read_measured(STACK).deployments) == 3


def test_nothing_secret_is_kept(deployed, project, run, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", CANARY)
    raw = deployed()
    options = {"extraArgs": [f"--api-key={CANARY}"], "chatTemplate": CANARY, "servedModelName": CANARY, "dtype": CANARY}
    deployed(vllm=raw["vllm"] | options, labels={"owner": CANARY}, project=CANARY)
    run(SMOKE, "--stack", STACK)
    run(BENCH, "--stack", STACK, *LOAD, "--out", "out")
    text = measured_path(STACK).read_text()
    assert '"benchPoint' not in text
    assert '"outputTokPerS"' in text
    assert CANARY not in text
    assert "canary" not in text


def test_settings_that_changed_since_up_leave_figures_without_a_plan_and_smoke_says_so(deployed, project, run):
    path = project / f"Pulumi.{STACK}.yaml"
    path.write_text(path.read_text().replace("maxModelLen: 16384", "maxModelLen: 8192"))
    _, out, _ = run(SMOKE, "--stack", STACK, "--json")
    checks = {check["name"]: check for check in json.loads(out)["checks"]}
    assert "Restore the file or run `pulumi up`" in checks["plan"]["detail"]
    assert read_measured(STACK).deployments[0].planned.burst_tok_per_s is None


def test_what_cannot_be_kept_is_said_and_changes_no_verdict(deployed, project, run):
    path = measured_path(STACK)
    path.parent.mkdir()
    path.write_text('{"schemaVersion": 99, "stack": "l4-qat"}')
    code, _, err = run(BENCH, "--stack", STACK, *LOAD, "--out", "out")
    assert code == 0
    assert "results not recorded" in err
    assert "schemaVersion 99" in err
    assert json.loads(path.read_text())["schemaVersion"] == 99
    code, _, err = run(plan_main, "--stack", STACK, "--measured")
    assert code == 2
    assert "Move it away" in err


def test_results_are_ignored_by_git():
    assert os.system(f"cd {ROOT} && git check-ignore -q results/{STACK}.measured.json") == 0  # noqa: S605 - fixed words


def measures(name, **values):
    """Return a check that has measured these values."""

    async def run(_):
        return Outcome("passed", measured="planted", values=values)

    return Check(name=name, limit_s=lambda _: 60, run=run)


MEASURED = (
    measures("single stream", decode_tok_per_s=500.4, ttft_s=0.012),
    measures("burst", burst_tok_per_s=1_900.0, requests=4),
)
"""A server of 500 tok/s. The figures are planted: a real server is slower where the machine is busy."""


def checked(tok_per_s, **changes):
    """Return the outcome of the plan's check against the server of 500 tok/s."""
    target = SmokeTarget(
        model="timed",
        thresholds=SmokeThresholds(startup_budget_s=5, **changes),
        planned=SmokeFigures(
            decode_tok_per_s=decode_band(tok_per_s, is_tpu=False),
            ttft_s=Band(low=0, typical=0.02, high=2),
            burst_tok_per_s=Band(low=100, typical=1_500, high=4_000),
        ),
    )
    access = ServerAccess(base_url="http://127.0.0.1:9", auth="none")
    report = run_smoke(access, target, lambda _: None, checks=(*MEASURED, PLAN_CHECK))
    return report, {check.name: check.outcome for check in report.checks}


def test_a_server_as_planned_passes_the_plans_check():
    report, checks = checked(480)
    assert checks["plan"].state == "passed", checks["plan"].detail
    assert report.passed


def test_a_server_at_a_third_of_the_planned_rate_fails_with_figures_and_causes():
    report, checks = checked(1_500)
    assert report.exit_code == 1
    assert {check.name for check in report.failed} == {"plan"}
    detail = checks["plan"].detail
    assert detail.startswith("one stream: planned 1,500.0 tok/s (750.0 to 2,142.9), measured 500.4")
    assert "another client" in detail
    assert "accelerator" in detail


def test_a_threshold_of_the_stack_that_is_met_makes_the_finding_a_warning():
    report, checks = checked(1_500, min_decode_tok_per_s=20)
    assert checks["plan"].state == "warned"
    assert report.passed


def test_a_server_that_is_faster_than_planned_is_named():
    _, checks = checked(200)
    assert checks["plan"].state == "warned"
    assert "quantized checkpoint" in checks["plan"].detail


def test_a_missing_measurement_never_passes_silently():
    band = Band(low=1, typical=2, high=3)
    assert [residual(band, value) for value in (0.5, 2, 4, None)] == ["below", "within", "above", "not measured"]
    assert usual_causes("decode_tok_per_s", "not measured")
    assert not usual_causes("decode_tok_per_s", "within")
