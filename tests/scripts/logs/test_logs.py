"""`scripts.logs`: the lines of both targets, from the local cloud's HTTP server."""

import json
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from gemma_serving.cloud.google_api import connect
from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.contracts.machine_log import machine_log_name
from gemma_serving.contracts.masking import LineMask, masked
from gemma_serving.contracts.resource_types import CAPACITY_COMPONENT
from gemma_serving.contracts.stack_facts import CloudFacts
from gemma_serving.engine.state import StackState
from gemma_serving.scripts.cli.command import run_command
from gemma_serving.scripts.logs import __main__ as command
from gemma_serving.scripts.logs.place import ServerLog, server_log
from gemma_serving.scripts.logs.reading import failed_service_cause, follow, newest_lines
from localcloud.tests.google_bodies import google_request
from localcloud.world.scenario import Logging, OperationDurations, Scenario
from tests.cloud.populated import PROJECT, open_world
from tests.scripts.planted_states import queued, resource, stack_resource, state

CANARY = "hf_canaryCanaryCANARY0123456789"
RUN = ServerLog(stack="l4-qat", project=PROJECT, target="cloud-run", location="us-east4")
TPU = ServerLog(stack="tpu-v6e4", project=PROJECT, target="tpu", location="")


def since():
    """Return the time of an hour ago: when the test runs, not when its module is read."""
    return datetime.now(UTC) - timedelta(hours=1)


ENGINE_FAILED = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
NO_WEIGHTS = "OSError: Invalid repository ID or local directory specified: '/mnt/models/m'"


@pytest.fixture
def world():
    with open_world(Scenario(operations=OperationDurations(instant=True), logging=Logging(lag_s=0))) as opened:
        yield opened


def write(world, log, *texts, source="stdout", minutes=10, **fields):
    """Write lines as the agent of a machine or Cloud Run does, each a millisecond after the other."""
    begun = datetime.now(UTC) - timedelta(minutes=minutes)
    entries = [
        {
            "textPayload": text,
            "timestamp": (begun + timedelta(milliseconds=number)).isoformat().replace("+00:00", "Z"),
            "insertId": f"{minutes}-{number}",
            **({"labels": {"source": source}} if log.target == "tpu" else {}),
        }
        for number, text in enumerate(texts)
    ]
    body = {**(of_machine(log) if log.target == "tpu" else of_service(log, source)), "entries": entries, **fields}
    google_request("POST", "logging/v2/entries:write", body)
    world.call("POST", "logging", "v2/entries:write", body)


def of_machine(log):
    labels = {
        "project_id": PROJECT,
        "location": "us-east5-a",
        "namespace": f"gemma-{log.stack}",
        "node_id": "t1v-n-0-w-0",
    }
    return {"logName": machine_log_name(PROJECT), "resource": {"type": "generic_node", "labels": labels}}


def of_service(log, source):
    labels = {
        "project_id": PROJECT,
        "location": log.location,
        "service_name": f"gemma-{log.stack}",
        "revision_name": f"gemma-{log.stack}-00001-abc",
    }
    kind = "varlog%2Fsystem" if source == "system" else source
    return {
        "logName": f"projects/{PROJECT}/logs/run.googleapis.com%2F{kind}",
        "resource": {"type": "cloud_run_revision", "labels": labels},
    }


def followed(world, log, *, second):
    """The lines of three reads, and what was said; `second` is called before the second read."""
    said, reads, seen = [], 0, []
    for line in follow(world.api, log, since(), LineMask(), say=said.append, pause=lambda _: None):
        if line is not None:
            seen.append(line.text)
            continue
        reads += 1
        if reads == 1:
            second()
        if reads == 3:
            break
    return seen, said


def texts(found):
    return [line.text for line in found]


@pytest.mark.parametrize("log", [RUN, TPU], ids=["cloud-run", "tpu"])
class TestBothTargets:
    def test_the_newest_lines_are_kept_over_several_pages(self, world, log):
        write(world, log, *(str(number) for number in range(1200)))
        assert texts(newest_lines(world.api, log, since(), 3, masked)) == ["1197", "1198", "1199"]
        assert len(newest_lines(world.api, log, since(), 5000, masked)) == 1200

    def test_a_canary_token_is_in_no_line(self, world, log):
        write(world, log, f"the token is {CANARY}", f"HF_TOKEN={CANARY}")
        found = newest_lines(world.api, log, since(), 100, masked)
        assert len(found) == 2
        assert CANARY not in json.dumps([command.line_json(line) for line in found])

    def test_what_is_needed_to_read_is_said_in_one_sentence(self, world, log, monkeypatch):
        email = world.account("reader-of-logs", "theirs")
        token = world.cloud.cloud.tokens.issue_access_token(email)
        monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", token)
        with pytest.raises(
            ScriptError, match=r"Cannot read the logs of stack .*You need logging\.logEntries\.list\. Run"
        ):
            newest_lines(connect(), log, since(), 3, masked)


