"""`scripts.status`: what it asks, what it shows, and how it ends."""

import io
import json
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pytest
from rich.console import Console

from gemma_serving.contracts import guest_attributes
from gemma_serving.contracts.errors import ScriptError
from gemma_serving.contracts.fields import from_json
from gemma_serving.contracts.outputs import StackOutputs
from gemma_serving.contracts.stack_facts import CloudFacts, ServesNow
from gemma_serving.contracts.three_answers import Present
from gemma_serving.engine.runner import NOT_LOGGED_IN
from gemma_serving.engine.state import StackState
from gemma_serving.scripts.cli.command import run_command
from gemma_serving.scripts.stack import facts as stack_facts
from gemma_serving.scripts.stack.deployed_server import serving
from gemma_serving.scripts.stack.serves import why_not_asked
from gemma_serving.scripts.status import __main__ as command
from gemma_serving.scripts.status import collect
from gemma_serving.scripts.status.__main__ import COMMAND
from gemma_serving.scripts.status.collect import StatusRequest
from gemma_serving.scripts.status.render import ReportView
from gemma_serving.scripts.status.report import (
    ServerFacts,
    StackStatus,
    StatusReport,
    UnansweredSource,
)
from gemma_serving.scripts.status.server_state import server_facts
from tests.answers import served
from tests.scripts.planted_states import service, stack_resource, state
from tests.scripts.sample_outputs import sample_outputs

READY = StackStatus(
    stack="tpu-v6e4",
    deployed=True,
    serves=ServesNow(word="deployed"),
    target="tpu",
    model="google/gemma-4-E2B-it",
    accelerator="v6e-4",
    cloud=CloudFacts(
        state="ACTIVE",
        place="us-east5-b",
        phase=Present("ready"),
        deadline="2026-11-01T16:00:00Z",
        declared="a" * 64,
        stored="a" * 64,
        running="a" * 64,
        usd=5.4,
        usd_per_hour=5.4,
    ),
    server=ServerFacts(health="ready", running_requests=3, waiting_requests=1, kv_use_share=0.125),
    next_command="gemma connect tpu-v6e4",
)
WAITING = StackStatus(
    stack="tpu-v6e4-turbo",
    deployed=False,
    serves=ServesNow(word="waiting"),
    target="tpu",
    cloud=CloudFacts(state="WAITING_FOR_RESOURCES", place="southamerica-west1-a", usd=0.0, usd_per_hour=0.0),
    waits=("southamerica-west1-a: WAITING_FOR_RESOURCES since 11:45 UTC (15 min).",),
    next_command="gemma status tpu-v6e4-turbo --watch",
)
BROKEN = replace(
    READY,
    stack="tpu-v6e1",
    server=None,
    drift=("The document was changed outside Pulumi: bbbbbbbbbbbb instead of aaaaaaaaaaaa.",),
    unanswered=(UnansweredSource(source="endpoint", why="The server does not respond (ConnectionError)."),),
    next_command="gemma logs tpu-v6e1",
)
ABSENT = StackStatus(
    stack="rtx6000-31b",
    deployed=False,
    serves=ServesNow(word="not deployed"),
    next_command="gemma up rtx6000-31b",
)
ENDED = CloudFacts(state="SUSPENDED", has_ended=True)
LONGEST_PHASE = max(guest_attributes.WAITING, key=len)
AT_S = 1793534400.0
"""2026-11-01 12:00 UTC."""
REPORT = StatusReport(at_s=AT_S, simulated=True, stacks=(READY, WAITING, BROKEN, ABSENT))


def drawn(report, width, *, terminal=True):
    out = io.StringIO()
    view = ReportView(report, zone_is_utc=True)
    Console(file=out, width=width, force_terminal=terminal, color_system=None, highlight=False).print(view, crop=False)
    return out.getvalue()


def rows(text):
    """The lines of the table's body."""
    _, _, below = text.partition("━\n")
    return [line for line in below.partition("\n\n")[0].splitlines() if "│" in line]


