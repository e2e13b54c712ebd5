"""Lifecycles of resources: waits, failures, partial creations, deletions, previews."""

import asyncio
import json

import grpc.aio
import pytest
from google.protobuf import empty_pb2
from pulumi.runtime.proto import provider_pb2

from localcloud.plugins import rest
from localcloud.tests.plugins.harness import (
    UNKNOWN,
    BareStore,
    InitFailedError,
    Recorder,
    Replay,
    Resource,
    created,
    declared,
    engine,
    from_struct,
    is_secret,
    on_engine,
    run,
    secret,
    to_struct,
)

SERVICE = "gcp:cloudrunv2/service:Service"
BUCKET = "gcp:storage/bucket:Bucket"
NETWORK = "gcp:compute/network:Network"
SECRET = "gcp:secretmanager/secret:Secret"
SECRET_INPUTS = {"secretId": "s", "replication": {"auto": {}}}
OPERATION = "projects/p1/locations/us-east4/operations/1"
SERVICE_PATH = "/run/v2/projects/p1/locations/us-east4/services/gemma"


def make_secret(attached, **inputs):
    return attached.up(SECRET, "s", {**SECRET_INPUTS, **inputs})


def service_inputs():
    return declared()["svc"]["inputs"]


class Run:
    """Cloud Run whose operations take some polls and finish as the test specifies."""

    def __init__(self, *, polls=2, error=None):
        self.left, self.error, self.stored = polls, error, None

    def __call__(self, request):
        if request.path.endswith(OPERATION):
            self.left -= 1
            done = self.left <= 0
            return {"name": OPERATION, "done": done, **({"error": self.error} if done and self.error else {})}
        if request.method == "GET":
            return self.stored or BareStore.missing(request.path)
        self.stored = {**request.body, "name": SERVICE_PATH.removeprefix("/run/v2/"), "uri": "https://x"}
        return {"name": OPERATION}


FAILED = {"code": 13, "message": "Revision 'gemma-00001-abc' is not ready and cannot serve traffic."}
CREATING = "Error waiting to create Service: Error waiting for Creating Service: Error code 13, message: Revision 'gemma-00001-abc' is not ready"


def test_a_failed_revision_leaves_the_service_in_the_state_and_the_next_update_sends_it_again():
    cloud = Run(error=FAILED)
    recorder = Recorder(cloud)

    async def work(attached):
        inputs = await attached.check(SERVICE, "svc", service_inputs())
        with pytest.raises(InitFailedError) as caught:
            await attached.create(SERVICE, "svc", inputs)
        cloud.left, cloud.error = 1, None
        kept = Resource(SERVICE, "svc", caught.value.id, inputs, caught.value.state)
        recorder.take()
        await attached.update(kept, inputs)
        return caught.value, kept

    error, kept = on_engine(recorder, work)
    assert error.reasons[0].startswith(CREATING)
    assert kept.id == "projects/p1/locations/us-east4/services/gemma"
    assert kept.state["template"]["containers"][0]["name"] == "vllm"
    assert [each.key for each in recorder.changes] == [("PATCH", SERVICE_PATH)]


def test_a_failed_update_keeps_what_the_service_is_now():
    cloud = Run(polls=1)

    async def work(attached):
        made = await attached.up(SERVICE, "svc", service_inputs())
        cloud.left, cloud.error = 1, FAILED
        with pytest.raises(InitFailedError) as caught:
            await attached.update(made, {**made.inputs, "description": "new"})
        return caught.value

    error = on_engine(cloud, work)
    assert "Error waiting to update Service: Error waiting for Updating Service" in error.reasons[0]
    assert error.state["description"] == "new"


TIMEOUT = "Error waiting for Creating Service: timeout while waiting for state to become"


@pytest.mark.parametrize(
    ("speed", "limit_s", "says"),
    [
        pytest.param(1.0, 0.1, TIMEOUT, id="the program's timeout"),
        pytest.param(10_000, 0, f"{TIMEOUT} 'done: true' (last state: 'done: false', timeout: 20m0s)", id="none"),
    ],
)
def test_a_wait_ends_at_the_programs_timeout_or_after_twenty_simulated_minutes_and_the_service_is_kept(
    monkeypatch, speed, limit_s, says
):
    monkeypatch.setattr(rest, "_LEAST_WAIT_S", 0.1)

    async def work(attached):
        inputs = await attached.check(SERVICE, "svc", service_inputs())
        await attached.create(SERVICE, "svc", inputs, limit_s=limit_s)

    with pytest.raises(InitFailedError) as caught:
        on_engine(Run(polls=10**6), work, speed=speed, limit_s=60)
    assert says in caught.value.reasons[0]
    assert caught.value.id.endswith("/services/gemma")


