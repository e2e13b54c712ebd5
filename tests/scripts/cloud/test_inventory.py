"""What is left of a stack is found by its labels, and what is not ours is never named."""

import pytest

from contracts.labels import Ownership
from scripts.cloud.google_api import GoogleListError
from scripts.cloud.inventory import KINDS, SearchScope, belongs, search
from scripts.errors import ScriptError

OWNER = Ownership(project="gemma-serving", stack="x")
LABELS = {"managed-by": "gemma-serving", "gemma-serving-project": "gemma-serving", "gemma-serving-stack": "x"}
SCOPE = SearchScope(
    project="my-project",
    regions=["us-east5"],
    zones=["us-east5-a", "us-east5-b"],
    owner=OWNER,
)


class Cloud:
    """Answers list methods from a table of path -> pages."""

    def __init__(self, answers):
        self.answers = answers
        self.asked = []

    def pages(self, api, path):
        self.asked.append((api, path))
        answer = self.answers.get((api, path), [{}])
        if isinstance(answer, Exception):
            raise answer
        yield from answer


QUEUED = ("tpu", "v2alpha1/projects/my-project/locations/us-east5-b/queuedResources")
NETWORKS = ("compute", "compute/v1/projects/my-project/global/networks")


def queued(name, labels):
    return {"name": f"projects/my-project/locations/us-east5-b/queuedResources/{name}", "labels": labels}


def test_an_empty_cloud_proves_that_nothing_is_left_and_every_zone_was_looked_at():
    cloud = Cloud({})
    assert list(search(cloud, SCOPE)) == []
    assert QUEUED in cloud.asked
    assert {api for api, _ in cloud.asked} == {kind.api for kind in KINDS}


def test_what_carries_our_labels_is_found_on_every_page_with_the_command_that_deletes_it():
    pages = [
        {"queuedResources": [queued("theirs", {"managed-by": "hand"})]},
        {"queuedResources": [queued("ours", LABELS)]},
    ]
    (found,) = search(Cloud({QUEUED: pages}), SCOPE)
    assert found.name.endswith("/queuedResources/ours")
    assert (
        found.command
        == "gcloud alpha compute tpus queued-resources delete ours --project=my-project --zone=us-east5-b --force"
    )


@pytest.mark.parametrize(
    ("item", "ours"),
    [
        ({"labels": dict(LABELS)}, True),
        ({"labels": {**LABELS, "gemma-serving-stack": "y"}}, False),
        ({"labels": {"managed-by": "gemma-serving"}}, False),
        ({"description": "managed-by=gemma-serving gemma-serving-project=gemma-serving gemma-serving-stack=x"}, True),
        ({"description": "managed-by=gemma-serving gemma-serving-project=gemma-serving gemma-serving-stack=xy"}, False),
        ({}, False),
    ],
)
def test_ours_means_all_three_labels_or_all_three_words(item, ours):
    assert belongs(item, OWNER) is ours


def test_a_network_is_found_by_its_description():
    item = {
        "name": "gemma-x",
        "selfLink": "https://x/compute/v1/projects/my-project/global/networks/gemma-x",
        "description": "managed-by=gemma-serving gemma-serving-project=gemma-serving gemma-serving-stack=x",
    }
    (found,) = search(Cloud({NETWORKS: [{"items": [item]}]}), SCOPE)
    assert found.name == "projects/my-project/global/networks/gemma-x"
    assert found.command == "gcloud compute networks delete gemma-x --project=my-project"


@pytest.mark.parametrize(
    "error", [GoogleListError(403, "disabled", "SERVICE_DISABLED"), GoogleListError(404, "no such location", "")]
)
def test_an_api_that_is_off_or_a_place_that_does_not_exist_holds_nothing(error):
    assert list(search(Cloud({QUEUED: error}), SCOPE)) == []


def test_what_cannot_be_read_is_not_called_gone():
    with pytest.raises(ScriptError, match="Could not check whether a TPU queued resource still exists"):
        list(search(Cloud({QUEUED: GoogleListError(403, "permission denied", "")}), SCOPE))
