"""The project that the provider's calls count against, and the billing request, as in the real provider."""

import grpc.aio
import pytest
from pulumi.runtime.proto import provider_pb2

from localcloud.rest.errors import CloudError, ErrorStyle
from localcloud.tests.plugins.harness import Recorder, on_engine, to_struct

PROJECT, BILLING = "/cloudresourcemanager/v1/projects/p1", "/cloudbilling/v1/projects/p1/billingInfo"
OFF, OFF_WITH_ERRORS = (
    CloudError.service_disabled("Cloud Billing API", "cloudbilling", "42", has_errors=each).body(ErrorStyle.RPC)
    for each in (False, True)
)
DENIED = CloudError.denied("The caller does not have permission").body(ErrorStyle.RPC)


def get_project(answer, **configuration):
    """Request the project as the program does first, and return the requests."""
    recorder = Recorder(answer)
    asked = provider_pb2.InvokeRequest(tok="gcp:organizations/getProject:getProject", args=to_struct({}))
    on_engine(recorder, lambda attached: attached.stub.Invoke(asked), **configuration)
    return recorder.sent


def fine(_request):
    return {"projectId": "p1"}


def test_the_project_and_then_its_billing_are_read():
    assert [each.path for each in get_project(fine)] == [PROJECT, BILLING]


def refused(body):
    return lambda request: (403, body) if request.path == BILLING else fine(request)


def test_a_billing_api_that_is_off_is_tolerated_in_the_form_with_errors():
    assert len(get_project(refused(OFF_WITH_ERRORS))) == 2


@pytest.mark.parametrize(
    ("body", "words"), [(OFF, "Cloud Billing API has not been used"), (DENIED, "does not have permission")]
)
def test_a_billing_api_that_is_off_without_errors_and_any_other_refusal_end_the_program(body, words):
    with pytest.raises(grpc.aio.AioRpcError, match=words):
        get_project(refused(body))


@pytest.mark.parametrize(
    ("configuration", "named"),
    [
        ({}, None),
        ({"billingProject": "p1"}, None),
        ({"userProjectOverride": "true", "billingProject": "p1"}, "p1"),
    ],
)
def test_calls_name_a_project_for_quota_only_where_the_program_says_so(configuration, named):
    sent = get_project(fine, **configuration)
    assert {each.headers.get("X-Goog-User-Project") for each in sent} == {named}