@pytest.mark.parametrize(
    "name", sorted(set(declared()) - {"member", "secretiam", "bucketiam", "repoiam", "svciam", "api", "nat"})
)
def test_what_was_created_is_kept_even_where_it_cannot_be_read_back(name):
    each = declared()[name]
    replay = Replay("create.jsonl")
    broken = True

    def answer(request):
        return (
            (403, {"error": {"code": 403, "message": "no reading"}})
            if broken and request.method == "GET"
            else replay(request)
        )

    async def work(attached):
        nonlocal broken
        inputs = await attached.check(each["type"], name, each["inputs"])
        with pytest.raises(InitFailedError, match="no reading") as caught:
            await attached.create(each["type"], name, inputs)
        broken = False
        return await attached.read(Resource(each["type"], name, caught.value.id, inputs, caught.value.state))

    assert on_engine(answer, work) is not None


def test_cancel_ends_no_wait_and_what_comes_into_being_is_recorded():
    """The real provider does not stop: after one Ctrl-C the engine gets every result that is under way."""
    cloud, polled = Run(polls=10**6), asyncio.Event()

    def answer(request):
        if request.path.endswith(OPERATION):
            polled.set()
        return cloud(request)

    async def work(attached):
        inputs = await attached.check(SERVICE, "svc", service_inputs())
        waiting = asyncio.ensure_future(attached.create(SERVICE, "svc", inputs))
        await polled.wait()
        await attached.stub.Cancel(empty_pb2.Empty())
        polled.clear()
        await polled.wait()
        cloud.left = 1
        return await waiting

    made = on_engine(answer, work)
    assert made.id.endswith("/gemma")
    assert made.state["uri"] == "https://x"


def test_a_protected_service_is_not_deleted():
    recorder = Recorder(Run(polls=1))

    async def work(attached):
        made = await attached.up(SERVICE, "svc", {**service_inputs(), "deletionProtection": True})
        recorder.take()
        await attached.delete(made)

    with pytest.raises(grpc.aio.AioRpcError, match="cannot destroy service without setting deletion_protection=false"):
        on_engine(recorder, work)
    assert recorder.sent == []


@pytest.mark.parametrize("name", sorted(declared()))
def test_what_is_gone_already_is_deleted_successfully_and_read_as_gone(name):
    resource = created()[1][name]

    def nothing_there(request):
        # Lists and policies of a project exist without anything in them.
        if request.path.endswith("/services") or request.path.startswith("/cloudresourcemanager/"):
            return {}
        return BareStore.missing(request.path)

    async def work(attached):
        await attached.delete(resource)
        return await attached.read(resource)

    assert on_engine(nothing_there, work) is None


def test_a_resource_that_exists_already_is_an_error_with_googles_words():
    message = "Secret [projects/p1/secrets/s] already exists."

    def answer(_request):
        return 409, {"error": {"code": 409, "message": message, "status": "ALREADY_EXISTS"}}

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        on_engine(answer, make_secret)
    assert caught.value.details() == f"Error creating Secret: googleapi: Error 409: {message}"


def test_a_compute_operation_that_fails_says_why():
    def answer(request):
        if "/operations/" in request.path:
            return {
                "name": "op",
                "status": "DONE",
                "error": {"errors": [{"code": "QUOTA", "message": "Quota 'NETWORKS' exceeded."}]},
            }
        return {"kind": "compute#operation", "name": "op", "status": "RUNNING"}

    with pytest.raises(grpc.aio.AioRpcError, match="Error waiting for Creating Network: Quota 'NETWORKS' exceeded"):
        on_engine(answer, lambda attached: attached.up(NETWORK, "net", {"name": "net"}))


def test_busy_answers_and_broken_connections_are_tried_again():
    store = BareStore()
    trouble = [429, 503, OSError("reset"), 500]

    def answer(request):
        if trouble:
            each = trouble.pop(0)
            if isinstance(each, OSError):
                raise each
            return each, {"error": {"code": each, "message": "later"}}
        return store(request)

    assert on_engine(answer, make_secret).id == "projects/p1/secrets/s"


def test_a_dead_endpoint_is_one_clear_sentence():
    def refuse(_request):
        raise OSError("no response from http://127.0.0.1:9: ClientConnectorError")

    with pytest.raises(grpc.aio.AioRpcError, match="Check that the local cloud is running"):
        on_engine(refuse, make_secret)