def test_a_read_that_fails_while_lines_are_followed_is_told_and_tried_again(world, monkeypatch):
    write(world, RUN, "one")
    real = type(world.api).post

    def post(self, *words):
        monkeypatch.setattr(type(world.api), "post", real)
        raise ScriptError("It is away.")

    seen = followed(world, RUN, second=lambda: monkeypatch.setattr(type(world.api), "post", post))
    assert seen == (["one"], ["It is away. Retrying."])


class TestWhereTheLinesAre:
    def test_a_stack_that_nobody_knows_is_refused(self):
        with pytest.raises(CommandRefusedError, match=r"^Stack nope does not exist\. "):
            server_log(StackState(stack="nope", status="missing", detail="Stack nope does not exist."))
        with pytest.raises(CommandRefusedError, match=r"Pulumi\.nope\.yaml not found"):
            server_log(StackState(stack="nope", status="unreadable"))


@pytest.fixture
def deployed(world, monkeypatch):
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", PROJECT)
    monkeypatch.setattr("gemma_serving.engine.state.read", lambda stack: StackState(stack=stack, status="missing"))
    monkeypatch.setattr("gemma_serving.scripts.stack.facts.connect", lambda _: world.api)
    return world


class TestTheCommand:
    def test_the_json_is_one_object(self, deployed, capsys):
        write(deployed, TPU, "INFO fine", "Ran out of memory in memory space hbm", source="server")
        assert run_command(command.COMMAND, ["--stack", "tpu-v6e4", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["schema_version"], found["target"], found["cause"]["finding"]) == (1, "tpu", "FIT01")
        assert (found["lines"][0]["source"], found["lines"][0]["text"]) == ("server", "INFO fine")
        assert found["lines"][0]["time"].endswith("Z")

    def test_no_lines_is_said_with_the_way_further_back_and_no_model_is_asked(self, deployed, capsys, monkeypatch):
        server = [queued()]
        monkeypatch.setattr(
            "gemma_serving.engine.state.read", lambda name: StackState(stack=name, status="read", resources=server)
        )
        assert run_command(command.COMMAND, ["--stack", "tpu-v6e4", "--summarize"]) == 0
        said = capsys.readouterr()
        assert said.out == ""
        assert "no logs of stack tpu-v6e4 in this period." in said.err

    def test_a_stack_without_capacity_has_no_server_and_the_commands_that_follow(self, deployed, capsys, monkeypatch):
        kept = [resource(CAPACITY_COMPONENT, "capacity")]
        monkeypatch.setattr(
            "gemma_serving.engine.state.read",
            lambda name: StackState(stack=name, status="read", resources=kept, projects=[PROJECT]),
        )
        assert run_command(command.COMMAND, ["--stack", "tpu-v6e4"]) == 2
        assert capsys.readouterr().err == (
            "logs: Nothing serves. The last request for capacity failed, or the last `up` stopped before it. "
            "`gemma capacity tpu-v6e4` shows each zone's capacity. Fix the cause, then run `gemma up tpu-v6e4`.\n"
        )

    @pytest.mark.parametrize(
        ("phase", "reason", "says"),
        [
            ("failed", "The confined server could not use the accelerator: set tpu.container: privileged.", "Set gemma-serving:tpu.container: privileged.\n"),
            ("failed", "The disk of the TPU VM is broken.", "logs: the server's error, whose cause is not known: The disk of the TPU VM is broken.\n"),
            ("failed", f"The server exited with code 1: {ENGINE_FAILED}", "vLLM's engine did not start."),
            ("retrying", "The disk of the TPU VM is broken.", "--lines 1000`. Fix the setting that it names."),
        ],
    )  # fmt: skip
    def test_the_reason_of_a_failed_server_replaces_a_generic_cause(self, deployed, capsys, phase, reason, says):
        write(deployed, TPU, ENGINE_FAILED, source="server", minutes=5)
        write(deployed, TPU, f"Document 0123456789ab: {phase}. {reason}", source="agent", minutes=4)
        assert run_command(command.COMMAND, ["--stack", "tpu-v6e4"]) == 0
        err = capsys.readouterr().err
        assert says in err
        assert ("vLLM's engine did not start" in err) == ("vLLM" in says or "--lines" in says)

    def test_the_cause_of_a_failed_service_is_that_of_its_newest_revision(self, deployed, monkeypatch):
        monkeypatch.setattr("gemma_serving.cloud.google_api.connect", lambda _: deployed.api)
        write(deployed, RUN, NO_WEIGHTS)
        stack, now = StackState(stack=RUN.stack, status="missing"), datetime.now(UTC).isoformat()
        cloud = CloudFacts(state="FAILED", state_since=now, stored=f"gemma-{RUN.stack}-00001-abc")
        assert failed_service_cause(stack, cloud).line == NO_WEIGHTS
        assert failed_service_cause(stack, replace(cloud, stored="another")) is None

    def test_an_error_without_a_known_cause_is_named_and_never_called_one(self, deployed, capsys, monkeypatch):
        monkeypatch.setattr("gemma_serving.cloud.google_api.connect", lambda _: deployed.api)
        error = "(EngineCore pid=7) ERROR 11-27 10:00:00 [core.py:1136] NotImplementedError: draft models do not support multimodal models"
        last = [f"(APIServer pid=1)   frame {number}" for number in range(60)]
        write(deployed, RUN, error, *last, f"(APIServer pid=1) {ENGINE_FAILED}")
        shown = error.partition("] ")[2]
        cloud = CloudFacts(
            state="FAILED", state_since=datetime.now(UTC).isoformat(), stored=f"gemma-{RUN.stack}-00001-abc"
        )
        found = failed_service_cause(StackState(stack=RUN.stack, status="missing"), cloud)
        assert (found.line, found.hint) == (shown, "")
        assert run_command(command.COMMAND, ["--stack", RUN.stack, "--json"]) == 0
        said = capsys.readouterr()
        assert json.loads(said.out)["cause"] == {"finding": "", "line": shown, "fix": ""}
        assert said.err.endswith(f"logs: the server's error, whose cause is not known: {shown}\n")

    def test_a_wrong_duration_is_refused(self, capsys):
        assert run_command(command.COMMAND, ["--stack", "x", "--since", "10"]) == 2
        assert capsys.readouterr().err.startswith("logs: --since is '10'; it must be a duration such as")

    def test_an_api_key_that_a_line_shows_bare_is_masked(self, deployed, capsys, monkeypatch):
        deployed.secret("key", {})
        version = f"projects/{PROJECT}/secrets/key/versions/1"
        monkeypatch.setattr(
            "gemma_serving.scripts.logs.reading.read_secret",
            lambda asked, project: {(version, PROJECT): "swordfish"}[asked, project],
        )
        kept = state(stack_resource(apiKeySecret=version))
        monkeypatch.setattr("gemma_serving.engine.state.read", lambda _: kept)
        log = ServerLog(stack="x", project=PROJECT, target="cloud-run", location="us-east4")
        write(deployed, log, "somebody printed swordfish here")
        assert run_command(command.COMMAND, ["--stack", "x"]) == 0
        assert capsys.readouterr().out.endswith("somebody printed [masked] here\n")

    def test_following_prints_what_comes_and_ends_with_one_sentence(self, deployed, capsys, monkeypatch):
        write(deployed, RUN, "dropped", "before", minutes=5)
        reads = threading.Event()

        def pause(_seconds):
            if reads.is_set():
                raise KeyboardInterrupt
            reads.set()
            write(deployed, RUN, NO_WEIGHTS, minutes=1)

        monkeypatch.setattr(follow, "__kwdefaults__", {"pause": pause})
        assert run_command(command.COMMAND, ["--stack", "l4-qat", "--follow", "--json", "--lines", "1"]) == 130
        said = capsys.readouterr()
        assert [json.loads(line)["text"] for line in said.out.splitlines()] == ["before", NO_WEIGHTS]
        assert said.err.count("known cause") == 1
        assert said.err.endswith("logs: interrupted.\n")
