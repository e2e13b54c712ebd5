"""The project that the provider's calls count against, and the billing request, as in the real provider."""

import grpc.aio
import pytest
from pulumi.runtime.proto import provider_pb2

from localcloud.rest.errors import CloudError, ErrorStyle
from localcloud.tests.plugins.harness import Recorder, engine, run, to_struct

PROJECT, BILLING = "/cloudresourcemanager/v1/projects/p1", "/cloudbilling/v1/projects/p1/billingInfo"
OFF = CloudError.service_disabled("Cloud Billing API", "cloudbilling", "42").body(ErrorStyle.RPC)
DENIED = CloudError.denied("The caller does not have permission").body(ErrorStyle.RPC)


def get_project(answer, **configuration):
    """Request the project as the program does first, and return the requests."""

    async def scenario():
        recorder = Recorder(answer)
        async with engine(recorder, project="p1", region="us-east4", **configuration) as attached:
            asked = provider_pb2.InvokeRequest(tok="gcp:organizations/getProject:getProject", args=to_struct({}))
            await attached.stub.Invoke(asked)
        return recorder.sent

    return run(scenario())


def fine(_request):
    return {"projectId": "p1"}


def test_the_project_and_then_its_billing_are_read():
    assert [each.path for each in get_project(fine)] == [PROJECT, BILLING]


def test_a_billing_api_that_is_off_is_tolerated_and_any_other_refusal_is_not():
    def answer(status, body):
        return lambda request: (status, body) if request.path == BILLING else fine(request)

    assert len(get_project(answer(403, OFF))) == 2
    with pytest.raises(grpc.aio.AioRpcError, match="does not have permission"):
        get_project(answer(403, DENIED))


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
