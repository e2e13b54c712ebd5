"""`gemma up` with an engine that answers as told: what is said before the question, what after, and each error in one sentence."""

import json
import signal
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from gemma_serving.cloud import zone_answers
from gemma_serving.cloud.caller import USER, GoogleCaller
from gemma_serving.cloud.quotas import instance_quotas
from gemma_serving.cloud.shortage import QuotaRead
from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.contracts.fields import from_json
from gemma_serving.contracts.outputs import StackOutputs
from gemma_serving.contracts.proof import Asker
from gemma_serving.contracts.resource_types import CAPACITY_COMPONENT, CAPACITY_TYPE, SERVICE_TYPE
from gemma_serving.contracts.search_results import Inventory
from gemma_serving.contracts.stack_facts import CloudFacts, ServesNow, StackFacts
from gemma_serving.contracts.three_answers import Absent, Present
from gemma_serving.engine import children, runner
from gemma_serving.engine.backend import memory
from gemma_serving.engine.exported_state import UNKNOWN, deployment_of
from gemma_serving.engine.previewed import previewed
from gemma_serving.engine.state import StackState
from gemma_serving.engine.steps import changes_of
from gemma_serving.scripts.cli.command import run_command
from gemma_serving.scripts.doctor import blocking
from gemma_serving.scripts.doctor.diagnosis import missing, unknown
from gemma_serving.scripts.logs.api import MeasuredStart
from gemma_serving.scripts.preview import upcoming as preview_upcoming
from gemma_serving.scripts.preview.upcoming import upcoming
from gemma_serving.scripts.stack import costs, facts, own_runs, serves, unfinished_teardown
from gemma_serving.scripts.stack.costs import ServerCosts
from gemma_serving.scripts.stack.serves import serves_now
from gemma_serving.scripts.status import collect
from gemma_serving.scripts.up import __main__ as command
from gemma_serving.scripts.up import deploying as up
from gemma_serving.scripts.up import importing, returning, starting
from gemma_serving.stacks.bucket_weights import StagedWeights, Unproved
from tests.cloud.populated import owner
from tests.contracts.test_server_change import machine, service
from tests.engine_package.test_locks import refusal
from tests.scripts import planted_states as planted
from tests.scripts.sample_outputs import sample_outputs

STACK = "tpu-v6e1"
RUN = "l4-qat"
ROOT = Path(__file__).resolve().parents[3]
FACTS = CloudFacts(state="ACTIVE", place="us-east5-a", usd_per_hour=1.35, running_usd_per_hour=1.35)
OUTPUTS = from_json(StackOutputs, sample_outputs())
COST = "Cost: $1.35/h, at most $5.40 for one run of 4 h, and up to $1.03 per month for alerts and metrics."


def step(op, kind, before=None, after=None, *, reasons=("metadata",), forced=()):
    """A step of a preview, as the engine writes it."""
    states = {key: {"type": kind, "inputs": one} for key, one in (("oldState", before), ("newState", after)) if one}
    urn = f"urn:pulumi:s::gemma-serving::{kind}::it"
    return {"op": op, "urn": urn, "diffReasons": list(reasons), "replaceReasons": list(forced), **states}


def preview_of(*steps, said=(), warned=(), same=3):
    messages = [("info", text) for text in said] + [("warning", text) for text in warned]
    return {
        "steps": list(steps),
        "diagnostics": [{"severity": severity, "message": text} for severity, text in messages],
        "changeSummary": {"same": same},
    }


RESTART = step("update", CAPACITY_TYPE, machine("--max-model-len=16384"), machine("--max-model-len=8192"))
SWITCH = step("update", CAPACITY_TYPE, machine(), machine(model="c/d"))
NEW_SECRET = step("update", CAPACITY_TYPE, machine(), {**machine(), "metadata": UNKNOWN})
OTHER_ZONES = {
    **step("update", CAPACITY_TYPE, machine(), machine(), reasons=("metadata", "zones")),
    "detailedDiff": {"metadata.gemma-serving-image-repositories": {"kind": "add", "inputDiff": True}},
}
CREATE = step("create", CAPACITY_TYPE, after=machine(), reasons=())
REPLACE = step("replace", CAPACITY_TYPE, machine(), machine(), forced=("acceleratorType",))
REVISION = step("update", SERVICE_TYPE, service("--a=1"), service("--a=2"), reasons=("template",))
LABELS = step("update", CAPACITY_TYPE, machine(), machine(), reasons=("labels",))


def costs_of(usd, *, is_service=False):
    return ServerCosts(billing="running", is_service=is_service, running=usd, now=usd, most=usd)


