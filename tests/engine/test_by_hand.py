"""What a person changed outside Pulumi, with the real CLI: `status`, `preview` and `up` report the same, and `up` undoes it."""

import pytest

from tests.engine.conftest import PROJECT

STACK = "l4-12b-qat"
SERVICE = f"run/v2/projects/{PROJECT}/locations/us-east4/services/gemma-{STACK}"

pytestmark = [pytest.mark.engine, pytest.mark.long]


@pytest.fixture(scope="module")
def deployed(workspace):
    workspace.pulumi("stack", "init", STACK)
    workspace.stage(STACK)
    up(workspace)
    return workspace


def service(workspace):
    return workspace.call("GET", SERVICE)


def short(revision):
    return revision.rpartition("/")[2]


def patch(workspace, **fields):
    """Change a service as its owner does in the console, and return the error of the operation, or None."""
    operation = workspace.call("PATCH", SERVICE, fields, updateMask=",".join(fields))
    return workspace.post(f"run/v2/{operation['name']}:wait", {}).get("error")


def serve(workspace, revision):
    target = {"type": "TRAFFIC_TARGET_ALLOCATION_TYPE_REVISION", "revision": short(revision), "percent": 100}
    return patch(workspace, traffic=[target])


def status(workspace):
    (found,) = workspace.script("status", "--stack", STACK, "--json").json["stacks"]
    return found


def preview(workspace):
    return workspace.script("preview", "run", "--stack", STACK).out


def up(workspace, *options, **expected):
    return workspace.script("up", "--stack", STACK, "--yes", *options, **expected).text


def assert_undone(workspace, said, effect):
    """Check that all three commands report a difference, and that `up` leaves none. Return what `up` printed."""
    for show in (preview, up):
        shown = show(workspace)
        assert effect in shown
        assert said in shown
    after = status(workspace)
    assert (after["drift"], after["next_command"]) == ([], f"gemma connect {STACK}")
    return shown


def test_a_changed_template_is_undone_and_its_price_is_said(deployed):
    template = service(deployed)["template"]
    template["scaling"] = {"minInstanceCount": 1, "maxInstanceCount": 3}
    template["containers"][0]["env"].append({"name": "BY_HAND", "value": "1"})
    patch(deployed, template=template)
    found = status(deployed)
    (said,) = found["drift"]
    assert said.startswith("The revision was changed outside Pulumi: ")
    assert found["next_command"] == f"gemma up {STACK} --refresh"
    shown = assert_undone(deployed, said, f"{STACK}: creates a new revision.")
    assert "minInstances: 1 -> 0, maxInstances: 3 -> 1, BY_HAND: 1 -> not set, creates a new revision" in shown
    assert "Cost: $1.05/h while idle, up to $3.14/h now; then $0.00/h while idle" in shown
    assert service(deployed)["template"]["scaling"] == {"maxInstanceCount": 1}
    assert "BY_HAND" not in str(service(deployed))


def test_a_scaling_of_the_whole_service_makes_no_revision_and_is_undone(deployed):
    before = service(deployed)["latestReadyRevision"]
    patch(deployed, scaling={"minInstanceCount": 1})
    (said,) = status(deployed)["drift"]
    assert said == "The scaling of the service was changed outside Pulumi: minInstanceCount 1."
    assert_undone(deployed, said, f"{STACK}: updates other resources; the server keeps running.")
    assert not service(deployed).get("scaling")
    assert service(deployed)["latestReadyRevision"] == before


def test_moved_traffic_is_reported_and_stays_until_the_service_changes(deployed):
    names = [item["name"] for item in deployed.call("GET", f"{SERVICE}/revisions")["revisions"]]
    new = service(deployed)["latestReadyRevision"]
    old = next(name for name in names if name != new)

    assert serve(deployed, old) is None
    found = status(deployed)
    (said,) = found["drift"]
    assert said.startswith(f"Traffic was moved outside Pulumi: 100 % {short(old)}. It stays until")
    assert found["next_command"] == f"gemma connect {STACK}"
    shown = preview(deployed)
    assert f"{STACK}: no change to running resources." in shown
    assert said in shown
    shown = up(deployed)
    assert f"{STACK}: no changes" in shown
    assert said in shown
    assert status(deployed)["drift"] == [said]
    up(deployed, "--refresh")
    assert status(deployed)["drift"] == []
    serve(deployed, old)
    deployed.configure(STACK, **{"vllm.maxNumSeqs": 8})
    up(deployed)
    assert status(deployed)["cloud"]["traffic"] == {short(service(deployed)["latestReadyRevision"]): 100}


def test_a_deleted_service_is_created_again(deployed):
    deployed.call("DELETE", SERVICE)
    found = status(deployed)
    assert (found["serves"]["word"], found["next_command"]) == ("ended", f"gemma up {STACK}")
    assert_undone(deployed, found["serves"]["why"], f"{STACK}: creates the service.")
