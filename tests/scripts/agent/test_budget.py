"""What is deployed and what was spent count in every server. No engine: the states are stored ones."""

import json
import threading
from pathlib import Path

import anyio
import pytest

from contracts.errors import CommandRefusedError, ScriptError
from engine.deployment import StateUnreadableError, deployment_of
from engine.state import StackState, of_deployment
from engine.steps import CAPACITY_TYPES
from scripts.agent import deployed
from scripts.agent.audit import AuditEntry, AuditFile
from scripts.agent.counts import AuditBook, Count
from scripts.agent.deployed import deployed_now, usd_per_hour_of
from scripts.agent.server import build
from tests.scripts.agent.conftest import STACK, call, kept, lines, spending

STATES = Path(__file__).parents[2] / "fixtures" / "state"
HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
NOW_S = 2_000_000_000.0


def state(stack, *, without=(), **changes):
    """Return a stored state, with some resources left out and inputs of the others changed."""
    document = json.loads((STATES / f"{stack}.json").read_text())
    resources = document["deployment"]["resources"]
    kept_ones = [resource for resource in resources if not any(word in resource["type"] for word in without)]
    for resource in kept_ones:
        resource.get("inputs", {}).update(changes)
    document["deployment"]["resources"] = kept_ones
    return of_deployment(stack, deployment_of(stack, document))


def server(audit, now, **values):
    return spending(book=AuditBook(audit=audit), clock=lambda: now[0], **values)


# From the states.


def test_a_state_is_priced_with_all_its_instances_also_without_outputs():
    for stack, capacity in (("l4-qat", "cloudrunv2"), ("tpu-v6e4", "QueuedResource")):
        whole = usd_per_hour_of(state(stack))
        assert whole > 0.5, stack
        bare = usd_per_hour_of(state(stack, without=("pulumi:pulumi:Stack", "StackDetails")))
        assert bare == pytest.approx(whole, rel=0.1), stack
        assert usd_per_hour_of(state(stack, without=(capacity,))) is None
    one = state("l4-qat")
    template = next(item for item in one.resources if "cloudrunv2/service:" in item["type"])["inputs"]["template"]
    scaled = {**template, "scaling": {**template["scaling"], "maxInstanceCount": 7}}
    assert usd_per_hour_of(state("l4-qat", template=scaled)) == pytest.approx(
        7 / template["scaling"]["maxInstanceCount"] * usd_per_hour_of(one)
    )


def test_what_an_engine_began_to_create_counts_too():
    request = next(item for item in state("tpu-v6e4").resources if item["type"] in CAPACITY_TYPES)
    begun = StackState(stack="tpu-v6e4", status="read", pending=[request])
    assert usd_per_hour_of(begun) > 0.5


def test_a_state_that_cannot_be_read_or_priced_is_unknown_and_not_free():
    unreadable = StackState(stack="x", status="unreadable", detail="It is cut off.")
    with pytest.raises(CommandRefusedError, match=r"cost of stack x is unknown.*cut off.*gemma recover x"):
        usd_per_hour_of(unreadable)
    unpriced = state("tpu-v6e4", without=("pulumi:pulumi:Stack", "StackDetails"), acceleratorType="v9-4")
    with pytest.raises(CommandRefusedError, match="the price list does not have its hardware"):
        usd_per_hour_of(unpriced)
    assert usd_per_hour_of(StackState(stack="x", status="missing")) is None


def test_every_stack_of_the_backend_is_read_and_an_empty_one_is_not(monkeypatch):
    rows = [
        {"name": "organization/gemma-serving/l4-qat", "resourceCount": 9},
        {"name": "tpu-v6e4", "resourceCount": 9, "updateInProgress": True},
        {"name": "empty", "resourceCount": 0},
    ]
    asked = []
    monkeypatch.setattr(deployed.runner, "query", lambda _words: json.dumps(rows))
    monkeypatch.setattr(deployed, "read", lambda stack: asked.append(stack) or state(stack))
    monkeypatch.setattr(deployed, "all_locks", lambda stacks: dict.fromkeys(stacks, ()))
    found = deployed_now()
    assert sorted(asked) == sorted(found.usd_per_hour) == ["l4-qat", "tpu-v6e4"]
    assert found.busy == {"tpu-v6e4"}

    def failing(_words):
        raise StateUnreadableError("Pulumi is not logged in.", cut_off=False)

    monkeypatch.setattr(deployed.runner, "query", failing)
    with pytest.raises(CommandRefusedError, match=r"current deployments are unknown.*not logged in"):
        deployed_now()


def test_what_a_person_deployed_counts_against_the_ceiling_of_a_new_server(bench_of, audit, commands):
    agent = bench_of("up", usd_per_hour_limit=3.0, deployed={"l4-12b": 2.84})
    plan_id = agent.plan_store.keep(kept())
    refused = anyio.run(lambda: call(build(agent, audit), "up", {"plan_id": plan_id}))
    assert refused.is_error
    assert "$4.84 with the other deployments, l4-12b $2.84; the limit is $3.00" in refused.content[0].text
    assert commands.run == []