class Engine:
    """Stands in for the engine: the preview, the end of an update, and the stacks of the backend."""

    def __init__(self, monkeypatch, tmp_path):
        for module in (up, returning):
            monkeypatch.setattr(module, "connect", lambda _project: None)
        monkeypatch.setattr(importing, "lookup", lambda *_: None)
        monkeypatch.setattr(importing, "read_deployment", lambda stack: deployment_of(stack, {"version": 3}))
        self.preview, self.result, self.updates = preview_of(RESTART), (0, ""), []
        self.limits = defaultdict(str)
        """What is said about the limits, by the age and the project."""
        self.known, self.errors = [STACK], []
        self.blocked, self.state, self.facts, self.removed = [], StackState(stack=STACK, status="read"), FACTS, []
        self.breaks = False
        """Whether an update leaves a state that cannot be read."""
        monkeypatch.setattr(blocking, "live_checks", self._blocking)
        monkeypatch.setattr(starting, "read", self._read)
        monkeypatch.setattr(facts, "connect", lambda _project: None)
        monkeypatch.setattr(facts, "cloud_facts", self._facts)
        monkeypatch.setattr(facts, "search_stacks", lambda _api, _stacks: self.inventory)
        self.inventory = Inventory(asker=Asker(stack="x"), found=(), calls=(), unknown=(), elapsed_s=0)
        monkeypatch.setattr(starting.runner, "run", self._remove)
        monkeypatch.setattr(starting.runner, "query", lambda _words, **_: "[]")
        self.serves = ServesNow(word="deployed")
        """What Google says of the server."""
        self.previews = []
        for module in (up, serves):
            monkeypatch.setattr(module, "serves_now", lambda _facts: self.serves)
        monkeypatch.setattr(up, "previewed", self._preview)
        monkeypatch.setattr(runner, "attended", self._update)
        monkeypatch.setattr(up, "next_lines", lambda *_: ["it serves"])
        monkeypatch.setattr(up, "limits_line", lambda limits, project, _: self.limits[limits.max_age_s, project])
        monkeypatch.setattr(preview_upcoming, "deployed_stack", lambda *_: (None, None))
        monkeypatch.setattr(
            "sys.stdin",
            type("Tty", (), {"isatty": lambda _: True, "fileno": lambda _: -1, "readline": lambda _: self.typed})(),
        )
        monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "my-project")
        self.typed = "yes\n"

    def _read(self, stack):
        is_new, self.known = not self.known, [stack]
        if self.updates and self.breaks:
            return StackState(stack=stack, status="unreadable")
        return StackState(stack=stack, status="missing") if is_new else self.state

    def _preview(self, _stack, *options):
        self.previews.append(options)
        return self.preview

    def _update(self, *words, variables, watch):
        assert words[:4] == ("up", "--yes", "--skip-preview", "--suppress-outputs")
        assert variables
        self.updates.append((words[7], words[8:]))
        said = [("info", "waiting"), *(("error", text) for text in self.errors)]
        events = [{"diagnosticEvent": {"severity": severity, "message": text}} for severity, text in said]
        Path(words[5]).write_text("".join(f"{json.dumps(event)}\n" for event in events))
        watch()
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result

    def _blocking(self, _settings, _state, **_options):
        return self.blocked

    def _facts(self, _api, _found, *, stack, costs):
        assert stack == STACK
        return self.facts

    def _remove(self, *words):
        self.removed.append(words)
        return subprocess.CompletedProcess(words, 0, "", "")


@pytest.fixture
def engine(monkeypatch, tmp_path):
    return Engine(monkeypatch, tmp_path)


def typed(*words):
    return run_command(command.COMMAND, ["--stack", STACK, *words])


@pytest.fixture
def ended(capsys):
    """Run `gemma up` to an exit code, and return what it printed."""

    def run(code, *words):
        assert typed(*words) == code
        return capsys.readouterr()

    return run


def test_it_states_the_effect_the_counts_the_cost_and_limits_without_a_guard_before_it_asks(engine, ended, monkeypatch):
    engine.limits[24 * 3600, "my-project"] = "Limits: no guard is known."
    engine.preview = preview_of(
        RESTART,
        said=[
            "fits\n",
            "Costs $1.35/h (1 v6e chip); $5.40 maximum (one run of 4 h).",
            f"2 published vulnerabilities, 3 notes: `gemma plan {STACK} --explain`",
        ],
        warned=["warning: old \x1b[2J", "warning: FIT07: fp8 buys nothing", "HST02: A disk.\n  - set it"],
    )
    engine.typed = "no\n"
    out, err = ended(ExitCode.REFUSED)
    assert out.splitlines() == [
        "Warning: old \\u001b[2J",
        "Warning: FIT07: fp8 buys nothing",
        "Warning: HST02: A disk.",
        "  - set it",
        "fits",
        f"2 published vulnerabilities, 3 notes: `gemma plan {STACK} --explain`",
        f"{STACK}: restarts the server on its node and keeps the capacity.",
        (
            "Requests fail while the server restarts: about 9 min (planned), because it compiles again. "
            "Queued resource, node and address stay the same."
        ),
        "If the new server does not become ready, the node restores the previous configuration and `up` fails with the reason.",
        "Resources: 1 to update, 3 unchanged.",
        COST,
        "Limits: no guard is known.",
    ]
    assert err.endswith(f"Deploy {STACK}? (yes/no) up: Cancelled. No resource was changed.\n")
    assert engine.updates == []
    engine.state = StackState(stack=STACK, status="read", resources=(CAPACITY_ITEM,))
    monkeypatch.setattr(up, "dropped_settings", lambda _stack: ["Warning: It lacks settings."])
    out = ended(ExitCode.REFUSED).out
    assert out.startswith("Warning: It lacks settings.\n")
    assert "Limits: " not in out, "a deployed stack was told"


@pytest.mark.parametrize("stack", ["l4-qat", STACK])
def test_after_a_new_bucket_for_weights_the_next_command_stages_them(engine, weights, capsys, stack):
    """The bucket of the TPU stack is for compiled programs alone."""
    assert weights is not None
    engine.preview = NEW_BUCKET
    assert run_command(command.COMMAND, ["--stack", stack, "--yes"]) == ExitCode.DONE
    staged = ["The bucket of the weights is new and empty.", f"Next: gemma stage_model {stack}"]
    assert (capsys.readouterr().out.splitlines()[-2:] == staged) is (stack != STACK)


AGAIN = step("replace", CAPACITY_TYPE, machine(), machine(), reasons=("state",), forced=("state",))
ENDED = ServesNow(word="ended", why="Nothing serves since the planned end of the run at 2026-11-26 02:06 UTC.")


def test_a_server_that_ended_comes_back_after_the_question_which_has_the_reason_and_the_price(engine, ended):
    engine.serves, engine.preview = ENDED, preview_of(AGAIN)
    assert ended(ExitCode.DONE).out.splitlines()[:6] == [
        ENDED.why,
        f"{STACK}: requests TPU capacity.",
        "New capacity can take hours or never arrive.",
        "The first start takes 12 min, each later one 8 min (planned).",
        "Resources: 1 to replace, 3 unchanged.",
        COST,
    ]
    assert engine.previews == [("--refresh",)]
    assert engine.updates == [(STACK, ("--refresh",))]


def test_without_googles_answer_every_resource_is_compared_before_nothing_changes(engine, ended):
    engine.serves = ServesNow(word="unknown", why="Cannot check whether the server exists: HTTP 503.")
    engine.preview = preview_of()
    out, err = ended(ExitCode.DONE, "--yes")
    assert engine.previews == [("--refresh",)]
    assert "comparing every resource with Google" in err
    assert out.splitlines() == [engine.serves.why, f"{STACK}: no changes; 3 resources are as Google reports them."]
    assert engine.updates == [(STACK, ("--refresh",))], "state and outputs can differ alone, as after recover"


