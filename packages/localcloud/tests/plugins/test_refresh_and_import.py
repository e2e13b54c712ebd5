"""Read: a refresh shows exactly the drift, and an import finds the inputs that produce the existing resource."""

import copy

import grpc.aio
import pytest

from localcloud.tests.plugins.harness import (
    Replay,
    Resource,
    created,
    declared,
    on_engine,
    secret,
)


def edited(replay, edits):
    """Answer as the recorded cloud after the creation, with out-of-band edits of what is read."""

    def answer(request):
        status, body = replay(request)
        if request.method == "GET" and request.path in edits:
            body = copy.deepcopy(body)
            edits[request.path](body)
        return status, body

    return answer


def read_again(edits=None, names=None):
    """Refresh the recorded resources after out-of-band edits; per resource the state before, the state read and the resulting diff."""

    replay, made = created()

    async def work(attached):
        found = {}
        for name in names or made:
            before = made[name]
            after = await attached.read(before)
            news = await attached.check(before.type, name, declared()[name]["inputs"], after.inputs)
            found[name] = (before, after, dict((await attached.diff(after, news)).detailedDiff))
        return found

    return on_engine(edited(replay, edits or {}), work)


def test_a_refresh_of_what_did_not_change_changes_neither_state_nor_inputs():
    for name, (before, after, details) in read_again().items():
        assert after.state == before.state, name
        assert after.inputs == before.inputs, name
        assert details == {}, name


def edit_service(body):
    body["template"]["maxInstanceRequestConcurrency"] = 80
    body["template"]["containers"][0]["env"].append({"name": "EXTRA", "value": "1"})
    body["description"] = "by hand"


def test_what_somebody_changed_shows_as_drift_and_the_next_update_takes_it_back():
    path = "/run/v2/projects/p1/locations/us-east4/services/gemma"
    _, after, details = read_again({path: edit_service}, ["svc"])["svc"]
    assert after.inputs["description"] == "by hand"
    assert set(details) == {"description", "template.maxInstanceRequestConcurrency", "template.containers[0].envs[0]"}


def test_an_ignored_property_is_no_drift():
    """The engine passes `ignoreChanges` on in the diff of a refresh (pulumi 3.256, pkg/resource/deploy/step.go, RefreshStep.Apply)."""
    replay, made = created()
    before = made["sa"]
    edits = {f"/iam/v1/{before.id}": lambda body: body.update(description="by hand")}

    async def work(attached):
        after = await attached.read(before)
        shown = await attached.diff(after, before.inputs)
        ignored = await attached.diff(after, before.inputs, ["description"])
        return after.inputs, dict(shown.detailedDiff), dict(ignored.detailedDiff)

    inputs, shown, ignored = on_engine(edited(replay, edits), work)
    assert inputs["description"] == "by hand"
    assert (set(shown), ignored) == ({"description"}, {})


def fill_in(body):
    """Google's values for properties that the program does not set."""
    body["launchStage"] = "GA"
    body["scaling"] = {"scalingMode": "AUTOMATIC"}
    body["template"]["containers"][0]["ports"][0]["name"] = "http1"
    body["template"]["containers"][0]["startupProbe"]["httpGet"]["port"] = 8000


def test_what_the_service_chooses_is_no_drift():
    path = "/run/v2/projects/p1/locations/us-east4/services/gemma"
    _, after, details = read_again({path: fill_in}, ["svc"])["svc"]
    assert (after.state["launchStage"], details) == ("GA", {})


def relabel(body):
    body["labels"] = {"managed-by": "somebody", "theirs": "x", "goog-pulumi-provisioned": "true"}


def test_labels_of_others_are_left_alone_and_changed_ones_of_ours_are_drift():
    _, after, details = read_again({"/secretmanager/v1/projects/p1/secrets/hf-token": relabel}, ["secret"])["secret"]
    assert after.state["effectiveLabels"]["theirs"] == "x"
    assert after.state["labels"] == {"managed-by": "somebody"}
    assert set(details) == {f'{family}["managed-by"]' for family in ("labels", "effectiveLabels", "pulumiLabels")}


def whole_network(body):
    body["network"] = "https://www.googleapis.com/compute/beta/projects/p1/global/networks/gemma"
    body["region"] = "https://www.googleapis.com/compute/beta/projects/p1/regions/us-east4"


def test_links_that_google_writes_out_in_full_are_no_drift():
    path = "/compute/compute/beta/projects/p1/regions/us-east4/subnetworks/gemma-us-east4"
    _, after, details = read_again({path: whole_network}, ["subnet"])["subnet"]
    assert (after.state["region"], details) == ("us-east4", {})
    assert after.state["network"] == "https://www.googleapis.com/compute/v1/projects/p1/global/networks/gemma"


IMPORTS = {
    "member": "p1 roles/logging.logWriter serviceAccount:gemma-server@p1.iam.gserviceaccount.com",
    "secretiam": "projects/p1/secrets/hf-token roles/secretmanager.secretAccessor serviceAccount:gemma-server@p1.iam.gserviceaccount.com",
    "bucketiam": "b/p1-models roles/storage.objectViewer serviceAccount:gemma-server@p1.iam.gserviceaccount.com",
    "repoiam": (
        "projects/p1/locations/us-east4/repositories/images roles/artifactregistry.reader "
        "serviceAccount:gemma-server@p1.iam.gserviceaccount.com"
    ),
    "svciam": "projects/p1/locations/us-east4/services/gemma roles/run.invoker user:a@example.com",
}


@pytest.mark.parametrize("name", sorted(declared()))
def test_an_imported_resource_is_what_the_program_says(name):
    replay, made = created()
    resource = made[name]

    def answer(request):
        return {"payload": {"data": "aGZfY2FuYXJ5"}} if request.path.endswith(":access") else replay(request)

    async def work(attached):
        imported = await attached.read(Resource(resource.type, name, IMPORTS.get(name, resource.id), {}, {}))
        news = await attached.check(resource.type, name, declared()[name]["inputs"])
        return imported, news, dict((await attached.diff(imported, news)).detailedDiff)

    imported, news, details = on_engine(answer, work)
    # The attribution label counts as another client's until the first update, and an imported service is protected until then.
    expected = {"deletionProtection"} if name == "svc" else set()
    assert {path for path in details if not path.startswith("pulumiLabels")} == expected
    written = {key for key, value in news.items() if value not in (False, 0, "") and key != "__defaults"}
    assert written <= set(imported.inputs)
    if name == "version":
        assert imported.state["secretData"] == imported.inputs["secretData"] == secret("hf_canary")


def test_an_id_of_the_wrong_shape_is_refused_with_the_right_one():
    named = Resource("gcp:secretmanager/secret:Secret", "s", "hf-token", {}, {})
    with pytest.raises(grpc.aio.AioRpcError, match="Import it as projects/<project>/secrets/<secretId>"):
        on_engine(Replay(), lambda attached: attached.read(named))