def test_the_longest_phase_and_name_have_a_line_each_at_80_columns():
    long = replace(READY.cloud, phase=Present(LONGEST_PHASE), usd=123.45, usd_per_hour=21.6)
    busy = replace(READY, stack="tpu-v6e1-26b-w4a16", cloud=long)
    asking = replace(WAITING, cloud=replace(WAITING.cloud, state="PROVISIONING"))
    text = drawn(replace(REPORT, stacks=(busy, asking, BROKEN)), 80)
    assert len(rows(text)) == 3
    assert [line for line in text.splitlines() if len(line) > 80] == []
    assert LONGEST_PHASE in rows(text)[0]


def test_a_failed_change_is_rolled_back_while_the_former_document_serves():
    cloud = replace(READY.cloud, phase=Present("failed"), reported="b", running="a")
    assert "rolled back" in drawn(replace(REPORT, stacks=(replace(READY, cloud=cloud),)), 120)
    assert "rolled back" not in drawn(
        replace(REPORT, stacks=(replace(READY, cloud=replace(cloud, running=None)),)), 120
    )


def test_an_unknown_price_is_no_number_and_spot_capacity_is_what_google_may_reclaim():
    cloud = replace(READY.cloud, form="spot", deadline=None, usd_per_hour=None, usd=0.0, usd_is_least=True)
    text = drawn(replace(REPORT, stacks=(replace(READY, cloud=cloud),)), 120)
    assert [cell.strip() for cell in rows(text)[0].split("│")[-2:]] == ["unknown", "0.00+"]
    assert "Google may reclaim this TPU VM (spot)." in text


def test_only_deployed_stacks_are_shown_and_all_with_all(capsys, monkeypatch):
    assert ABSENT.stack not in drawn(REPORT, 80)
    monkeypatch.setattr(collect, "collect", lambda _: REPORT)
    run_command(COMMAND, ["--all"])
    assert ABSENT.stack in capsys.readouterr().out
    run_command(COMMAND, ["--json"])
    assert ABSENT.stack in capsys.readouterr().out
    empty = drawn(replace(REPORT, stacks=(ABSENT, replace(ABSENT, stack="other"))), 80)
    assert empty.splitlines()[1:] == [
        "No stack of this Pulumi backend is deployed.",
        "`gemma teardown --all --dry-run` searches the project for billed resources.",
        "`gemma status --all` lists all 2 stacks.",
    ]


def test_a_stack_whose_first_up_was_killed_is_incomplete():
    locked = replace(ABSENT, waits=("A killed command left a lock: me@vm (process 7) is no longer running.",))
    (row,) = rows(drawn(replace(REPORT, stacks=(locked,)), 80))
    assert row.split()[2] == "incomplete"


class TestWatch:
    @pytest.mark.parametrize("words", [["--watch"], ["--watch", "--json"]])
    def test_without_a_terminal_it_is_refused(self, words, capsys):
        assert run_command(COMMAND, words) == 2
        assert "--watch needs a terminal" in capsys.readouterr().err

    def test_a_terminal_is_drawn_anew_until_ctrl_c(self, monkeypatch, capsys):
        later = replace(READY, cloud=replace(READY.cloud, state="SUSPENDED"))
        reports = iter([REPORT, replace(REPORT, stacks=(later, *REPORT.stacks[1:]))])
        pauses = iter([None])

        def pause(_seconds):
            if next(pauses, "over") == "over":
                raise KeyboardInterrupt

        monkeypatch.setattr(collect, "collect", lambda _: next(reports))
        monkeypatch.setattr(command, "_watch", partial(command._watch, sleep=pause))
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        monkeypatch.setenv("TERM", "dumb")
        assert run_command(COMMAND, ["--watch"]) == 2, "it cannot be drawn anew"
        assert "--watch needs a terminal" in capsys.readouterr().err
        monkeypatch.setenv("TERM", "xterm")
        assert run_command(COMMAND, ["--watch"]) == 130
        said = capsys.readouterr()
        before, _, after = said.out.partition("SUSPENDED")
        assert "ACTIVE" in before
        assert "WAITING_FOR_RESOURCES" in after
        assert said.err == "status: interrupted. Nothing was changed.\n"


