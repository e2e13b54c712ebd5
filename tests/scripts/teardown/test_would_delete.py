"""A dry run says in a few short lines what would go and what it costs; commands come with --json, in an order that works."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from gemma_serving.cloud.deletion import DeletedResource
from gemma_serving.cloud.kinds import GRANT, INSTANCE, NODE, QUEUED, SERVICE, order_of
from gemma_serving.cloud.spending import StackSpending
from gemma_serving.contracts.labels import NO_LIMITS
from gemma_serving.contracts.proof import Asker
from gemma_serving.contracts.search_results import FoundResource, Inventory
from gemma_serving.scripts.teardown.output import text_of
from gemma_serving.scripts.teardown.receipt import Receipt, RetainedBucket
from tests.cloud.populated import owner

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
REGIONS = ("us-east5", "europe-west4", "asia-northeast1", "southamerica-west1")


def found(kind, name="gemma-tpu-v6e1", location="global", document=None, stack="tpu-v6e1"):
    made = FoundResource(kind=kind, name=f"projects/p/{location}/{name}", command="gcloud", owner=owner(stack))
    created = (NOW - timedelta(hours=2)).isoformat()
    return replace(made, location=location, created=created, document=document or {})


def queued(state="ACTIVE", kind="v6e-1", **more):
    spec = [{"node": {"acceleratorType": kind}}]
    document = {"state": {"state": state}, "tpu": {"nodeSpec": spec}, "provisioningModel": "FLEX_START"}
    return found(QUEUED, location="us-east5-a", document=document, **more)


def fresh(stack="tpu-v6e1"):
    """What a search of a fresh TPU stack finds, in the order of a search."""
    node = {"acceleratorType": "v6e-1", "queuedResource": "projects/p/locations/us-east5-a/queuedResources/q"}
    each = [found(kind, location=region, stack=stack) for kind in ("router", "subnetwork") for region in REGIONS]
    each += [found("image repository", location=region, stack=stack) for region in REGIONS]
    each += [found(kind, stack=stack) for kind in ("firewall rule", "network", "secret", "service account")]
    each += [found(GRANT, name=f"roles/r{number}", stack=stack) for number in range(5)]
    each += [queued(stack=stack), found(NODE, location="us-east5-a", document=node, stack=stack)]
    return sorted(each, key=lambda item: (order_of(item.kind), item.kind))


def receipt_of(leaked, unknown=(), stack="tpu-v6e1", spent=()):
    return Receipt(
        stack=stack,
        projects=["local-project"],
        destroyed=0,
        state=(),
        leaked=leaked,
        retained=(),
        deletions=(),
        unknown=unknown,
        warnings=(),
        searches=[Inventory(asker=Asker(stack="x"), found=leaked, calls=(), unknown=unknown, elapsed_s=1)],
        started=NOW,
        elapsed_s=1,
        spent=spent,
        interrupted=False,
        dry_run=True,
    )


def said(leaked, unknown=(), stack="tpu-v6e1", spent=()):
    return text_of(receipt_of(leaked, unknown, stack, spent))


def spent(usd, rate, *, is_least=False):
    return StackSpending(owner=owner("x"), limits=NO_LIMITS, age_s=1, usd=usd, usd_per_hour=rate, is_least=is_least)


def test_it_reads_as_no_failed_teardown():
    for text in (said(fresh()), said(()), said((), ["Could not check the secrets: denied."])):
        assert not [word for word in ("Left", "eaked", "destroyed", "gcloud") if word in text], text
    assert "nothing to delete: every list was read." in said(())
    unread = said((), ["Could not check the secrets: denied."])
    assert "no resource was found, but a check failed." in unread
    assert "Could not check the secrets: denied." in unread


def test_a_price_that_is_unknown_is_not_zero():
    text = said([queued(kind="v9x-1"), queued()], spent=[spent(2.7, 1.35), spent(0.4, None, is_least=True)])
    assert "2 TPU queued resources  us-east5-a, an unknown price" in text
    assert "At known prices: at least $1.35/h now, at least $3.10 so far." in text
    assert "At known prices: $1.35/h now, $2.70 so far." in said([queued()], spent=[spent(2.7, 1.35)])
    assert "us-east5-a, $0.00/h" in said([queued(state="WAITING_FOR_RESOURCES")])
    idle = said([found(SERVICE, location="us-east4")])
    assert "1 Cloud Run service  us-east4, $0.00/h while idle" in idle
    assert "/h" not in said([found("bucket")])


@pytest.mark.parametrize("kind", [INSTANCE, NODE])
def test_a_vm_without_a_known_price_is_not_free(kind):
    machine = found(kind, location="us-east5-a", document={"acceleratorType": "v9x-1", "status": "RUNNING"})
    assert "us-east5-a, an unknown price" in said([machine])


def test_several_stacks_are_told_apart():
    lines = said([*fresh("a"), *fresh("b")], stack=None).splitlines()
    assert lines[0].startswith("all stacks: 36 resources and 10 IAM grants would be deleted.")
    assert [line for line in lines if line in {"a:", "b:"}] == ["a:", "b:"]
    assert sum("4 routers" in line for line in lines) == 2


def test_a_grant_that_google_renames_when_its_account_is_deleted_counts_once():
    names = [f"roles/r{start}:x@p.iam.gserviceaccount.com" for start in (" serviceAccount", " deleted:serviceAccount")]
    before, renamed = found(GRANT, name=names[0]), found(GRANT, name=f"{names[1]}?uid=1")
    searches = [
        Inventory(asker=Asker(stack="x"), found=each, calls=(), unknown=(), elapsed_s=1)
        for each in ([before], [renamed], [])
    ]
    whole = replace(receipt_of([]), searches=searches, dry_run=False)
    assert "deleted 0 resources and 1 IAM grant from Google Cloud in" in text_of(whole)
    assert "deleted nothing in" in text_of(replace(whole, searches=searches[:2]))


def test_what_a_teardown_leaves_is_named_with_its_command():
    failed = DeletedResource(resource=found("router"), outcome="failed", detail="denied", elapsed_s=1, timed_out=False)
    bucket = RetainedBucket(resource=found("bucket"), size_gib=1)
    whole = replace(receipt_of([found("secret")]), dry_run=False, deletions=[failed], retained=[bucket], state=[{}])
    text = text_of(whole)
    assert "Leaked: secret projects/p/global/gemma-tpu-v6e1. To delete it, run:\n  gcloud\n" in text
    assert "Not deleted: router projects/p/global/gemma-tpu-v6e1: denied" in text
    assert "To delete it, run:\n  gcloud" in text.partition("Retained: bucket ")[2].partition("Still")[0]
    assert "Still in the state: 1 resource. Fix the cause, then run `gemma teardown tpu-v6e1` again." in text
    assert "No leaked" not in text
    assert "No leaked resources except the retained ones below: " in text_of(replace(whole, leaked=(), state=()))