def test_a_policy_that_somebody_else_changes_meanwhile_is_read_and_written_again_and_keeps_their_change():
    audit = [{"service": "allServices", "auditLogConfigs": [{"logType": "DATA_READ"}]}]
    policy = {
        "etag": "1",
        "auditConfigs": audit,
        "bindings": [{"role": "roles/viewer", "members": ["user:x@example.com"]}],
    }
    conflicts = [{"role": "roles/editor", "members": ["user:y@example.com"]}]

    def answer(request):
        if request.path.endswith(":setIamPolicy"):
            if conflicts:
                policy["bindings"].append(conflicts.pop())
                policy["etag"] = "2"
                return 409, {"error": {"code": 409, "message": "There were concurrent policy changes."}}
            policy.update(request.body["policy"])
        return json.loads(json.dumps(policy))

    async def work(attached):
        inputs = {"project": "p1", "role": "roles/viewer", "member": "user:a@example.com"}
        made = await attached.up("gcp:projects/iAMMember:IAMMember", "m", inputs)
        after = json.loads(json.dumps(policy))
        await attached.delete(made)
        return made, after

    made, after = on_engine(answer, work)
    assert made.id == "p1/roles/viewer/user:a@example.com"
    both = [
        {"role": "roles/editor", "members": ["user:y@example.com"]},
        {"role": "roles/viewer", "members": ["user:a@example.com", "user:x@example.com"]},
    ]
    assert (after["bindings"], after["etag"], after["auditConfigs"]) == (both, "2", audit)
    assert policy["bindings"][1]["members"] == ["user:x@example.com"]


def bucket_with_objects():
    objects = [{"name": "a/b c", "generation": "1"}, {"name": "a/b c", "generation": "2"}]

    def answer(request):
        if request.path == "/storage/storage/v1/b/models/o":
            return {"items": objects}
        return {} if request.method == "DELETE" else BareStore.missing(request.path)

    return Recorder(answer)


def delete(recorder, kind, full_name, **state):
    on_engine(recorder, lambda attached: attached.delete(Resource(kind, "x", full_name, {}, state)))


def test_a_bucket_with_objects_stays_unless_force_destroy_is_set():
    recorder = bucket_with_objects()
    with pytest.raises(grpc.aio.AioRpcError, match="containing objects without `force_destroy` set to true"):
        delete(recorder, BUCKET, "models", name="models", forceDestroy=False)
    assert recorder.changes == []


def test_force_destroy_deletes_every_version_of_every_object_first():
    recorder = bucket_with_objects()
    delete(recorder, BUCKET, "models", name="models", forceDestroy=True)
    path = "/storage/storage/v1/b/models/o/a%2Fb%20c"
    gone = [(path, {"generation": "1"}), (path, {"generation": "2"}), ("/storage/storage/v1/b/models", {})]
    assert [(each.path, each.query) for each in recorder.changes] == gone


VERSION = "gcp:secretmanager/secretVersion:SecretVersion"


@pytest.mark.parametrize(
    ("kind", "full_name", "policy", "sent"),
    [
        (SECRET, "projects/p1/secrets/s", "ABANDON", []),
        (VERSION, "projects/p1/secrets/s/versions/1", "ABANDON", []),
        (VERSION, "projects/p1/secrets/s/versions/1", "DELETE", [":destroy"]),
        (VERSION, "projects/p1/secrets/s/versions/1", "DISABLE", [":disable"]),
    ],
)
def test_a_secret_and_its_version_end_as_their_deletion_policy_says(kind, full_name, policy, sent):
    recorder = Recorder(lambda _: {})
    delete(recorder, kind, full_name, secretId="s", deletionPolicy=policy)
    assert [each.path for each in recorder.sent] == [f"/secretmanager/v1/{full_name}{action}" for action in sent]


def test_the_deletion_policy_prevent_sends_nothing():
    recorder = Recorder(lambda _: {})
    with pytest.raises(grpc.aio.AioRpcError, match="its deletionPolicy is PREVENT"):
        delete(recorder, SECRET, "projects/p1/secrets/s", secretId="s", deletionPolicy="PREVENT")
    assert recorder.sent == []


@pytest.mark.parametrize("name", sorted(declared()))
def test_a_preview_has_no_effect_and_shows_unknowns_for_what_the_service_will_say(name):
    recorder = Recorder(lambda _: (500, {}))
    each = declared()[name]

    async def work(attached):
        inputs = await attached.check(each["type"], name, each["inputs"])
        return await attached.create(each["type"], name, inputs, preview=True)

    predicted = on_engine(recorder, work)
    assert recorder.sent == []
    assert predicted.id == ""
    for key, value in each["inputs"].items():
        known = predicted.state[key]
        assert is_secret(known) if is_secret(value) else known is not None


