"""Five stacks in a world with two of everything: projects, zones, regions, resources of a kind, and pages of a list."""

import json
import re
from dataclasses import replace
from functools import partial

from gemma_serving.cloud import google_api
from gemma_serving.cloud.clock import GOOGLE_CLOCK
from gemma_serving.cloud.deletion import delete_all
from gemma_serving.cloud.search import Scope, search
from gemma_serving.cloud.spending import spending
from localcloud.rest.call import page
from localcloud.services import compute_operations, service, storage, storage_objects
from tests.cloud.populated import PROJECT, asker, open_world, owner
from tests.cloud.test_deletion import Patience

PROJECTS = (PROJECT, "second-one")
STACKS = {"a": 0, "b": 1, "c": 0, "d": 1, "e": 0}
"""Number of the project of each stack."""
ZONES = ("us-east5-a", "us-east5-b")


def small_pages(items, *, size=None, default=0, maximum=0, **query):
    del size, default, maximum
    return page(items, size=2, **query)


def of_stack(world, stack):
    """Return what the cloud's own store has of a stack, by its names and labels."""
    marks = re.compile(rf'gemma-{stack}\b|gemma-serving-stack(?:": "|=){stack}\b')
    rows = [
        (kind, name, document)
        for kind, found in world.cloud.cloud.store._kinds.items()
        for name, document in found.items()
    ]
    names = {name for _, name, document in rows if marks.search(f"{name} {json.dumps(document)}")}
    return names & world.resources()


def test_of_five_stacks_each_is_found_whole_priced_and_deleted_alone(monkeypatch):
    for module in (compute_operations, service, storage, storage_objects):
        monkeypatch.setattr(module, "page", small_pages)
    with open_world() as first:
        url = f"{first.cloud.base_url}/admin/projects"
        first.api.session.post(url, json={"projectId": PROJECTS[1]}, timeout=30).raise_for_status()
        for stack, number in STACKS.items():
            world, labels = replace(first, project=PROJECTS[number]), owner(stack).labels
            world.everything(stack, ZONES[number])
            world.secret(f"gemma-{stack}-more", labels)
            world.bucket(f"{PROJECTS[number]}-gemma-{stack}-more", labels, "m/config.json")
            world.service(f"gemma-{stack}", labels, "europe-west1", minInstanceCount=0)
            world.queued(f"gemma-{stack}-more", labels, ZONES[1 - number], form="SPOT")
        api, said = google_api.connect(*PROJECTS), {}
        look = partial(search, api, clock=Patience().clock)
        everything = look(Scope(projects=PROJECTS, asker=asker(None)))
        assert everything.unknown == ()
        assert all(item.labels["gemma-serving-stack"] == item.owner.stack for item in everything.found)
        priced = spending(api, everything.found, GOOGLE_CLOCK.now())
        assert [one.usd_per_hour for one in priced] == [priced[0].usd_per_hour] * len(STACKS)
        assert priced[0].usd_per_hour > 2 * 5.4, "two slices and a warm instance"
        for stack, number in STACKS.items():
            others = {other: of_stack(first, other) for other in STACKS if other not in {stack, *said}}
            found = look(Scope(projects=[PROJECTS[number]], asker=asker(stack))).found
            names = {item.name.rpartition("/")[2] for item in found if item.kind != "IAM grant"}
            assert names == {name.rpartition("/")[2] for name in of_stack(first, stack)}
            said[stack] = {
                item.outcome
                for item in delete_all(api, found, asker(stack), report=lambda _: None, clock=Patience().clock)
            }
            assert (said[stack] <= {"deleted", "already deleted"}, of_stack(first, stack)) == (True, set())
            assert {other: of_stack(first, other) for other in others} == others
