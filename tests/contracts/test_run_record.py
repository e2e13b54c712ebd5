"""The record of a stack's runs: its text, what each run costs, and which machine each run has."""

from dataclasses import replace

from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

from gemma_serving.contracts.run_record import MOST_BYTES, MOST_OPEN, RecordedRun, RunRecord, RunUse, Seen
from localcloud.rest.discovery import load
from tests.laws import examples

NOW_S = 1_000_000
START = st.integers(0, 9).map(lambda hour: hour * 3600)
RATE = st.integers(0, 5)
RUN = st.builds(
    RecordedRun, start_s=START, micros_per_hour=RATE, longest_s=st.none() | st.integers(0, 9), is_service=st.booleans()
)


@given(st.none() | START, st.integers(0, 9), st.lists(RUN, max_size=3))
def test_a_record_is_read_as_it_was_written_and_stays_among_other_words(since_s, spent, drawn):
    runs = tuple(run if not run.is_service else RecordedRun(**ONE, is_service=True) for run in drawn)
    record = RunRecord(since_s=since_s, spent_micros=spent, runs=runs)
    text = record.written_into("managed-by=a gemma-serving-runs=1/2/")
    assert RunRecord.of(text) == (None if since_s is None else record)
    assert text.split()[0] == "managed-by=a"
    assert len(text.split()) == 1 + (since_s is not None)


ONE = {"start_s": 3600, "micros_per_hour": 2}
SEEN = {"name": "m", "requested_s": 0, "micros_per_hour": 2}


@given(RUN, st.none() | START, st.none() | START, st.booleans(), START)
def test_a_run_costs_until_its_machine_stopped_or_at_most_until_its_limit(run, started_s, stopped_s, is_found, at_s):
    """A machine that is gone may have run until now, or until its limit. A service costs by its use, and nothing here."""
    seen = Seen(**SEEN, started_s=started_s, stopped_s=stopped_s, is_service=run.is_service)
    limit_s = NOW_S if run.longest_s is None else min(NOW_S, run.start_s + run.longest_s)
    end_s = seen.end_s(run, NOW_S) if is_found else run.end_s(NOW_S)
    is_here = is_found and started_s is not None
    assert end_s == ((stopped_s or NOW_S) if is_here else limit_s)
    use = RunUse(run=run, end_s=end_s, seen=seen if is_found else None)

    def until(moment_s):
        return 0 if run.is_service else -(-run.micros_per_hour * max(0, moment_s - run.start_s) // 3600)

    assert (use.micros, use.is_bound) == (until(end_s), not run.is_service and not is_here)
    assert use.micros_since(at_s) == until(end_s) - until(min(at_s, end_s))


def machine(requested_s, started_s, name="m"):
    return Seen(name=name, requested_s=requested_s, started_s=started_s, micros_per_hour=9)


STARTS = st.lists(START, min_size=1, max_size=4, unique=True)


@effort(max_examples=examples(test=100, part=300, night=2000))
@given(STARTS, st.lists(st.tuples(START, st.none() | START), max_size=4, unique_by=lambda one: one[0]), st.data())
def test_a_machine_has_the_run_of_its_start_or_else_the_newest_that_is_not_older_than_its_request(starts, drawn, data):
    runs = [RecordedRun(start_s=start_s, micros_per_hour=1) for start_s in starts]
    exact = [machine(start_s - 1, start_s) for start_s in starts if data.draw(st.booleans())]
    left = [run for run in runs if run.start_s not in {one.started_s for one in exact}]
    others = [
        machine(requested_s, -1 if started_s in starts else started_s, "other") for requested_s, started_s in drawn
    ]
    uses = RunRecord(runs=runs).uses([*others, *exact], NOW_S)
    had = {use.run.start_s: use.seen for use in uses if use.run in runs and use.run.micros_per_hour == 1}
    assert [had[one.started_s] for one in exact] == exact
    for run in sorted(left, key=lambda run: -run.start_s):
        fitting = sorted((one for one in others if one.requested_s <= run.start_s), key=lambda one: one.requested_s)
        assert had[run.start_s] == (fitting[-1] if fitting else None)
        others = [one for one in others if one is not had[run.start_s]]
    assert [use.seen for use in uses[len(runs) :]] == others
    assert all(use.run == use.seen.run for use in uses[len(runs) :])
    first = RunRecord(since_s=data.draw(st.none() | START), runs=runs)
    known = [first.since_s, *(one.started_s or one.requested_s for one in exact)]
    assert first.first_start_s(exact) == min((at_s for at_s in known if at_s is not None), default=None)


def test_the_largest_record_fits_into_the_description_of_an_account():
    run = RecordedRun(start_s=2_000_000_000, micros_per_hour=999_000_000, longest_s=604_800)
    runs = [*[run] * MOST_OPEN, replace(run, longest_s=None, is_service=True)]
    record = RunRecord(since_s=run.start_s, spent_micros=9_999_000_000, runs=runs)
    assert len(record.written_into("managed-by=gemma-serving".ljust(80, "x"))) <= MOST_BYTES
    text = load("iam.v1").schemas["ServiceAccount"]["properties"]["description"]["description"]
    assert f"maximum length is {MOST_BYTES} UTF-8 bytes" in text