METRICS = (
    'vllm:num_requests_running{engine="0"} 2.0\nvllm:num_requests_waiting{engine="0"} 5.0\n'
    'vllm:kv_cache_usage_perc{engine="0"} 0.25\n'
    'vllm:num_requests_running{engine="1"} 1.0\nvllm:num_requests_waiting{engine="1"} 0.0\n'
    'vllm:kv_cache_usage_perc{engine="1"} 0.125\n'
    'vllm:cache_config_info{block_size="16"} 1\n'
    "x_created 9\n"
)


@contextmanager
def listening(status=200):
    """Yield the outputs of a stack whose server has these metrics."""
    with served(lambda request: (status, "" if request.path == "/health" else METRICS)) as url:
        yield from_json(StackOutputs, sample_outputs(auth="none", endpoint=url))


class TestTheServer:
    def test_its_queue_and_its_cache_are_read(self):
        with listening() as outputs:
            found = server_facts(outputs)
        assert found == ServerFacts(health="ready", running_requests=3, waiting_requests=5, kv_use_share=0.25)

    def test_every_metric_is_a_total_over_its_labels_on_request(self):
        with listening() as outputs:
            found = server_facts(outputs, metrics=True).metrics
        assert found == {
            "vllm:cache_config_info": {"block_size": "16"},
            "vllm:kv_cache_usage_perc": 0.375,
            "vllm:num_requests_running": 3.0,
            "vllm:num_requests_waiting": 5.0,
        }

    def test_a_server_that_is_not_ready_says_its_status(self):
        with listening(503) as outputs:
            assert server_facts(outputs) == ServerFacts(health="HTTP 503")

    def test_a_server_that_is_gone_is_a_source_without_an_answer(self):
        with listening() as outputs:
            pass
        with pytest.raises(ScriptError, match="does not respond: GET /health failed: cannot connect"):
            server_facts(outputs)

    @pytest.mark.parametrize(
        ("changes", "least", "asked"),
        [
            ({"auth": "tunnel", "target": "tpu"}, 0, "Pass --tunnel to open it"),
            ({}, 0, "Pass --wake to check anyway"),
            ({}, 1, None),
        ],
    )
    def test_no_tunnel_is_opened_and_no_instance_started_unless_asked(self, changes, least, asked):
        outputs, found = from_json(StackOutputs, sample_outputs(**changes)), serving(state(service(least)))
        why = why_not_asked(outputs, found, tunnel=False, wake=False)
        assert why is None if asked is None else asked in why
        assert why_not_asked(outputs, found, tunnel=True, wake=True) is None


