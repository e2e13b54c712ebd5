"""The check of hand-made bodies refuses what Google's documents do not have."""

import pytest

from gcp_tpu_provider.tests.google_bodies import google_answer, google_body, google_request

ZONE = "tpu/v2alpha1/projects/p/locations/us-east5-a"
QUEUED = {"name": "projects/p/locations/us-east5-a/queuedResources/q", "state": {"state": "ACTIVE"}}


def test_a_body_that_the_document_has_is_returned():
    page = {"queuedResources": [QUEUED], "unreachable": ["us-east5-b"]}
    assert google_answer("GET", f"{ZONE}/queuedResources", page) is page
    assert google_request("POST", f"{ZONE}/queuedResources?queuedResourceId=q", {"tpu": {"nodeSpec": []}})


@pytest.mark.parametrize(
    ("change", "mistake"),
    [
        ({"labels": {"a": "b"}}, "QueuedResource has no field labels"),
        ({"state": {"state": "RUNNING"}}, "QueuedResource.state.state is 'RUNNING', which is none of its values"),
        ({"state": "ACTIVE"}, "QueuedResource.state is 'ACTIVE', not of type object"),
        ({"createTime": "t"}, "QueuedResource.createTime is 't', not a google-datetime"),
        (
            {"tpu": {"nodeSpec": [{"node": {"labels": {"a": 1}}}]}},
            r"nodeSpec\[0\].node.labels.a is 1, not of type string",
        ),
    ],
)
def test_a_body_of_imagination_is_refused(change, mistake):
    with pytest.raises(AssertionError, match=mistake):
        google_body("tpu.v2alpha1", "QueuedResource", {**QUEUED, **change})


def test_a_path_that_is_no_method_is_refused():
    with pytest.raises(AssertionError, match="is not a method of"):
        google_answer("GET", f"{ZONE}/queuedThings", {})
