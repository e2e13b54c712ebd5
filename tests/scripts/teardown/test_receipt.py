"""Laws about the receipt: clean only if nothing is left, unread or interrupted, and each entry as it was found."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma_serving.cloud.deletion import DeletedResource
from gemma_serving.cloud.google_api import GoogleListError
from gemma_serving.cloud.kinds import SECRET
from gemma_serving.contracts.search_results import FoundResource, Inventory, ListCall
from gemma_serving.scripts.teardown.receipt import Receipt, RetainedBucket, retained_bucket
from tests.cloud.populated import asker, owner
from tests.laws import examples
from tests.scripts.teardown.test_would_delete import receipt_of

STARTED = datetime(2026, 11, 20, 12, tzinfo=UTC)
GIB = 2**30
SECONDS = st.floats(0, 1000)
law = settings(max_examples=examples(test=60, part=500, night=5000))


def found(name, created=""):
    return FoundResource(kind="bucket", name=name, command="c", location="us-east4", owner=owner("x"), created=created)


def retained(size_gib):
    return RetainedBucket(resource=found("projects/_/buckets/b"), size_gib=size_gib)


@law
@given(
    stack=st.sampled_from(["x", None]),
    state=st.lists(st.sampled_from([{"type": "t", "id": "i", "urn": "u"}, {"type": "t", "urn": "u"}]), max_size=1),
    leaked=st.lists(st.none() | st.integers(0, 10**6), max_size=1),
    unknown=st.lists(st.just("unread"), max_size=1),
    interrupted=st.booleans(),
    held_until=st.none() | st.just(STARTED),
    sizes_gib=st.lists(st.none() | st.floats(0, 5000), max_size=1),
    times_s=st.lists(SECONDS, min_size=3, max_size=3),
    searches=st.integers(1, 3),
    is_key_left=st.booleans(),
)
def test_a_receipt_has_each_entry_as_it_was_found(
    *, stack, state, leaked, unknown, interrupted, held_until, sizes_gib, times_s, searches, is_key_left
):
    of_all_s, of_call_s, of_deletion_s = times_s
    call = ListCall(kind="k", api="a", path="p", items=1, elapsed_s=of_call_s)
    key = replace(found("gemma-x-archive-key"), kind=SECRET)
    search = Inventory(asker=asker("x"), found=[key], calls=[call], unknown=unknown, elapsed_s=1)
    resource = found("d")
    deletion = DeletedResource(
        resource=resource, outcome="deleted", detail="", elapsed_s=of_deletion_s, timed_out=False
    )
    ages = [None if age_s is None else (STARTED - timedelta(seconds=age_s)).isoformat() for age_s in leaked]
    document = Receipt(
        stack=stack,
        projects=["p"],
        destroyed=0,
        state=state,
        leaked=[found("n", created or "") for created in ages],
        retained=[*map(retained, sizes_gib)],
        deletions=[deletion],
        unknown=unknown,
        warnings=(),
        searches=[search] * searches,
        started=STARTED,
        elapsed_s=of_all_s,
        held=[found("h")],
        left=[key] if is_key_left else [],
        held_until=held_until,
        interrupted=interrupted,
        dry_run=False,
    ).to_json()
    assert bool(document["compiled_programs"]) is not is_key_left
    assert (document["interrupted"], document["dry_run"], document["stack"]) == (interrupted, False, stack)
    assert [item["id"] for item in document["state"]] == [item.get("id", "u") for item in state]
    assert [item["age_s"] for item in document["leaked"]] == leaked
    assert [item["until"] for item in document["held"]] == [held_until and held_until.isoformat()]
    assert [item["size_gib"] for item in document["retained"]] == [
        None if size_gib is None else round(size_gib, 3) for size_gib in sizes_gib
    ]
    assert [item["usd_per_month"] for item in document["retained"]] == [
        None if size_gib is None else round(size_gib * 0.023, 2) for size_gib in sizes_gib
    ]
    assert [(item["search"], item["elapsed_s"]) for item in document["calls"]] == [
        (number + 1, round(of_call_s, 3)) for number in range(searches)
    ]
    assert [item["elapsed_s"] for item in document["deleted"]] == [round(of_deletion_s, 3)]
    assert document["elapsed_s"] == round(of_all_s, 1)


@pytest.mark.parametrize("left", [*product([False, True], repeat=4)], ids=str)
def test_a_receipt_is_clean_only_if_nothing_is_left_unread_or_interrupted(left):
    state, leaked, unknown, interrupted = left
    receipt = replace(receipt_of([found("n")] * leaked), state=[{"type": "t"}] * state, unknown=["unread"] * unknown)
    assert replace(receipt, interrupted=interrupted).clean is not any(left)


@pytest.mark.parametrize(("stack", "path"), [("x", None), (None, None), ("x", Path("a/b/c.json"))])
def test_a_receipt_is_written_under_its_stack_and_start_also_twice(tmp_path, monkeypatch, stack, path):
    monkeypatch.chdir(tmp_path)
    named = f".work/teardown/{stack or 'all'}-20261120T120000000000Z.json"
    receipt = replace(receipt_of(()), stack=stack, started=STARTED)
    for _ in range(2):
        assert receipt.write(path) == (path or Path(named))
    assert Path(path or named).read_text() == f"{json.dumps(receipt.to_json(), indent=2)}\n"


class Pages:
    """An API that answers objects of these sizes in pages, or refuses."""

    def __init__(self, pages):
        self.pages_of_sizes = pages

    def pages(self, _api, path):
        assert path.startswith("storage/v1/b/b/o?")
        if self.pages_of_sizes is None:
            raise GoogleListError(403, "no", "forbidden")
        for sizes in self.pages_of_sizes:
            yield {"items": [{"size": str(size)} if size else {} for size in sizes]} if sizes else {}


@law
@given(st.none() | st.lists(st.lists(st.none() | st.integers(1, 2**42), max_size=3), max_size=3))
def test_a_kept_bucket_has_the_size_and_price_of_its_objects_and_none_if_they_cannot_be_listed(pages):
    kept = retained_bucket(Pages(pages), found("projects/_/buckets/b"))
    if pages is None:
        assert (kept.size_gib, kept.usd_per_month) == (None, None)
        assert kept.text == "bucket projects/_/buckets/b: of unknown size"
        return
    size_gib = sum(size or 0 for sizes in pages for size in sizes) / GIB
    usd = size_gib * 0.023
    assert (kept.size_gib, kept.usd_per_month) == (size_gib, pytest.approx(usd))
    assert kept.text.startswith(
        f"bucket projects/_/buckets/b: {size_gib:.2f} GiB, ${kept.usd_per_month:,.2f} per month at "
    )