def test_a_server_refuses_what_costs_money_while_a_state_is_unknown(bench_of, audit, commands):
    agent = bench_of("up")

    def unknown():
        raise CommandRefusedError("What stack x costs is unknown.")

    agent.spending.states = unknown
    plan_id = agent.plan_store.keep(kept())
    refused = anyio.run(lambda: call(build(agent, audit), "up", {"plan_id": plan_id}))
    assert "What stack x costs is unknown." in refused.content[0].text
    assert commands.run == []
    seen = anyio.run(lambda: call(build(agent, audit), "preview", {"stack": STACK}))
    assert seen.structured_content["budget"] == "What stack x costs is unknown."


def test_answers_say_what_is_counted(bench_of, audit, commands):
    agent = bench_of("up", deployed={"other": 1.5})
    server_ = build(agent, audit)
    seen = anyio.run(lambda: call(server_, "preview", {"stack": STACK})).structured_content
    assert seen["budget"].startswith("$1.50 of $10.00 per hour is counted (other $1.50), and $0.00 of $50.00")
    done = anyio.run(lambda: call(server_, "up", {"plan_id": seen["plan_id"]})).structured_content
    assert done["budget"].startswith(f"$3.50 of $10.00 per hour is counted ({STACK} $2.00, other $1.50)")


# From the audit file.


def test_two_servers_one_after_the_other_share_the_money(audit):
    now = [NOW_S]
    first = server(audit, now, usd_limit=3.0, usd_per_hour_limit=3.0)
    first.require(STACK, 2.84)
    first.reserve(STACK, 2.84, counted=2.84)
    now[0] += HOUR_S / 2
    second = server(audit, now, usd_limit=3.0, usd_per_hour_limit=3.0, deployed={STACK: 2.84})
    with pytest.raises(CommandRefusedError, match=r"\$5\.68 with the other deployments"):
        second.require("another", 2.84)
    assert second.spent_usd() == pytest.approx(1.42)
    with pytest.raises(CommandRefusedError, match=r"\$1\.42 was spent in the last 24 hours"):
        second.require(STACK, 2.84)
    second.require(STACK, 1.5)
    second.ends(STACK)
    now[0] += HOUR_S
    third = server(audit, now, usd_limit=1.4)
    with pytest.raises(CommandRefusedError, match=r"\$1\.42 was spent in the last 24 hours; the limit"):
        third.require_left()
    now[0] += DAY_S
    third.require_left()
    assert third.spent_usd() == 0