def test_without_changes_an_update_runs_only_if_it_may_write_what_no_preview_shows(engine, ended, monkeypatch):
    """The same program, a state that only its last run wrote, and outputs that the state has need no update."""
    digest = up.program_digest

    def updates(*words, stored=True, written="2026-07-01T00:00:00.123456789Z"):
        engine.preview, engine.state = {**preview_of(), "isStored": stored}, replace(engine.state, written=written)
        engine.updates.clear()
        end = (
            "as Google reports them."
            if words
            else f"as in the state. To compare each with Google, run `gemma up {STACK} --refresh`."
        )
        assert ended(ExitCode.DONE, *words).out == (f"{STACK}: no changes; 3 resources are {end}\n")
        return len(engine.updates)

    assert [updates(), updates()] == [1, 0]
    assert [updates(stored=False), updates()] == [1, 0]
    assert [updates("--refresh"), updates()] == [1, 0]
    assert [updates(written=""), updates(written="9999-01-01T00:00:00+02:00"), updates()] == [1, 1, 0]
    own_runs.remember_run(STACK, "begun")
    assert [updates(), updates()] == [1, 0], "after an interruption"
    monkeypatch.setattr(up, "program_digest", lambda *given: f"{digest(*given)} another-1.dist-info")
    assert [updates(), updates()] == [1, 0], "after an installation"
    monkeypatch.setenv("PULUMI_BACKEND_URL", "file:///another")
    assert [updates(), updates()] == [1, 0], "with another backend"


def test_a_server_that_failed_is_compared_and_said_and_never_up_to_date(engine, ended):
    failed = {"phase": Present("failed"), "phase_detail": "log\nno image", "stored": "0123", "reported": "0123"}
    engine.preview, engine.facts = preview_of(), CloudFacts(state="ACTIVE", place="us-east5-a", **failed)
    engine.state = StackState(stack=STACK, status="read", resources=(CAPACITY_ITEM,))
    out, err = ended(ExitCode.FAILED, "--yes")
    assert engine.previews == [("--refresh",)]
    assert out.startswith("The server failed: no image.\n")
    assert f"up: The server failed: no image. If its cause is fixed, run `gemma up {STACK}`, which" in err


def test_a_renamed_stack_is_renamed_back_and_never_replaced(engine, ended):
    named = {"type": "gcp:compute/network:Network", "inputs": {"description": owner("before").description}}
    engine.state = StackState(stack=STACK, status="read", resources=(named,))
    assert ended(ExitCode.REFUSED, "--yes").err == (
        f"up: Stack {STACK} was renamed: its resources have the name before. To rename it back, run "
        f"`pulumi stack rename before --stack {STACK}`. `up` would delete them and create others. Nothing was changed.\n"
    )
    assert engine.previews == []


@pytest.mark.parametrize("is_gone", [True, False])
@pytest.mark.parametrize("has_server", [True, False])
def test_a_server_of_this_folder_whose_settings_file_is_gone_is_named_before_the_question(
    engine, ended, monkeypatch, has_server, is_gone
):
    engine.known, engine.preview = [], preview_of(CREATE)
    other = "before" if is_gone else "l4-qat"
    own_runs.remember_run(other, "done")
    found = StackState(stack=other, status="read", resources=(CAPACITY_ITEM,) if has_server else ())
    monkeypatch.setattr(costs, "read", lambda stack: replace(found, stack=stack))
    monkeypatch.setattr(starting, "create_state", lambda *_: None)
    engine.typed = "no\n"
    said = (
        f"Stack before was deployed from this folder, and Pulumi.before.yaml is gone. Costs an unknown price, if Google bills it. "
        f"If its file is now Pulumi.{STACK}.yaml, name it Pulumi.before.yaml again: another name is another server."
    )
    assert (f"up: {said}\n" in ended(ExitCode.REFUSED).err) == (has_server and is_gone)
    monkeypatch.setattr(
        collect, "read_facts", lambda *_, **__: StackFacts(stack=STACK, state=Absent(), outputs=Absent())
    )
    status = collect._without_state(StackState(stack=STACK, status="missing", detail="It is missing."), 1.0)
    assert status == f"It is missing.{f' {said}' if has_server and is_gone else ''}"


def test_a_change_that_needs_another_tpu_vm_is_refused_with_the_settings_key(engine, monkeypatch, ended):
    refusal = (
        "`maxRunDurationS` changes from 4h to 8h, which replaces projects/p/q while it is ACTIVE. Its capacity will be deleted, and new capacity "
        "may take hours. Revert the change until this capacity has ended, or set `allowReplaceActive` to true."
    )
    failed = {
        "diagnostics": [{"severity": "error", "message": refusal}, {"severity": "error", "message": "preview failed"}]
    }
    monkeypatch.setattr(up, "previewed", previewed)
    monkeypatch.setattr(
        runner, "run", lambda *words, **_: subprocess.CompletedProcess(words, 255, json.dumps(failed), "")
    )
    said = ended(ExitCode.REFUSED, "--yes").err.splitlines()[-1]
    assert said.startswith("up: `tpu.maxRunDuration` changes from 4h to 8h, which replaces ")
    assert said.endswith("or set `tpu.allowReplaceActive` to true. Nothing was changed.")


def test_without_a_terminal_only_yes_deploys(engine, monkeypatch, ended):
    monkeypatch.setattr("sys.stdin", type("Pipe", (), {"isatty": lambda _: False})())
    assert "Pass --yes to confirm." in ended(ExitCode.REFUSED).err
    assert typed("--yes") == ExitCode.DONE
    assert len(engine.updates) == 1


CREATED = preview_of(
    step("create", SERVICE_TYPE, after=service(), reasons=()), warned=["warning: No weights are staged"]
)
NEW_BUCKET = preview_of(step("create", "gcp:storage/bucket:Bucket", after={"name": "b"}, reasons=()))
NOT_STAGED = Unproved(text="No weights are staged in gs://b", command="gemma stage_model l4-qat", remedy="Stage them.")


@pytest.fixture
def weights(engine, monkeypatch):
    """Give the service a state, and answer the check of each folder of its weights; None: they are complete."""
    answer, asked = [None], []

    async def found(check):
        asked.append(check.folder)
        return answer[0]

    monkeypatch.setattr(StagedWeights, "found", found)
    monkeypatch.setattr(starting, "read", lambda stack: replace(planted.state(planted.service()), stack=stack))
    monkeypatch.setattr(up, "dropped_settings", lambda _stack: ())
    engine.preview = CREATED
    return answer, asked


