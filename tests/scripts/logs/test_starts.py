"""The first start of a server by phase: from its log, next to the planned one, and never guessed."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from gemma_serving.cloud.server_logs import ServerLine
from gemma_serving.contracts.errors import ScriptError
from gemma_serving.contracts.fields import from_json
from gemma_serving.contracts.outputs import StackOutputs
from gemma_serving.contracts.stack_facts import CloudFacts, StackFacts, StatedResource
from gemma_serving.contracts.three_answers import Absent, Present, Unknown
from gemma_serving.scripts.logs import reading, starts
from tests.scripts.logs.test_logs import RUN, since, texts, world, write
from tests.scripts.sample_outputs import sample_outputs

__all__ = ["world"]

BEGAN = datetime(2026, 11, 1, 12, tzinfo=UTC)
SERVING = {"cloud-run": "gemma-x-00002-b", "tpu": "0db11a7ed8d0" + "0" * 52}
LOADING, COMPILING, SERVES = "Starting to load model m...", "Compiling a graph for x", "Application startup complete."
BOOT = (
    (0, "agent", "Document (none): starting."),
    (1, "agent", "Document 0db11a7ed8d0: starting."),
    (150, "agent", "Document 0db11a7ed8d0: loading."),
)
SERVER = ((45, "stdout", LOADING), (182, "stdout", COMPILING), (200, "stdout", "Loading weights took 3 s"))
READY = (331, "stdout", f"INFO:     {SERVES}")
WHOLE = {"image": 45, "weights": 137, "compile": 149}


def facts_of(target):
    outputs = from_json(StackOutputs, sample_outputs(target=target))
    declared = StatedResource(kind="k", names=["projects/p/locations/l/services/s"], project="p", inputs={})
    cloud = CloudFacts(state="READY", running=SERVING[target], state_since=BEGAN.isoformat())
    return StackFacts(
        stack="x", state=Absent(), outputs=Present(outputs), declared=declared, server=Present(cloud)
    )  # fmt: skip


def start_of(monkeypatch, target, lines, facts=None):
    """The start of a server whose log has these lines: seconds, source and text, and the place if it is another one."""
    asked = []
    api = SimpleNamespace(get=lambda *path: asked.append(path) or {"createTime": BEGAN.isoformat()})
    found = [
        ServerLine(moment=BEGAN + timedelta(seconds=at_s), source=source, text=text, where=(*where, SERVING[target])[0])
        for at_s, source, text, *where in lines
    ]
    monkeypatch.setattr(starts, "connect", lambda _project: api)
    monkeypatch.setattr(starts, "oldest_lines", lambda *_: found)
    start = starts.first_start(facts or facts_of(target))
    assert asked in ([], [("run", f"v2/projects/p/locations/l/services/s/revisions/{SERVING['cloud-run']}")])
    return (start.value.measured_s, start.value.phases_s) if isinstance(start, Present) else start


@pytest.mark.parametrize(
    ("target", "lines", "measured_s", "phases_s"),
    [
        ("cloud-run", (*SERVER, READY), 331, WHOLE),
        ("cloud-run", ((1, "stdout", SERVES, "another-revision"), *SERVER, READY), 331, WHOLE),
        ("cloud-run", SERVER, None, {}),
        ("cloud-run", (SERVER[0], READY), 331, {}),
        ("cloud-run", (READY,), 331, {}),
        ("tpu", (*BOOT, *SERVER, READY), 331, WHOLE),
        ("tpu", ((-9, "stdout", SERVES, "another-node"), *BOOT, *SERVER, READY), 331, WHOLE),
        ("tpu", (*BOOT, *SERVER, (300, "agent", "Document 0db11a7ed8d0: retrying. killed"), READY), 331, {}),
        ("tpu", (BOOT[0], (1, "agent", "Document 111111111111: starting."), *SERVER, READY), None, {}),
        ("tpu", (*SERVER, READY), None, {}),
    ],
)  # fmt: skip
def test_a_phase_is_measured_only_if_the_log_shows_where_it_begins(monkeypatch, target, lines, measured_s, phases_s):
    assert start_of(monkeypatch, target, lines) == ((measured_s, phases_s) if measured_s else Absent())


def test_a_log_or_a_server_that_cannot_be_read_is_named_and_no_server_has_no_start(monkeypatch):
    def breaks(*_):
        raise ScriptError("Cannot read the logs of stack x: you need logging.logEntries.list.")

    facts = facts_of("tpu")
    assert start_of(monkeypatch, "tpu", (), replace(facts, outputs=Absent())) == Absent()
    assert start_of(monkeypatch, "tpu", (), replace(facts, server=Absent())) == Absent()
    assert start_of(monkeypatch, "tpu", (), replace(facts, server=Unknown("no answer"))) == Unknown("no answer")
    monkeypatch.setattr(starts, "oldest_lines", breaks)
    unread = starts.first_start(facts)
    assert unread == Unknown("Cannot read the logs of stack x: you need logging.logEntries.list.")
    assert starts.start_text(unread).startswith("unknown; its log was not read: Cannot read the logs of stack x")


def test_the_oldest_lines_are_one_page_in_their_order(world):
    write(world, RUN, *(str(number) for number in range(1200)))
    assert texts(reading.oldest_lines(world.api, RUN, since())) == [str(number) for number in range(1000)]