def test_two_servers_at_once_do_not_break_the_ceiling_together(audit):
    """Both have read the states before either counts."""
    servers = [server(audit, [NOW_S], usd_per_hour_limit=3.0) for _ in range(2)]
    for number, one in enumerate(servers):
        one.require(f"stack-{number}", 2.0)
    refused, together = [], threading.Barrier(2)

    def reserve(number, one):
        together.wait()
        try:
            one.reserve(f"stack-{number}", 2.0, counted=2.0)
        except CommandRefusedError:
            refused.append(number)

    threads = [threading.Thread(target=reserve, args=pair) for pair in enumerate(servers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 1
    assert [line["outcome"] for line in lines(audit)] == ["counted"]


def test_a_teardown_ends_what_another_server_counted_and_a_lower_price_is_said(audit):
    now = [NOW_S]
    first, second = (server(audit, now, deployed={STACK: 5.0}) for _ in range(2))
    assert second.spent_usd() == 0
    first.require(STACK, 2.0)
    first.reserve(STACK, 2.0, counted=5.0)
    first.settles(STACK, 2.0)
    assert first.sentence().startswith(f"$2.00 of $10.00 per hour is counted ({STACK} $2.00)")
    second.ends(STACK)
    assert [line["usd_per_hour"] for line in lines(audit)] == [5.0, 2.0, 0.0]


def test_what_a_person_deleted_is_not_counted_any_more_and_what_an_engine_changes_is(audit):
    now = [NOW_S]
    server(audit, now).begins(STACK, 2.0)
    now[0] += HOUR_S
    still = server(audit, now, busy=[STACK])
    still.require("another", 1.0)
    assert still.usd_per_hour() == {STACK: 2.0}
    gone = server(audit, now)
    gone.require("another", 1.0)
    assert gone.usd_per_hour() == {}
    assert gone.spent_usd() == pytest.approx(2.0)
    now[0] += HOUR_S
    assert server(audit, now).spent_usd() == pytest.approx(2.0)


def test_a_deployment_that_has_just_begun_is_counted_before_any_state_has_it(audit):
    now = [NOW_S]
    server(audit, now).begins(STACK, 2.0)
    now[0] += 60.0
    other = server(audit, now, usd_per_hour_limit=3.0)
    with pytest.raises(CommandRefusedError, match=r"\$4\.00 with the other deployments"):
        other.require("another", 2.0)


def test_the_older_file_is_read_and_a_long_run_is_counted_anew(audit):
    now = [NOW_S]
    server(audit, now).begins(STACK, 1.0)
    audit.path.rename(audit.path.with_name(f"{audit.path.name}.1"))
    now[0] += 26 * HOUR_S
    one = server(audit, now, deployed={STACK: 1.0})
    assert one.spent_usd() == pytest.approx(24.0)
    one.require(STACK, 1.0)
    assert [line["stack"] for line in lines(audit)] == [STACK]
    assert one.spent_usd() == pytest.approx(24.0)


def test_an_audit_file_that_cannot_be_read_is_unknown_and_names_the_way_out(audit):
    older = audit.path.with_name(f"{audit.path.name}.1")
    broken = {
        "no record in line 1": (b"\x00\x01 garbage\n", None),
        "no record in line 2": (b'{"outcome": "done"}\n[]\n', None),
        "utf-8": (b"\xff\xfe\n", None),
        "no time, stack or price": (b'{"outcome": "counted", "stack": "x", "usd_per_hour": 1}\n', None),
        "audit.jsonl.1 has no record in line 1": (b"", b"garbage"),
    }
    failures = []
    for words, (text, before) in broken.items():
        audit.path.write_bytes(text)
        older.unlink(missing_ok=True)
        if before is not None:
            older.write_bytes(before + b"\n")
        one = server(audit, [NOW_S])
        for work in (one.require_left, lambda one=one: one.require(STACK, 1.0)):
            try:
                work()
            except CommandRefusedError as error:
                if words not in str(error) or "start the agent with another --audit FILE" not in str(error):
                    failures.append((words, str(error)))
            else:
                failures.append((words, "was not refused"))
        if one.spent_usd() is not None:
            failures.append((words, "has a sum"))
    assert failures == []
    for path in (audit.path, older):  # the way out that the message names
        path.unlink(missing_ok=True)
    server(audit, [NOW_S]).require_left()


def test_a_line_that_was_cut_off_by_a_full_disk_stops_nothing(audit):
    one = server(audit, [NOW_S])
    one.begins(STACK, 1.0)
    with audit.path.open("a") as file:
        file.write('{"call": "1", "tool": "up", "argum')
    one.begins(STACK, 2.0)
    assert [count.usd_per_hour for count in AuditBook(audit=audit).read()] == [1.0, 2.0]


def test_a_separator_in_an_argument_does_not_make_the_sum_unknown(audit):
    """A model could otherwise stop every deployment with one text."""
    for separator in "\u2028\u2029\x85\x0b\x0c\x1c\r":
        text = f"a{separator}b"
        audit.write(AuditEntry(call="1", tool="recognise_failure", arguments={"text": text}, outcome="begun"))
    assert AuditBook(audit=audit).read() == []


def test_without_a_line_nothing_is_deployed(bench_of, tmp_path, audit, commands):
    agent = bench_of("up", book=AuditBook(audit=AuditFile(path=tmp_path / "link")))
    plan_id = agent.plan_store.keep(kept())
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    found = anyio.run(lambda: call(build(agent, audit), "up", {"plan_id": plan_id}))
    assert found.is_error
    assert "nothing was done" in found.content[0].text
    assert [argv[1] for argv in commands.run] == ["preview"]
    assert not agent.plan_store.find(plan_id).used


def test_a_price_that_cannot_be_recorded_at_the_end_stays_the_higher_one(audit, capsys):
    one = server(audit, [NOW_S])
    one.begins(STACK, 5.0)
    audit.path.unlink()
    audit.path.mkdir()
    one.settles(STACK, 2.0)
    assert one.counted(STACK) == 5.0
    assert f"stack {STACK} is still counted at the previous price" in capsys.readouterr().err


def test_the_lock_beside_the_audit_file_is_private(audit):
    with AuditBook(audit=audit).alone():
        pass
    lock = audit.path.with_name(f"{audit.path.name}.lock")
    assert lock.stat().st_mode & 0o777 == 0o600
    lock.unlink()
    lock.symlink_to(audit.path)
    with pytest.raises(ScriptError, match="Cannot write"), AuditBook(audit=audit).alone():
        pass


def test_counts_are_read_in_the_order_of_time(audit):
    book = AuditBook(audit=audit)
    for seconds in (NOW_S, NOW_S - HOUR_S):
        book.add(Count(at_s=seconds, stack=STACK, usd_per_hour=1.0))
    assert [count.at_s for count in book.read()] == [NOW_S - HOUR_S, NOW_S]
    assert audit.path.stat().st_mode & 0o777 == 0o600
