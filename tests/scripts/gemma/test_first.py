"""`gemma` without words: what is deployed and costs, or that nothing is, or that it is unknown; never the second for the third."""

import json
import threading
from datetime import datetime, timedelta
from socket import gethostname

import pytest

from gemma_serving.contracts.errors import ScriptError
from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.contracts.resource_types import CAPACITY_TYPE, SERVICE_TYPE
from gemma_serving.contracts.stack_lock import StackLock
from gemma_serving.engine import runner
from gemma_serving.engine import state as states
from gemma_serving.engine.state import STACK_TYPE, StackState
from gemma_serving.scripts.gemma import first
from gemma_serving.scripts.gemma.__main__ import main
from gemma_serving.scripts.gemma.arguments import ListedStack
from gemma_serving.scripts.stack import unfinished_teardown
from tests.engine_package.test_locks import dead_pid
from tests.scripts import planted_states as planted
from tests.scripts.sample_outputs import sample_outputs

TPU = {"target": "tpu", "auth": "tunnel", "state": "ACTIVE"}


NOW = datetime.fromisoformat("2126-11-01T12:00:00+00:00")
"""Far from now: a run with a later deadline has not ended by the real clock either."""


@pytest.fixture
def engine(monkeypatch):
    """An engine with these stacks: name, and outputs or None without a resource."""
    held = {}

    def query(words, limit_s=0.0):
        del limit_s
        if words[:2] == ["stack", "ls"]:
            rows = [{"name": name, "lastUpdate": "x", "resourceCount": 3 if has else 0} for name, has in held.items()]
            return json.dumps(rows)
        assert words[:2] == ["stack", "export"]
        found = held[words[-1]]
        if isinstance(found, Exception):
            raise found
        urn = f"urn:pulumi:{words[-1]}::p::{{}}::s"
        stack = {"type": STACK_TYPE, "urn": urn.format(STACK_TYPE), "outputs": found}
        kind = SERVICE_TYPE if found.get("target") == "cloud-run" else CAPACITY_TYPE
        server = {"type": kind, "urn": urn.format(kind), "outputs": {"state": "ACTIVE"}}
        rest = {"type": "gcp:compute/network:Network", "urn": urn.format("gcp:compute/network:Network")}
        has_server = "target" in found
        return json.dumps({"version": 3, "deployment": {"resources": [stack, server if has_server else rest]}})

    monkeypatch.setattr(runner, "query", query)
    monkeypatch.setattr(runner, "pulumi", lambda: "pulumi")
    return held


def told():
    return "\n".join([*first.first_lines(limit_s=60, now=lambda: NOW), ""])


def test_a_deployed_stack_has_its_price_and_the_time_left(engine):
    engine["tpu-v6e1"] = sample_outputs(**TPU, deadline=(NOW + timedelta(hours=3)).isoformat())
    engine["waits"] = sample_outputs(**TPU | {"state": "WAITING_FOR_RESOURCES"})
    engine["ended"] = sample_outputs(**TPU, deadline="2026-01-01T00:00:00Z")
    engine["run"] = sample_outputs()
    engine["half"] = {"other": 1}
    engine["begun"] = {"target": "tpu"}
    engine["never"] = None
    text, end = told(), (NOW + timedelta(hours=3)).astimezone()
    for line in (
        f"  tpu-v6e1  $1.42/h until {end:%Y-%m-%d %H:%M} {end.tzname()}, when Google deletes the VM",
        "  waits     nothing until its capacity is ACTIVE, then $1.42/h",
        "  ended     Nothing serves since the planned end of the run at 2026-01-01 00:00 UTC. Run `gemma up ended`.",
        "  run       $1.42/h for each instance that runs, $0.00/h while idle",
        (
            "  begun     incomplete: The last `up` was not complete, or another version of the project deployed the stack. "
            "Run `gemma up begun`. Costs an unknown price, if Google bills it."
        ),
        "  half      incomplete: No server exists, only 1 resource. Run `gemma status half`.",
        "Next: gemma status",
    ):
        assert f"{line}\n" in text
    assert "never" not in text
    assert "Stacks, as of the last `up` of each (Google was not queried):\n" in text
    assert "No stack is deployed" not in text