def test_a_preview_of_an_update_keeps_what_stays_and_hides_what_changes():
    made, recorder = created()[1]["svc"], Recorder(lambda _: (500, {}))
    news = {**made.inputs, "description": "new", "labels": {"a": "b"}}
    service = on_engine(recorder, lambda attached: attached.update(made, news, preview=True)).state
    assert recorder.sent == []
    assert (service["uri"], service["description"]) == ("https://svc-abc-uk.a.run.app", "new")
    assert service["effectiveLabels"] == {"a": "b", "goog-pulumi-provisioned": "true"}


def test_a_reference_that_is_not_known_yet_shows_as_a_change_and_replaces_where_a_change_would():
    made = created()[1]

    async def work(attached):
        firewall = await attached.diff(made["fw"], {**made["fw"].inputs, "network": UNKNOWN})
        subnet = await attached.diff(made["subnet"], {**made["subnet"].inputs, "network": UNKNOWN})
        labels = await attached.diff(made["secret"], {**made["secret"].inputs, "labels": {"managed-by": UNKNOWN}})
        return list(firewall.replaces), list(subnet.replaces), sorted(labels.detailedDiff)

    assert on_engine(Replay(), work) == ([], ["network"], ['labels["managed-by"]'])


def test_default_labels_and_the_attribution_label_follow_the_configuration():
    recorder = Recorder(BareStore())

    configuration = {"defaultLabels": '{"team":"ml"}', "addPulumiAttributionLabel": "false"}
    state = on_engine(recorder, lambda attached: make_secret(attached, labels={"a": "b"}), **configuration).state
    assert recorder.changes[0].body["labels"] == {"team": "ml", "a": "b"}
    assert (state["labels"], state["pulumiLabels"]) == ({"a": "b"}, {"team": "ml", "a": "b"})


def test_without_a_project_the_error_says_where_to_set_one():
    async def scenario():
        async with engine(Recorder(lambda _: {})) as attached:
            await attached.up("gcp:serviceaccount/account:Account", "sa", {"accountId": "gemma-server"})

    with pytest.raises(grpc.aio.AioRpcError, match=r"no project set\. Set it on the resource, as gcp:project"):
        run(scenario())


def test_secret_outputs_are_marked_and_no_error_shows_them():
    def answer(request):
        return (400, {"error": {"code": 400, "message": "no"}}) if request.path.endswith(":addVersion") else {}

    inputs = {"secret": "projects/p1/secrets/s", "secretData": secret("hf_canary")}
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        on_engine(answer, lambda attached: attached.up(VERSION, "v", inputs))
    assert "hf_canary" not in str(caught.value)
    assert created()[1]["version"].state["secretData"] == secret("hf_canary")


def test_data_sources_answer_from_the_cloud():
    def answer(request):
        if request.path == "/cloudresourcemanager/v1/projects/p1":
            return {"projectId": "p1", "projectNumber": "42", "name": "One"}
        if request.path == "/compute/compute/v1/projects/p1/regions/us-east5/routers":
            return {"items": [{"name": "r", "network": "n", "nats": []}]}
        return {}

    async def work(attached):
        answers = []
        for function, arguments in (
            ("organizations/getProject:getProject", {}),
            ("organizations/getClientConfig:getClientConfig", {}),
            ("compute/getRouters:getRouters", {"region": "us-east5"}),
            ("compute/getSubnetworks:getSubnetworks", {"project": "p2"}),
        ):
            asked = provider_pb2.InvokeRequest(tok=f"gcp:{function}", args=to_struct(arguments))
            answers.append(from_struct(getattr(await attached.stub.Invoke(asked), "return")))
        with pytest.raises(grpc.aio.AioRpcError, match="does not support the function gcp:x"):
            await attached.stub.Invoke(provider_pb2.InvokeRequest(tok="gcp:x"))
        return answers

    project, client, routers, subnetworks = on_engine(answer, work)
    assert (project["number"], project["projectId"]) == ("42", "p1")
    assert (client["project"], client["region"]) == ("p1", "us-east4")
    assert [one["name"] for one in routers["routers"]] == ["r"]
    assert (subnetworks["id"], subnetworks["subnetworks"]) == ("projects/p2/regions/us-east4/subnetworks", [])


def test_a_new_service_account_is_read_until_it_is_visible():
    each = declared()["sa"]
    replay = Replay("create.jsonl")
    hidden = [
        (404, "Unknown service account"),
        (403, "Permission 'iam.serviceAccounts.get' denied on resource (or it may not exist)."),
    ] * 3

    def answer(request):
        if request.method == "GET" and hidden:
            status, message = hidden.pop()
            return status, {"error": {"code": status, "message": message}}
        return replay(request)

    made = on_engine(answer, lambda attached: attached.up(each["type"], "sa", each["inputs"]))
    assert "/serviceAccounts/" in made.id
    assert hidden == []