def test_weights_that_are_not_staged_are_refused_before_the_question(engine, weights, capsys):
    weights[0][0] = NOT_STAGED
    assert run_command(command.COMMAND, ["--stack", RUN]) == ExitCode.REFUSED
    out, err = capsys.readouterr()
    assert (engine.updates, out) == ([], "")
    assert "missing  weights: No weights are staged in gs://b\n" in err
    assert "\n  gemma stage_model l4-qat\n" in err


@pytest.mark.parametrize(
    ("stack", "preview"), [(RUN, CREATED), (RUN, NEW_BUCKET), (STACK, preview_of(CREATE)), (RUN, preview_of())]
)
def test_staged_weights_those_of_the_hub_and_an_unchanged_server_are_no_reason(engine, weights, stack, preview):
    if preview is not CREATED:
        weights[0][0] = NOT_STAGED
    engine.preview = preview
    assert run_command(command.COMMAND, ["--stack", stack, "--yes"]) == ExitCode.DONE
    assert bool(weights[1]) == (preview is CREATED)


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """The settings in a folder of their own, into which a new state writes its salt."""
    monkeypatch.setattr(runner, "project_folder", lambda: tmp_path)
    path = tmp_path / f"Pulumi.{STACK}.yaml"
    for name in (path.name, "Pulumi.yaml"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    return path


def test_a_stack_that_was_deployed_under_this_projects_name_is_not_created_again_in_a_fork(
    engine, copied, monkeypatch, ended
):
    (copied.parent / "Pulumi.yaml").write_text("name: fork\nruntime: python\n")
    engine.known = []
    monkeypatch.setattr(
        runner, "listed_stacks", lambda *of: frozenset([STACK] if of == ("--project", "gemma-serving") else [])
    )
    assert "Set `name: gemma-serving` in Pulumi.yaml. Nothing was changed." in ended(ExitCode.REFUSED, "--yes").err


CAPACITY_DECLARED = {"urn": f"urn:pulumi:s::gemma-serving::{CAPACITY_COMPONENT}::capacity", "type": CAPACITY_COMPONENT}
RESOURCE = {"urn": "urn:pulumi:s::gemma-serving::pulumi:pulumi:Stack::s", "type": "pulumi:pulumi:Stack"}


@pytest.mark.parametrize("end", ["declined", "preview", *children.ENDING])
def test_a_new_state_that_is_not_used_is_removed_with_its_salt(engine, copied, monkeypatch, end):
    text, engine.known = copied.read_text(), []
    salted = text.replace("{ ", "{").replace(" }", "}") + "encryptionsalt: v1:x\n"
    monkeypatch.setattr(runner, "query", lambda _words, **_: copied.write_text(salted))

    def removed(*words):
        with children.started(["sleep", "0.1"]) as process:  # gets an earlier signal
            assert process.wait() == 0
        return engine._remove(*words)

    monkeypatch.setattr(starting.runner, "run", removed)
    if end == "preview":
        monkeypatch.setattr(up, "previewed", raising(ScriptError("the plan stops it")))
    elif end in children.ENDING:
        monkeypatch.setattr(up, "confirm", lambda *_, **__: signal.raise_signal(end))
    engine.typed = "no\n"
    assert typed() != ExitCode.DONE
    assert engine.removed == [("stack", "rm", STACK, "--yes", "--preserve-config")]
    assert copied.read_text() == text


def raising(error):
    def refuse(*_words, **_options):
        raise error

    return refuse


@pytest.mark.parametrize("kept", ["resources", "unreadable", "edited", "known"])
def test_a_state_with_resources_or_of_others_and_an_edit_meanwhile_stay(engine, copied, monkeypatch, kept):
    engine.known = [STACK] if kept == "known" else []
    text = copied.read_text()
    written = text + "encryptionsalt: v1:x\n"
    if kept == "edited":
        written = written.replace("8192", "4096")
    monkeypatch.setattr(runner, "query", lambda _words, **_: copied.write_text(written))
    if kept == "resources":
        engine.state = StackState(stack=STACK, status="read", resources=(RESOURCE,))
    if kept == "unreadable":
        engine.state = StackState(stack=STACK, status="unreadable")
    engine.typed = "no\n"
    assert typed() == ExitCode.REFUSED
    assert bool(engine.removed) == (kept == "edited")
    assert copied.read_text() == (text if kept == "known" else written)


def test_what_blocks_is_one_list_with_its_commands_before_anything_is_made(engine, monkeypatch, ended):
    engine.known, made = [], []
    monkeypatch.setattr(runner, "query", made.append)
    monkeypatch.setattr(up, "previewed", raising(AssertionError("previewed")))
    engine.blocked = [
        missing("not enabled", "gcloud services enable run.googleapis.com --project=my-project", check="API run"),
        missing("No weights are staged.", f"gemma stage_model {STACK}", check="weights"),
        unknown("no response within 8 s", check="quota and zones"),
    ]
    out, err = ended(ExitCode.REFUSED)
    assert err.splitlines() == [
        (
            f"up: Project my-project is not ready for stack {STACK}. Nothing was changed. Run the commands below, then "
            f"`gemma up {STACK}`."
        ),
        "missing  API run: not enabled",
        "missing  weights: No weights are staged.",
        "",
        "unknown  quota and zones: no response within 8 s",
        "",
        "Fix, in this order:",
        "  gcloud services enable run.googleapis.com --project=my-project",
        f"  gemma stage_model {STACK}",
    ]
    assert (out, made, engine.updates, engine.removed) == ("", [], [], [])


def test_a_login_that_google_rejects_is_one_sentence(engine, ended):
    engine.known = []
    engine.blocked = [missing("Google rejected your login (expired)", "gcloud auth login", check="credentials")]
    out, err = ended(ExitCode.REFUSED)
    assert err == (
        "up: Google rejected your login (expired). Nothing was changed. Run `gcloud auth login`, then `gemma up tpu-v6e1`.\n"
    )
    assert (out, engine.updates) == ("", [])


def test_an_unfinished_teardown_is_said_with_the_command_that_continues_it(engine, ended):
    engine.state = StackState(stack=STACK, status="read", resources=(RESOURCE,))
    unfinished_teardown.remember(engine.state)
    engine.typed = "no\n"
    said = ended(ExitCode.REFUSED).out.splitlines()[0]
    assert engine.previews == [("--refresh",)], "the state may have what the teardown deleted"
    assert said == (
        f"Warning: A teardown did not finish: the state still has 1 resource. `gemma teardown {STACK}` continues it; `up` creates again what it deleted."
    )


def test_an_unknown_answer_is_said_and_does_not_block(engine, ended):
    engine.blocked = [unknown("no response within 8 s", check="APIs")]
    assert "up: could not check APIs: no response within 8 s\n" in ended(ExitCode.DONE).err
    assert len(engine.updates) == 1


def test_a_quota_that_is_too_low_for_a_request_is_said_before_the_question(engine, ended):
    short = missing("0 chips, 1 needed, but us-east5-b has enough", check="quota of chips in us-east5-a", blocks=False)
    engine.blocked = [replace(short, is_short=True)]
    assert (
        "up: quota of chips in us-east5-a: 0 chips, 1 needed, but us-east5-b has enough. A request there can only wait or fail.\n"
        in ended(ExitCode.DONE).err
    )


CAPACITY_ITEM = {
    "urn": f"urn:pulumi:s::gemma-serving::{CAPACITY_TYPE}::capacity",
    "type": CAPACITY_TYPE,
    "inputs": {"project": "my-project", "zones": ["us-east5-a"], "nodeId": "n"},
}
NO_SERVER = "nothing in Google Cloud: every list was read."


def test_a_server_that_failed_is_said_with_the_setting_to_change_instead_of_its_log(engine, ended):
    end = "The previous configuration is serving: document a, not b. Fix or revert the change, then run `pulumi up`."
    engine.errors = [f"The server failed: Invalid rev id: abc (exit code 1)\nLast lines before it:\nINFO one\n{end}"]
    engine.result = (255, "error: 1 error occurred:\n\t* The server failed: Invalid rev id: abc (exit code 1)\n")
    _, _, cause, line, last, _, error = ended(ExitCode.FAILED, "--yes").err.splitlines()
    assert cause.startswith("up: The server failed. The Hugging Face hub has no commit")
    assert cause.endswith(
        f"modelRevision to a commit of google/gemma-4-E2B-it (`gemma doctor {STACK}` prints the newest)."
    )
    assert (line, last) == ("  Invalid rev id: abc (exit code 1)", end.replace("pulumi up", f"gemma up {STACK}"))
    assert "completely: see the error above. " in error


def test_after_a_failure_an_unreadable_state_is_unknown_and_never_nothing(engine, ended, capsys):
    engine.result, engine.breaks = (255, "error: no capacity.\n"), True
    assert f"up: Exists now: {NO_SERVER} " in ended(ExitCode.FAILED, "--yes").err
    engine.inventory = replace(engine.inventory, unknown=("Could not list the zones: HTTP 503.",))
    engine.updates.clear()
    assert typed("--yes") == ExitCode.FAILED
    assert (
        "Exists now: unknown, because a check failed (Could not list the zones: HTTP 503). " in capsys.readouterr().err
    )


def test_a_failed_update_is_one_sentence_with_the_next_step(engine, ended):
    engine.result = (255, "error: no capacity.\n")
    assert ended(ExitCode.FAILED, "--yes").err.splitlines()[-1] == (
        f"up: Stack {STACK} was not deployed completely: no capacity. Fix the cause and run `gemma up {STACK}` again: it continues with what "
        "exists."
    )


NOT_GRANTED = [
    "No zone granted v6e-1 (flex-start). All capacity requests were deleted.",
    f"  us-east5-a  quota: {'Google says why in a long sentence. ' * 12}",
    "  us-east5-b  stock: FAILED: there is no more capacity.",
    "quota: request an increase of the quota above: https://console.cloud.google.com/iam-admin/quotas?project=my-project.",
    "Zones not tried: europe-west4-a. `gemma capacity tpu-v6e1` shows each.",
]


class TestAnErrorWithLines:
    @pytest.fixture(autouse=True)
    def refused(self, engine, monkeypatch):
        engine.errors = ["<{%fg 1%}>" + "\n".join(NOT_GRANTED) + "<{%reset%}>\n"] * 2 + ["update failed"]
        engine.result = (255, "Diagnostics:\n error: x\nerror: " + "\n".join(NOT_GRANTED) + "\nerror: update failed\n")
        monkeypatch.setenv("COLUMNS", "80")

    def test_of_capacity_is_what_status_says_until_the_next_up(self, engine):
        typed("--yes")
        found = serves_now(
            facts.facts_of(StackState(stack=STACK, status="read", resources=(RESOURCE, CAPACITY_DECLARED)))
        )
        assert found.word == "no server"
        when, _, rest = found.why.partition(" UTC: ")
        assert when.startswith("Nothing serves. `gemma up` of 2")
        assert rest == (
            "No zone granted v6e-1 (flex-start). All capacity requests were deleted. "
            f"`gemma capacity {STACK}` shows each zone's capacity. Fix the cause, then run `gemma up {STACK}`."
        )
        assert found.cause.startswith("us-east5-a quota: Google says why")
        assert " us-east5-b stock: FAILED: there is no more capacity. Zones not tried: europe-west4-a." in found.cause
        assert "request an increase" not in found.cause
        engine.result = (0, "")
        typed("--yes")
        assert own_runs.remembered_refusal(STACK) == ()

    @pytest.mark.parametrize("is_terminal", [True, False])
    def test_is_printed_whole_and_once(self, engine, monkeypatch, ended, is_terminal):
        monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
        err = ended(ExitCode.FAILED, "--yes").err
        said = " ".join(err.split())
        for line in NOT_GRANTED:
            assert said.count(" ".join(line.split())) == 1, line
        assert "completely: see the error above. Fix the cause" in said
        assert "update failed" not in said
        if is_terminal:
            assert "\n  us-east5-b  stock: FAILED" in err
        else:
            assert "up: " + "\n".join(NOT_GRANTED) + "\n" in err

    @pytest.mark.parametrize("login", ["valid", "ended"])
    def test_has_the_cause_of_a_wait_if_the_quota_can_be_read(self, engine, monkeypatch, ended, login):
        waited = "WAITING_FOR_RESOURCES for 30m: the wait for this zone timed out."
        engine.errors = [f"{NOT_GRANTED[0]}\n  us-east5-a  unknown: {waited}\nunknown: compare."]
        (quota,) = instance_quotas("v6e-1", "standard")
        read = QuotaRead(quota=quota, place="us-east5-a", limit=Present(0), used=Present(0), needed=1)

        def connect(project):
            if login == "ended":
                raise CommandRefusedError("Run `gcloud auth application-default login`.")
            return GoogleCaller(project=project, google=None, member=USER)

        monkeypatch.setattr(up, "caller_of", connect)
        monkeypatch.setattr(zone_answers, "read_quotas", lambda *_, **__: [[read]])
        err = ended(ExitCode.FAILED, "--yes").err
        cause = "quota" if login == "valid" else "unknown"
        assert f"  us-east5-a  {cause}: {waited}" in err
        assert f"\n{cause}: {'request an increase' if login == 'valid' else 'compare.'}" in err
        _, zone = own_runs.remembered_refusal(STACK)
        assert zone.startswith(f"us-east5-a {cause}: {waited}")

    def test_of_several_resources_has_each(self, engine, ended):
        engine.errors = ["One did not start:\n  one", "Two did not start.", "update failed"]
        err = ended(ExitCode.FAILED, "--yes").err
        assert "up: One did not start:\n  one\nTwo did not start.\n" in err
        assert "completely: see the errors above. " in err

    def test_of_a_revision_replaces_cloud_runs_own(self, engine, ended):
        explained = "Revision gemma-x-00002-abc did not start. The cause.\n  its line"
        link = "The container failed.\n\nLogs URL: https://console?revision_name%3D%22gemma-x-00002-abc%22"
        engine.errors = [explained, f"{link} \nFor more troubleshooting guidance, see https://guide", "update failed"]
        err = ended(ExitCode.FAILED, "--yes").err
        assert f"up: {explained}\nup: Exists now" in err
        assert "completely: see the error above. " in err


def test_a_reason_without_a_known_cause_keeps_its_log(engine, ended):
    generic = "RuntimeError: Engine core initialization failed. See root cause above."
    engine.errors = [
        f"The server failed: The disk of the TPU VM is broken.\nLast lines before it:\n{generic}\nThe end."
    ]
    engine.result = (255, "error: The server failed.\n")
    assert f"up: {engine.errors[0]}\nup: Exists now" in ended(ExitCode.FAILED, "--yes").err


def test_a_live_lock_is_refused(engine):
    engine.result = (255, refusal(1, "elsewhere"))
    assert typed("--yes") == ExitCode.REFUSED


def test_an_interrupt_while_it_deploys_says_what_google_bills_and_how_to_go_on(engine, ended):
    engine.result = KeyboardInterrupt()
    engine.state = StackState(stack=STACK, status="read", pending=(CAPACITY_ITEM,))
    assert ended(ExitCode.INTERRUPTED, "--yes").err.endswith(
        f"up: interrupted. Run `gemma up {STACK}` again to continue. Exists now: capacity in us-east5-a, ACTIVE. "
        f"Costs $1.35/h until you delete it. `gemma status {STACK}` shows it, `gemma teardown {STACK}` deletes it.\n"
    )


def test_a_second_interrupt_leaves_the_cost_unknown_and_never_says_that_nothing_changed(engine, monkeypatch, ended):
    engine.result = KeyboardInterrupt()
    monkeypatch.setattr(up, "exists_now", raising(KeyboardInterrupt()))
    said = ended(ExitCode.INTERRUPTED, "--yes").err
    assert said.endswith(f"What exists and what it costs is unknown: `gemma status {STACK}` shows it.\n")
    assert "No resource was changed" not in said


def test_an_interrupt_at_the_question_says_that_nothing_was_made(engine, monkeypatch, ended):
    def interrupted(_self):
        raise KeyboardInterrupt

    monkeypatch.setattr(type(sys.stdin), "readline", interrupted)
    assert ended(ExitCode.INTERRUPTED).err.endswith("up: interrupted. No resource was changed.\n")
    assert engine.updates == []


START = MeasuredStart(
    planned_s=940.4,
    planned_phases_s={"image": 273, "weights": 271, "compile": 396},
    measured_s=911.6,
    phases_s={"image": 250.2, "weights": 240.4, "compile": 421},
)


def following(monkeypatch, before=None, **outputs):
    """Return what `up` prints after a deployment with these outputs; `before` served before it."""
    resources = [planted.stack_resource(**{"target": "tpu", "state": "ACTIVE", **outputs}), planted.queued()]
    found = deployment_of(STACK, {"version": 3, "deployment": {"resources": resources}})
    monkeypatch.setattr(up, "read_deployment", lambda _stack: found)
    monkeypatch.setattr(up, "first_start", lambda _facts: Present(START))
    return up.next_lines(STACK, before)


def test_a_request_without_capacity_names_status_and_no_chat(monkeypatch):
    lines = "\n".join(following(monkeypatch, state="WAITING_FOR_RESOURCES"))
    assert f"gemma status {STACK} --watch" in lines
    assert "chat" not in lines


def test_the_next_lines_have_the_price_the_local_end_of_the_run_and_teardown(monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        lines = following(monkeypatch, deadline="2026-11-22T20:45:10.939262Z")
    finally:
        monkeypatch.undo()
        time.tzset()
    usd = OUTPUTS.plan.cost.usd_per_hour
    assert lines[1] == "Start: 912 s, planned 940: image 250 (273), weights 240 (271), compile 421 (396)"
    assert lines[2] == f"Costs ${usd:.2f}/h until 2026-11-23 05:45 JST, when Google deletes the VM."
    assert any(line.startswith(f"  gemma teardown {STACK} ") for line in lines)
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("before", "running", "starts"), [("a1", "a1", 0), ("a1", "b2", 1), (None, "a1", 1), ("a1", None, 1)]
)
def test_a_start_is_only_of_what_has_begun_to_serve(monkeypatch, before, running, starts):
    cloud = replace(FACTS, running=running)
    monkeypatch.setattr(up, "read_facts", lambda *_, **__: SimpleNamespace(cloud=cloud))
    assert sum(line.startswith("Start: ") for line in following(monkeypatch, before)) == starts


def test_what_served_before_a_deployment_is_known_after_it(engine, ended, monkeypatch):
    engine.state = StackState(stack=STACK, status="read", resources=(CAPACITY_ITEM,))
    engine.facts = replace(FACTS, running="a1")
    monkeypatch.setattr(up, "dropped_settings", lambda _stack: [])
    monkeypatch.setattr(up, "next_lines", lambda stack, before: [f"{stack} served {before}"])
    assert f"{STACK} served a1" in ended(ExitCode.DONE, "--yes").out


def test_messages_of_the_preview_are_not_repeated_while_it_deploys(engine, ended):
    engine.preview = preview_of(RESTART, said=["waiting", "fits\n"])
    out, err = ended(ExitCode.DONE, "--yes")
    assert (out.count("waiting"), err.count("waiting")) == (1, 0)


EFFECTS = [
    (STACK, CREATE, "requests TPU capacity", ["New capacity can take hours or never arrive.", "The first start takes 12 min, each later one 8 min (planned)."]),
    (STACK, SWITCH, "restarts the server", ["about 9 min (planned), because it compiles again"]),
    (STACK, NEW_SECRET, "restarts the server", ["about 5 min (planned), or 9 min if it compiles again"]),
    (STACK, OTHER_ZONES, "updates other resources; the server keeps running", ["No requests are lost."]),
    (STACK, step("update", CAPACITY_TYPE, machine(), machine(), reasons=("phase",)), "waits until its server is ready", []),
    (STACK, REPLACE, "releases its TPU capacity, forced by acceleratorType", ["`up` rejects this while", "Google does not hold your place", "The first start"]),
    (STACK, step("update", CAPACITY_TYPE, machine(), machine(), reasons=("state",)), "nothing serves until its capacity is ACTIVE", []),
    (RUN, REVISION, "creates a new revision", ["The old revision serves until the new one is ready, after about 4 min (planned)."]),
]  # fmt: skip


@pytest.mark.parametrize(("stack", "change", "words", "parts"), EFFECTS)
def test_each_effect_has_the_words_of_the_comment(monkeypatch, stack, change, words, parts):
    monkeypatch.setattr(preview_upcoming, "deployed_stack", lambda *_: (None, None))
    sentences = upcoming(stack, preview_of(change), changes_of(preview_of(change))[0]).sentences
    assert sentences[0].startswith(f"{stack}: {words}")
    text = "\n".join(sentences)
    assert [part for part in parts if part not in text] == []
    assert parts or "No requests are lost." not in text


STARTS = ["tpu-v6e1: changes a stack that serves nothing. A start takes "]
KEEPS = ["the server keeps running", "No requests are lost."]
SERVES_NOTHING = [
    (LABELS, CloudFacts(state="ACTIVE", running="0123"), KEEPS),
    (LABELS, CloudFacts(state="ACTIVE", phase=Present("failed"), running="0123"), KEEPS),
    (LABELS, CloudFacts(state="ACTIVE", phase=Present("booting")), KEEPS),
    (LABELS, CloudFacts(state="ACTIVE", unknown=("No answer.",)), KEEPS),
    (LABELS, CloudFacts(state="ACTIVE", phase=Present("failed")), STARTS),
    (RESTART, CloudFacts(state="ACTIVE", phase=Present("failed")), STARTS),
    (REVISION, CloudFacts(state="FAILED"), STARTS),
    (REVISION, CloudFacts(state="FAILED", running="gemma-x-00001-abc"), ["The old revision serves until the new one is ready"]),
]  # fmt: skip


@pytest.mark.parametrize(("change", "cloud", "parts"), SERVES_NOTHING)
def test_a_server_that_was_never_ready_does_not_keep_running(engine, capsys, change, cloud, parts):
    engine.preview, engine.facts = preview_of(change), replace(cloud, place="us-east5-a")
    engine.state = StackState(stack=STACK, status="read", resources=(CAPACITY_ITEM,))
    typed("--yes")
    out = capsys.readouterr().out
    assert [part for part in parts if part not in out] == []
    promises = ("keeps running", "No requests are lost.", "The old revision serves", "restores the previous")
    assert not cloud.serves_nothing or not any(promise in out for promise in promises)


@pytest.mark.parametrize(
    ("stack", "change", "costs", "text"),
    [
        (STACK, RESTART, costs_of(1.35), "$1.35/h, as now, "),
        (STACK, RESTART, costs_of(None), "$1.35/h, at most"),
        (STACK, REPLACE, costs_of(5.4), "$5.40/h now; then $1.35/h, "),
        (RUN, REVISION, costs_of(1.2049, is_service=True), "$1.20/h now; then $0.00/h while idle, up to $1.20/h, "),
    ],
)
def test_the_cost_is_compared_with_the_rate_now_of_the_deployed_stack(monkeypatch, stack, change, costs, text):
    monkeypatch.setattr(preview_upcoming, "deployed_stack", lambda *_: (OUTPUTS, costs))
    assert upcoming(stack, preview_of(change), changes_of(preview_of(change))[0]).cost.startswith(text)


@pytest.fixture
def of_an_order(monkeypatch):
    """Give the stack an order of forms in two zones."""
    shipped = preview_upcoming.stack_settings

    def changed(stack, **options):
        settings = shipped(stack, **options)
        tpu = replace(
            settings.tpu, provisioning=("flex-start", "spot:5m", "standard"), zones=("us-east5-a", "us-east5-b")
        )
        return replace(settings, tpu=tpu)

    monkeypatch.setattr(preview_upcoming, "stack_settings", changed)
    monkeypatch.setattr(starting, "stack_settings", changed)


def test_an_order_of_forms_is_priced_line_by_line_before_the_question(engine, of_an_order, monkeypatch, ended):
    ends = {}
    monkeypatch.setattr(up, "limits_line", lambda _limits, _project, endless: ends.setdefault("line", str(endless)))
    engine.preview, engine.typed = preview_of(CREATE), "no\n"
    out = ended(ExitCode.REFUSED).out.splitlines()
    at = next(index for index, line in enumerate(out) if line.startswith("Cost: "))
    assert out[at].startswith("Cost: up to $2.70/h, at most $1,971.00 for a month of standard,")
    assert out[at + 1 : at + 4] == [
        "  flex-start: $1.35/h, ends after 4 h",
        "  spot after 60 min without flex-start: $1.40/h, runs until Google reclaims it or you delete it",
        "  standard after 65 min without flex-start and spot: $2.70/h, runs until you delete it",
    ]
    assert ends == {"line": "('spot', 'standard')"}
    engine.preview = preview_of(LABELS)
    assert "without flex-start" not in ended(ExitCode.REFUSED).out


def test_a_wait_that_continues_has_the_order_too(engine, of_an_order, ended):
    engine.preview, engine.typed = (
        preview_of(step("update", CAPACITY_TYPE, machine(), machine(), reasons=("state",))),
        "no\n",
    )
    assert "spot after 60 min without flex-start" in ended(ExitCode.REFUSED).out


def test_capacity_in_an_order_that_stays_costs_what_it_costs_now(of_an_order, monkeypatch):
    ends = {None: ("spot",), "2026-11-26T20:00:00Z": ()}
    for deadline, endless in ends.items():
        deployed = replace(OUTPUTS, provisioning="spot", deadline=deadline), costs_of(1.40)
        monkeypatch.setattr(preview_upcoming, "deployed_stack", lambda *_, found=deployed: found)
        coming = upcoming(STACK, preview_of(LABELS), changes_of(preview_of(LABELS))[0])
        assert coming.cost.startswith("$1.40/h, as now, ")
        assert coming.endless_forms == endless


def test_a_state_that_cannot_be_read_stops_up_and_names_the_command(engine, capsys):
    engine.state = StackState(stack=STACK, status="unreadable", detail=f"It is truncated. Run `gemma recover {STACK}`.")
    assert (typed("--yes"), engine.previews) == (ExitCode.FAILED, [])
    assert capsys.readouterr().err == f"up: It is truncated. Run `gemma recover {STACK}`.\n"


# Plans.


@pytest.fixture
def project(monkeypatch, tmp_path):
    """A project of its own, with the settings file of the stack."""
    folder = tmp_path / "project"
    folder.mkdir()
    for name in ("Pulumi.yaml", f"Pulumi.{STACK}.yaml", "__main__.py"):
        (folder / name).write_text((ROOT / name).read_text())
    monkeypatch.chdir(folder)
    return folder


def planned(ended, *words):
    return json.loads(ended(ExitCode.DONE, "--dry-run", "--json", *words).out)


def test_a_plan_has_each_change_and_both_prices_and_runs_as_an_update_with_its_id(engine, ended, project):
    shown = planned(ended)
    assert shown["headline"] == f"{STACK}: restarts the server on its node and keeps the capacity"
    assert COST in shown["sentences"]
    assert (shown["usd_per_hour"], shown["usd_per_hour_now"], shown["is_disruptive"]) == (1.35, 0, False)
    assert [(one["op"], one["type"]) for one in shown["changes"]] == [("update", CAPACITY_TYPE)]
    assert [set(one) for one in shown["steps"]] == [{"op", "type", "name", "digest"}]
    assert engine.updates == []
    out, err = ended(ExitCode.DONE, "--yes", "--json", "--plan", shown["plan"])
    done = json.loads(out)
    assert (done["plan"], done["sentences"][-1]) == (shown["plan"], "it serves")
    assert COST in err
    assert engine.updates == [(STACK, ("--message", shown["plan"]))]
    assert own_runs.is_own(STACK, has_server=True), "the record is the project's, not of the copy"


@pytest.mark.parametrize("changed", ["steps", "settings", "program"])
def test_a_plan_is_refused_once_anything_differs(engine, ended, project, changed):
    plan = planned(ended)["plan"]
    if changed == "steps":
        engine.preview = preview_of(SWITCH)
    else:
        path = project / ("__main__.py" if changed == "program" else f"Pulumi.{STACK}.yaml")
        path.write_text(f"{path.read_text()}# another\n")
    assert f"{plan} is stale: " in ended(ExitCode.REFUSED, "--yes", "--plan", plan).err
    assert engine.updates == []


def test_the_engine_runs_in_the_copy_that_was_compared(engine, ended, project, monkeypatch):
    """What is edited in the project meanwhile is then not deployed, and what the engine writes reaches the project."""
    inner, folders, path = engine._update, [], project / f"Pulumi.{STACK}.yaml"

    def update(*words, **options):
        folders.append(Path.cwd())
        (Path.cwd() / path.name).write_text(f"{(Path.cwd() / path.name).read_text()}encryptionsalt: v1:a=\n")
        return inner(*words, **options)

    monkeypatch.setattr(runner, "attended", update)
    plan = planned(ended)["plan"]
    text = path.read_text()
    err = ended(ExitCode.DONE, "--yes", "--plan", plan).err
    (folder,) = folders
    assert folder not in {project, ROOT}
    assert not folder.exists()
    assert path.read_text() == f"{text}encryptionsalt: v1:a=\n"
    assert "The engine added encryptionsalt" in err


def test_a_setting_is_written_when_it_is_deployed_and_belongs_to_the_plan(engine, ended, project):
    path, setting = project / f"Pulumi.{STACK}.yaml", "vllm.maxNumSeqs=8"
    text = path.read_text()
    plan = planned(ended, "--set", setting)["plan"]
    assert (path.read_text(), planned(ended)["plan"] == plan) == (text, False)
    assert "is stale" in ended(ExitCode.REFUSED, "--yes", "--plan", plan).err
    assert path.read_text() == text
    ended(ExitCode.DONE, "--yes", "--plan", plan, "--set", setting)
    assert "maxNumSeqs: 8" in path.read_text()
    assert "--restart changes no resource and no setting" in ended(ExitCode.REFUSED, "--restart", "--set", setting).err


def test_a_deployment_names_the_old_limit_of_an_assistant_once(engine, ended, project):
    for stack in (STACK, "other"):
        memory().write(f"limit-{stack}.json", "{}")
    ended(ExitCode.DONE, "--dry-run")
    said = f"stack {STACK} with a limit in hours, which nothing enforces any more. To delete the stack, run `gemma teardown {STACK}`."
    assert said in ended(ExitCode.DONE, "--yes").err
    assert "limit in hours" not in ended(ExitCode.DONE, "--yes").err
    assert memory().stacks("limit-") == ["other"]
