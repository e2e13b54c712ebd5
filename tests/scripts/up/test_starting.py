"""Laws about what stops an `up` before it begins, what it does in which case, and what it names after a failure."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.contracts.stack_facts import CloudFacts, LostPart, StackFacts, StatedResource
from gemma_serving.contracts.three_answers import Absent, Present, Unknown
from gemma_serving.engine.state import StackState
from gemma_serving.scripts.doctor.api import Diagnosis
from gemma_serving.scripts.up import starting
from tests.laws import examples

law = settings(max_examples=examples(test=60, part=500, night=5000))
STATES = [
    StackState(stack="x", status="read"),
    StackState(stack="x", status="missing"),
    StackState(stack="x", status="unreadable", is_cut_off=True),
]


def patched(patch, **attributes):
    """Replace names of the module."""
    for name, value in attributes.items():
        patch.setattr(starting, name, value)


def facts_of(**more):
    return StackFacts(stack="x", state=Absent(), outputs=Absent(), **more)


def declared(kind, **outputs):
    return StatedResource(kind=kind, names=[], project="p", inputs={}, outputs=outputs)


@law
@given(st.lists(st.booleans(), max_size=3))
def test_a_lock_that_may_be_in_use_refuses_before_anything_else(are_dead):
    locks, asked = [SimpleNamespace(is_dead=is_dead) for is_dead in are_dead], []

    def refuse(_stack, alive):
        asked.append(alive)
        raise CommandRefusedError("It is locked.")

    def read(_stack):
        raise ScriptError("The state was read.")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(starting.runner, "pulumi", lambda: "pulumi")
        patched(
            patch, stack_settings=lambda _: None, stack_locks=lambda _: locks, require_dead=refuse, _readable_state=read
        )
        sentence = "The state was read." if all(are_dead) else "It is locked."
        with pytest.raises(ScriptError, match=sentence), starting.prepared_stack("x", dry_run=False):
            pytest.fail("It began.")
    assert asked == [[lock for lock in locks if not lock.is_dead]] * (not all(are_dead))


@law
@given(
    st.sampled_from(STATES),
    st.sampled_from([None, Absent(), Present(["found"]), Unknown("no answer")]),
    st.sampled_from([None, Absent(), Present(CloudFacts(state="s")), Present(CloudFacts(state="s", has_ended=True))]),
    st.booleans(),
)
def test_each_step_of_an_up_is_made_in_its_case(state, labels, server, dry_run):
    """A stack without a state may run elsewhere, and a dry run writes nothing."""
    calls, known = [], facts_of(labels=labels, server=server)

    def note(name, answer=None):
        def called(*given, **named):
            calls.append((name, *(one for one in given if isinstance(one, str | list) and one != "x"), *named.values()))
            return answer

        return called

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(starting.runner, "pulumi", note("engine"))
        patched(patch, stack_settings=note("settings"), stack_locks=lambda _: [], _readable_state=lambda _: state)
        patched(patch, _require_same_project=note("same project"), lost_files=lambda _: ["A file is gone."])
        patched(patch, home_region=note("region"), _require_plan=note("plan"), _require_free_way=note("zone"))
        patched(patch, may_take_over=note("take over"), width_of=lambda _: None)
        patched(patch, read_facts=note("read", known), replace_cut_off=note("replace"), report_unknown=lambda _: None)
        patched(patch, require_ready=note("ready", ()), print_progress=note("print"), forget=note("forget"))
        patched(patch, _kept_state=note("keep", nullcontext()), old_limits=lambda _: ["An old limit."])
        with starting.prepared_stack("x", dry_run=dry_run) as given:
            assert given == (known, None)
            calls.append(("up",))
    is_missing, is_lost = state.status == "missing", state.status != "read"
    has_ended = isinstance(server, Present) and server.value.has_ended
    sentence = "could not check whether stack x runs elsewhere: no answer"
    steps = [
        (True, ("engine",)),  # before the project, which a command of Pulumi may have to set
        (True, ("settings",)),
        (is_missing, ("same project",)),
        (is_missing, ("print", "up", "A file is gone.")),
        (True, ("region",)),  # before the plan and the checks of another region
        (True, ("plan",)),
        (True, ("read", "server", "lost", "locks", *(["labels"] if is_lost else []), 60.0)),
        (is_missing and isinstance(labels, Present), ("take over", ["found"], "", dry_run)),
        (True, ("zone",)),
        (not dry_run, ("replace",)),
        (True, ("ready", has_ended, None)),
        (isinstance(labels, Unknown), ("print", "up", sentence)),
        (True, ("keep", dry_run and is_lost)),
        (not dry_run, ("print", "up", "An old limit.")),
        (True, ("up",)),
        (not dry_run, ("forget",)),
    ]
    assert calls == [step for is_made, step in steps if is_made]


@law
@given(
    st.none() | st.tuples(st.sampled_from([["a"], ["a", "b"]]), st.booleans()),
    st.sampled_from([None, declared("k"), declared("k", name="n")]),
    st.none() | st.tuples(st.sampled_from(["ACTIVE", "PROVISIONING"]), st.sampled_from(["a", "b"])),
    st.sampled_from([None, Unknown("no answer"), Present([LostPart("It is gone.")])]),
    st.booleans(),
)
def test_only_grants_of_a_deleted_account_and_running_capacity_outside_the_zones_are_refused(
    tpu, known, capacity, lost, is_deleted
):
    chosen = SimpleNamespace(tpu=tpu and SimpleNamespace(zones=tpu[0], allow_replace_active=tpu[1]))
    server = None if capacity is None else Present(CloudFacts(state=capacity[0], place=capacity[1]))
    is_interrupted = known is not None and not known.outputs
    is_elsewhere = tpu and capacity and capacity[0] == "ACTIVE" and capacity[1] not in tpu[0]
    is_refused = is_interrupted and is_elsewhere and not tpu[1]
    said = r"^The capacity in b is ACTIVE\. .* Add b to `tpu\.zones`, or set `tpu\.allowReplaceActive: true` to delete"
    if is_deleted:
        lost, is_refused = Present([LostPart("It went.", commands=["gcloud a", "gcloud b"])]), True
        said = r"^Google keeps 2 grants of a deleted account, .* then `gemma up x`:\n  gcloud a\n  gcloud b$"
    with pytest.raises(CommandRefusedError, match=said) if is_refused else nullcontext():
        starting._require_free_way(chosen, facts_of(declared=known, server=server, lost=lost))


HASHES = st.sampled_from([None, "a" * 64, "b" * 64])


@law
@given(
    st.sampled_from([None, declared("TPU queued resource"), declared("TPU instance"), declared("Cloud Run service")]),
    st.sampled_from([None, Absent(), Unknown("no answer")])
    | st.builds(
        lambda **given: Present(CloudFacts(**given)),
        state=st.sampled_from(["READY", "MISSING"]),
        place=st.sampled_from([None, "z"]),
        running=HASHES,
        stored=HASHES,
    ),
    st.sampled_from([Present(["found"]), Unknown("no list."), Absent()]),
)
def test_what_exists_after_a_failure_is_named_with_its_place_and_cost(known, server, labels):
    end = "`gemma status x` shows it, `gemma teardown x` deletes it."
    what = "service" if known is None or known.kind == "Cloud Run service" else "capacity"
    found = {
        Present: "1 found.",
        Unknown: "Exists now: unknown, because a check failed (no list).",
        Absent: "Exists now: nothing in Google Cloud: every list was read.",
    }
    with pytest.MonkeyPatch.context() as patch:
        patched(patch, read=lambda _: STATES[0], found_sentence=lambda every, _: f"{len(every)} found.")
        patched(patch, reported_costs=lambda _, is_service: SimpleNamespace(sentence=f"Costs {is_service}."))
        patched(patch, read_facts=lambda *_, **__: facts_of(declared=known, server=server, labels=labels))
        text = starting.exists_now("x")
    if isinstance(server, Unknown):
        assert text == f"Exists now: unknown, because Google did not report the {what} (no answer). {end}"
    elif not isinstance(server, Present) or server.value.state == "MISSING":
        assert text == f"{found[type(labels)]} {end}"
    else:
        facts, is_service = server.value, what == "service"
        place = " in z" if facts.place else ""
        serves = f"; revision {facts.running} still serves" if is_service and facts.running else ", READY"
        is_stale = not is_service and facts.stored and facts.running and facts.stored != facts.running
        restarts = f"The server restarts with document {facts.stored[:12]}. " if is_stale else ""
        assert text == f"Exists now: {what}{place}{serves}. {restarts}Costs {is_service}. {end}"


@law
@given(
    st.lists(
        st.tuples(st.sampled_from([Present("p"), Unknown("u"), Absent()]), st.booleans(), st.booleans()), max_size=4
    )
)
def test_of_what_was_checked_only_what_failed_or_is_too_low_is_printed(drawn):
    said = []
    lines = [
        Diagnosis(answer=answer, check=f"c{number}", blocks=blocks, is_short=is_short)
        for number, (answer, blocks, is_short) in enumerate(drawn)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patched(patch, print_progress=lambda _, text: said.append(text))
        starting.report_unknown(lines)
    told = [line for line in lines if line.is_short or (isinstance(line.answer, Unknown) and line.blocks)]
    assert [text.removeprefix("could not check ").partition(":")[0] for text in said] == [line.check for line in told]


VALUES = st.dictionaries(st.sampled_from(["gemma-serving:a", "gemma-serving:b"]), st.sampled_from(["1", "2"]))


@law
@given(st.none() | VALUES, VALUES)
def test_what_a_settings_file_lacks_and_what_waits_in_it_is_named(deployed, now):
    with pytest.MonkeyPatch.context() as patch:
        patched(patch, deployed_values=lambda _: deployed, _values_of_file=lambda _: now)
        edits, lacks = starting.waiting_edits("x"), starting.dropped_settings("x")
    lacking = sorted({*(deployed or {})} - {*now})
    assert len(lacks) == bool(lacking)
    keys = ", ".join(key[14:] for key in lacking)
    assert not lacking or lacks[0] == (
        f"Warning: Pulumi.x.yaml lacks settings of the last `gemma up`: {keys}. If you did not remove them, run "
        "`pulumi config refresh --stack x --force`, which writes the deployed settings."
    )
    if deployed is None:
        assert edits == "Whether Pulumi.x.yaml has edits is unknown: the backend has no settings of an `up`."
        return
    changed = [key[14:] for key in ("gemma-serving:a", "gemma-serving:b") if deployed.get(key) != now.get(key)]
    assert edits == (f"Edits of Pulumi.x.yaml wait for `gemma up x`: {', '.join(changed)}." if changed else "")