def test_a_request_whose_operation_was_interrupted_has_its_cost_once(monkeypatch):
    kept = planted.queued(state="WAITING_FOR_RESOURCES", name="projects/p/locations/us-east5-a/queuedResources/gemma-x")
    monkeypatch.setattr(first, "known_stacks", lambda **_: [ListedStack(name="x", is_selected=False, is_deployed=True)])
    monkeypatch.setattr(states, "read", lambda _stack: planted.state(kept, pending=[planted.queued()]))
    assert told().count("Costs an unknown price, if Google bills it.") == 1


def test_a_killed_up_is_incomplete_as_in_status_even_before_its_first_resource(engine, monkeypatch):
    dead = StackLock(place="", user="me", host=gethostname(), pid=dead_pid(), since="2026-11-01T12:00:00Z")
    engine["none"] = {}
    monkeypatch.setattr(first, "stack_locks", lambda stack: (dead,) if stack == "none" else ())
    text = told()
    assert f"  none  incomplete: A killed command left a lock: {dead.holder} is no longer running. " in text
    assert "Run `gemma up none`." in text


def test_a_deletion_is_continued_by_teardown_as_in_status(engine):
    engine["ended"] = sample_outputs(**TPU, deadline="2026-01-01T00:00:00Z")
    engine["begun"] = {"target": "tpu"}
    engine["half"] = {"other": 1}
    for stack in engine:
        unfinished_teardown.remember(StackState(stack=stack, status="read"))
    text = told()
    assert [f"Run `gemma teardown {stack}`" in text for stack in engine] == [True, True, True]
    assert "gemma up" not in text.partition("Next: ")[0]


def test_without_a_stack_it_names_the_backend_and_the_search_and_never_says_that_nothing_costs(engine, monkeypatch):
    monkeypatch.setenv("PULUMI_BACKEND_URL", "s3://states?secret=x")
    engine["never"] = None
    text = told()
    assert "No stack is deployed in backend s3://states.\nGoogle was not queried." in text
    assert "`gemma teardown --all --dry-run`." in text
    assert "othing" not in text
    assert "secret" not in text


def test_states_that_are_read_too_slowly_are_named_in_one_sentence(engine, monkeypatch):
    engine["a"] = engine["b"] = engine["c"] = sample_outputs()
    slow = threading.Event()
    line = first._line
    monkeypatch.setattr(
        first, "_line", lambda stack, now: line(stack, now) if stack.name == "b" else slow.wait() and ""
    )
    text = "\n".join(first.first_lines(limit_s=0.5, now=lambda: NOW))
    slow.set()
    assert "  a  price unknown\n  b  $1.42/h" in text
    assert (
        "  c  price unknown\nThe states of a, c were not read within 0.5 s; `gemma status` waits longer.\nNext: gemma status\n"
        in text
    )


def test_a_state_that_cannot_be_read_is_unknown_and_never_nothing(engine, monkeypatch):
    engine["a"] = ScriptError("The bucket did not answer.")
    assert "  a  unknown: The bucket did not answer.\n" in told()

    def logged_out(_words, limit_s=0.0):
        del limit_s
        raise runner.PulumiFailedError(runner.NOT_LOGGED_IN, "")

    monkeypatch.setattr(runner, "query", logged_out)
    text = told()
    assert f"The deployed stacks and their cost are unknown. {runner.NOT_LOGGED_IN}\n" in text
    assert "No stack is deployed" not in text


@pytest.mark.parametrize("found", ["/x/gemma", None])
def test_where_gemma_cannot_be_typed_as_printed_the_command_that_mends_it_is_named(engine, monkeypatch, capsys, found):
    monkeypatch.setattr("shutil.which", lambda _name: found)
    assert main([]) == ExitCode.DONE
    last = capsys.readouterr().out.splitlines()[-1]
    assert ('is not on PATH here. Run `export PATH="' in last and '/.venv/bin:$PATH"`.' in last) is (found is None)
