"""Every `up` records the runs of its stack before it changes anything and after a machine is there; a preview records nothing."""

import asyncio

import pulumi
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma_serving.cloud.google_calls import GoogleCallError
from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.labels import StackLimits
from gemma_serving.contracts.run_record import RecordedRun, RunRecord, Seen
from gemma_serving.contracts.three_answers import Absent, Present
from gemma_serving.stacks.hooks import run_recorder
from gemma_serving.stacks.hooks.run_recorder import RunRecorder, keep_runs, recorder_of
from tests.laws import examples
from tests.stacks.failed_start import context_of, failed_start

SERVICE, CAPACITY = "gcp:cloudrunv2/service:Service", "gcp-tpu:index:QueuedResource"


@pytest.fixture
def context():
    start = failed_start(weights="hub")
    limits = StackLimits(max_usd=3)
    return context_of(start.settings, limits)


@pytest.mark.parametrize(("preview", "noted"), [(False, ["first", "$3 in local-project"]), (True, [])])
def test_an_update_looks_first_names_its_limits_and_binds_its_hooks_and_a_preview_calls_nothing(
    context, bound, monkeypatch, preview, noted
):
    looks = []

    def line(limits, project, endless):
        return f"${limits.max_usd} in {project}{' '.join(endless)}"

    def program():  # `declare` takes the first look away
        monkeypatch.setattr(RunRecorder, "note_first", lambda _: looks.append("first") or Absent())
        monkeypatch.setattr(run_recorder, "limits_line", line)
        monkeypatch.setattr(pulumi.log, "info", looks.append)
        monkeypatch.setattr(pulumi.runtime, "is_dry_run", lambda: preview)
        keep_runs(context)

    hooks = bound(program)
    assert looks == noted
    assert hooks("gcp:storage/bucket:Bucket") is None
    for kind in (SERVICE, CAPACITY):
        assert (len(hooks(kind).after_create), len(hooks(kind).after_update)) == (1, 1), kind
    assert len(hooks(CAPACITY).on_error) == 1


def test_a_creation_that_the_limits_refuse_is_not_made(context, bound, monkeypatch):
    def program():
        monkeypatch.setattr(RunRecorder, "note_first", lambda _: Present("The limit of $3 is exceeded."))
        monkeypatch.setattr(pulumi.runtime, "is_dry_run", lambda: False)
        keep_runs(context)

    hooks = bound(program)
    for kind in (SERVICE, CAPACITY):
        (before,) = hooks(kind).before_create
        with pytest.raises(CommandRefusedError, match=r"The limit of \$3 is exceeded"):
            before.callback(None)


def test_a_hook_that_cannot_record_warns_and_never_fails_or_repeats_the_update(context, monkeypatch, caplog):
    def refused(_):
        raise GoogleCallError(403, "denied.")

    monkeypatch.setattr(RunRecorder, "note", refused)
    said = []
    monkeypatch.setattr(pulumi.log, "warn", said.append)
    recorder = recorder_of(context.settings, context.names, context.ownership)
    asyncio.run(recorder.note_after(pulumi.ResourceHookArgs("urn", "", "capacity", CAPACITY)))
    failure = pulumi.ErrorHookArgs("urn", "", "capacity", CAPACITY, "create", ["no"])
    assert asyncio.run(recorder.note_failed(failure)) is False
    assert len(said) == 2
    assert "(denied). The next `gemma up` will try again." in said[0]


def test_what_may_pass_is_tried_three_times_and_a_refusal_once(context, monkeypatch):
    monkeypatch.setattr(run_recorder, "_PAUSE_S", 0)
    for status, tries in ((503, 3), (429, 3), (0, 3), (403, 1), (404, 1)):
        asked = []

        def read(*_args, status=status, asked=asked, **_more):
            asked.append(status)
            raise GoogleCallError(status, "no")

        monkeypatch.setattr(run_recorder, "call_now", read)
        with pytest.raises(GoogleCallError):
            recorder_of(context.settings, context.names, context.ownership)._call("iam", "v1/x")
        assert len(asked) == tries, status


START_S = 1_793_491_200
RUN = st.tuples(
    st.integers(0, 50_000), st.integers(1, 20_000_000), st.none() | st.integers(3600, 90_000), st.booleans()
)


@settings(max_examples=examples(test=100, part=500, night=3000))
@given(
    st.lists(RUN, max_size=6, unique_by=lambda run: run[0]),
    st.booleans(),
    st.integers(0, 9),
    st.none() | st.integers(0, 9),
)
def test_no_search_however_incomplete_makes_a_record_cheaper(drawn, complete, recorded, current):
    """Whichever machines it finds. A machine that an incomplete search did not find runs on."""
    runs = [
        RecordedRun(start_s=START_S + start, micros_per_hour=rate, longest_s=most) for start, rate, most, _ in drawn
    ]
    seen = [
        Seen(name="m", requested_s=run.start_s, started_s=run.start_s, micros_per_hour=run.micros_per_hour)
        for run, (*_, is_found) in zip(runs, drawn, strict=True)
        if is_found
    ]
    first = RecordedRun(start_s=START_S, micros_per_hour=recorded, is_service=True)
    found = sorted(one.started_s for one in seen)
    if current is not None:
        seen.append(Seen(name="s", requested_s=START_S, started_s=START_S, micros_per_hour=current, is_service=True))
    before, now_s = RunRecord(since_s=START_S, runs=[first, *runs]), START_S + 60_000
    after = before.after(seen, now_s, complete=complete)

    def micros(record, at_s):
        return record.spent_micros + sum(use.micros for use in record.uses(seen, at_s))

    assert micros(after, now_s) >= micros(before, now_s)
    assert len(after.runs) <= 3 + 1
    assert max(run.micros_per_hour for run in after.runs if run.is_service) == max(recorded, current or 0)
    left = [run.start_s for run in after.runs if not run.is_service]
    assert not complete or left == found[-3:]
    if not complete and len(runs) <= 3:
        assert micros(after, now_s + 3600) >= micros(before, now_s + 3600)