@pytest.fixture
def planted(monkeypatch, tmp_path):
    """One deployed service with a state, whose other sources answer what a test says."""
    (tmp_path / "Pulumi.yaml").write_text("name: gemma-serving\n")
    (tmp_path / "Pulumi.x.yaml").write_text("config: {}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(collect.states, "read", lambda _: state(stack_resource(auth="none"), service()))
    monkeypatch.setattr(stack_facts, "stack_locks", lambda _: ())
    monkeypatch.setattr(stack_facts, "connect", lambda _: None)
    monkeypatch.setattr(stack_facts, "lost_parts", lambda _: Present([]))
    ready = CloudFacts(state="READY", place="us-east4", running="r-1")
    monkeypatch.setattr(stack_facts, "cloud_facts", lambda *_, **__: ready)
    monkeypatch.setattr(collect, "server_facts", lambda *_, **__: ServerFacts(health="ready"))
    return monkeypatch


class TestTheCommand:
    @pytest.mark.parametrize("source", ["cloud_facts", "server_facts"])
    def test_a_source_that_fails_leaves_the_others_and_the_exit_code_is_1(self, planted, capsys, source):
        def fails(*_, **__):
            raise ScriptError("It is away.")

        planted.setattr(stack_facts if source == "cloud_facts" else collect, source, fails)
        assert run_command(COMMAND, ["--stack", "x", "--json"]) == 1
        (found,) = json.loads(capsys.readouterr().out)["stacks"]
        assert [item["why"] for item in found["unanswered"]] == ["It is away."]
        assert (found["cloud"] is None) == (source == "cloud_facts")
        assert found["address"]["auth"] == "none"
        assert run_command(COMMAND, ["--stack", "x"]) == 1
        assert "It is away." in capsys.readouterr().out

    def test_silent_sources_cost_one_limit_together(self, planted):
        def silent(*_, **__):
            time.sleep(20)  # a source that does not answer within the limit

        planted.setattr(collect, "ANSWER_LIMIT_S", 1.0)
        planted.setattr(collect, "_TO_RETURN_S", 0.2)
        planted.setattr(stack_facts, "cloud_facts", silent)
        planted.setattr(collect, "server_facts", silent)
        began_s = time.monotonic()
        (found,) = collect.collect(StatusRequest(stack="x")).stacks
        assert {item.source for item in found.unanswered} == {"google", "endpoint"}
        assert time.monotonic() - began_s < 1.8

    def test_no_tunnel_is_opened_to_a_server_that_google_reports_as_gone(self, planted):
        asked = []
        planted.setattr(stack_facts, "cloud_facts", lambda *_, **__: ENDED)
        planted.setattr(collect, "server_facts", asked.append)
        (found,) = collect.collect(StatusRequest(stack="x", tunnel=True)).stacks
        assert (asked, found.unanswered, found.server_not_asked) == ([], [], None)


def test_a_missing_engine_is_one_sentence_of_all_stacks(monkeypatch):
    absent = "The Pulumi CLI is not installed. Run `make setup`."
    found = [StackState(stack=stack, status="no engine", detail=absent) for stack in ("one", "two")]
    monkeypatch.setattr(collect.states, "all_states", lambda: found)
    with pytest.raises(ScriptError) as raised:
        collect.collect(StatusRequest())
    assert str(raised.value) == absent


def test_one_cause_of_several_reads_is_shown_once_below_the_stacks():
    why = "Google rejected your login (expired). Run `gcloud auth application-default login`, then the same command again."
    reads = tuple(UnansweredSource(source=source, why=why) for source in ("google", "buckets and secrets"))
    stacks = [replace(READY, stack=stack, unanswered=reads) for stack in ("one", "two")]
    shown = drawn(replace(REPORT, stacks=tuple(stacks)), 80, terminal=False)
    assert shown.count("rejected your login") == 1
    assert shown.splitlines()[-1] == f"Unknown for one, two: {why}"


def test_one_unreadable_state_leaves_the_others_shown(monkeypatch):
    found = [
        StackState(stack="one", status="unreadable", detail=NOT_LOGGED_IN),
        StackState(stack="two", status="missing", detail="It is not deployed."),
    ]
    monkeypatch.setattr(collect.states, "all_states", lambda: found)
    assert [status.stack for status in collect.collect(StatusRequest()).stacks] == ["one", "two"]


def test_a_reason_is_never_cut_and_has_the_log_lines_before_it_that_fit():
    reason = f"docker run failed: {'x' * 300}: no such file."
    for lines, words in (
        (["INFO one", reason, ""], reason),
        (["y" * 300, "ValueError: no.", "The server stopped."], "ValueError: no. The server stopped."),
        (["Invalid rev id: a", "Invalid rev id: a (exit code 1)"], "Invalid rev id: a (exit code 1)"),
        ([], ""),
    ):
        cloud = replace(READY.cloud, phase=Present("retrying"), phase_detail="\n".join(lines))
        shown = drawn(replace(REPORT, stacks=(replace(READY, cloud=cloud),)), 80, terminal=False)
        assert [line.strip() for line in shown.splitlines() if "reason" in line] == (
            [f"reason   {words}"] if words else []
        )
