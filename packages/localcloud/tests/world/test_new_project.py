"""A project made a moment ago: APIs that are off, changes that take effect late, service agents that do not exist."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from localcloud.tests import idle_cloud
from localcloud.tests.conftest import Client, gcloud_itself
from localcloud.world.scenario import (
    BUILT_IN,
    DEFAULT_WORLD,
    OperationDurations,
    Scenario,
    ScenarioError,
    load,
)

P = "projects/local-project"
PROJECT = f"/cloudresourcemanager/v1/{P}"
ACCOUNT = f"server@{P.rpartition('/')[2]}.iam.gserviceaccount.com"


@pytest.fixture
def cloud() -> Iterator[Client]:
    """A new project in a simulation whose clock is frozen between two calls."""
    scenario = BUILT_IN["new-project"].model_copy(update={"operations": OperationDurations(instant=True)})
    with idle_cloud.start(scenario=scenario, speed=0.001) as started:
        yield Client(started.base_url, started.token)


def enable(cloud, *names, wait_s=0.0):
    for name in names:
        cloud.ok("POST", f"/serviceusage/v1/{P}/services/{name}.googleapis.com:enable", {})
    pass_time(cloud, wait_s)


def pass_time(cloud, seconds):
    cloud.ok("POST", "/admin/advance", {"seconds": seconds})


def grant(cloud, role, member):
    policy = cloud.ok("POST", f"{PROJECT}:getIamPolicy", {})
    bindings = [*policy["bindings"], {"role": role, "members": [member]}]
    return cloud.call("POST", f"{PROJECT}:setIamPolicy", {"policy": {**policy, "bindings": bindings}})


def test_service_usage_answers_and_cloud_resource_manager_does_not(cloud):
    listed = cloud.ok("GET", f"/serviceusage/v1/{P}/services", filter="state:ENABLED", pageSize=200)["services"]
    enabled = {service["name"].rpartition("/")[2] for service in listed if service["state"] == "ENABLED"}
    assert "serviceusage.googleapis.com" in enabled
    assert not {"cloudresourcemanager.googleapis.com", "iam.googleapis.com", "compute.googleapis.com"} & enabled
    status, answer = cloud.call("GET", PROJECT)
    assert status == 403
    assert answer["error"]["message"].startswith("Cloud Resource Manager API has not been used in project ")
    assert answer["error"]["details"][0]["reason"] == "SERVICE_DISABLED"


def test_a_disabled_api_answers_with_errors_only_if_the_scenario_says_so(cloud):
    assert "errors" not in cloud.call("GET", PROJECT)[1]["error"]
    cloud.ok("PUT", "/admin/scenario", {"services": {"disabled_form": "errors"}}, merge="true")
    (listed,) = cloud.call("GET", PROJECT)[1]["error"]["errors"]
    assert listed["reason"] == "accessNotConfigured"


def test_an_enabled_api_is_listed_at_once_and_answers_two_minutes_later(cloud):
    enable(cloud, "cloudresourcemanager")
    found = cloud.ok("GET", f"/serviceusage/v1/{P}/services/cloudresourcemanager.googleapis.com")
    assert found["state"] == "ENABLED"
    assert "wait a few minutes for the action to propagate" in cloud.error("GET", PROJECT)[1]
    pass_time(cloud, 119)
    enable(cloud, "cloudresourcemanager")
    assert cloud.error("GET", PROJECT)[0] == 403
    pass_time(cloud, 1)
    assert cloud.ok("GET", PROJECT)["projectId"] == "local-project"


def test_a_new_account_is_read_late_and_used_later(cloud):
    enable(cloud, "cloudresourcemanager", "iam", wait_s=120)
    accounts = f"/iam/v1/{P}/serviceAccounts"
    cloud.ok("POST", accounts, {"accountId": "server"})
    assert cloud.error("GET", f"{accounts}/{ACCOUNT}")[0] == 404
    assert cloud.error("POST", accounts, {"accountId": "server"})[0] == 409
    pass_time(cloud, 30)
    assert cloud.ok("GET", f"{accounts}/{ACCOUNT}")["email"] == ACCOUNT
    status, answer = grant(cloud, "roles/viewer", f"serviceAccount:{ACCOUNT}")
    assert (status, answer["error"]["message"]) == (400, f"Service account {ACCOUNT} does not exist.")
    pass_time(cloud, 30)
    assert grant(cloud, "roles/viewer", f"serviceAccount:{ACCOUNT}")[0] == 200


def test_a_grant_is_shown_at_once_and_takes_effect_two_minutes_later(cloud):
    enable(cloud, "cloudresourcemanager", "secretmanager", wait_s=120)
    assert grant(cloud, "roles/secretmanager.admin", "user:ann@example.com")[0] == 200
    ann = cloud.as_caller("ann@example.com", **gcloud_itself())
    secrets = f"/secretmanager/v1/{P}/secrets"
    assert ann.error("GET", secrets)[0] == 403
    pass_time(cloud, 60)
    # Another change of the policy neither hastens nor delays the first grant.
    assert grant(cloud, "roles/viewer", "user:bob@example.com")[0] == 200
    assert ann.error("GET", secrets)[0] == 403
    pass_time(cloud, 60)
    ann.ok("GET", secrets)


def test_a_service_agent_exists_after_the_first_use_of_its_api(cloud):
    enable(cloud, "cloudresourcemanager", "run", wait_s=120)
    number = cloud.ok("GET", PROJECT)["projectNumber"]
    agent = f"service-{number}@serverless-robot-prod.iam.gserviceaccount.com"
    status, answer = grant(cloud, "roles/viewer", f"serviceAccount:{agent}")
    assert (status, answer["error"]["message"]) == (400, f"Service account {agent} does not exist.")
    cloud.ok("GET", f"/run/v2/{P}/locations/us-east4/services")
    assert grant(cloud, "roles/viewer", f"serviceAccount:{agent}")[0] == 200


def test_a_service_agent_can_be_asked_for_before_the_first_use(cloud):
    enable(cloud, "cloudresourcemanager", "artifactregistry", wait_s=120)
    service = f"/serviceusage/v1beta1/{P}/services/artifactregistry.googleapis.com"
    operation = cloud.ok("POST", f"{service}:generateServiceIdentity", {})
    email = operation["response"]["email"]
    assert email.endswith("@gcp-sa-artifactregistry.iam.gserviceaccount.com")
    assert grant(cloud, "roles/viewer", f"serviceAccount:{email}")[0] == 200
    storage = service.replace("artifactregistry.", "storage.")
    assert cloud.error("POST", f"{storage}:generateServiceIdentity", {})[0] == 400


def test_a_scenario_is_found_by_its_name():
    assert load(Path("new-project")) is BUILT_IN["new-project"]
    none = load(Path("new-project-without-quota"))
    assert none.run.gpus_of("us-east4", "nvidia-l4", zonal=False) == 0
    assert load(Path("prepared")) == Scenario()


def test_a_new_project_has_the_least_quota_that_sources_name():
    """20 vCPU, 40 GiB and three L4; no RTX PRO 6000, no chips."""
    new, zones = load(Path(DEFAULT_WORLD)), ("us-east5-a", "us-west4-a")
    assert (new.run.cpus_of("us-east4"), new.run.memory_gib_of("us-east4")) == (20, 40)
    gpus = [new.run.gpus_of("us-central1", kind, zonal=False) for kind in ("nvidia-l4", "nvidia-rtx-pro-6000")]
    assert gpus == [3, 0]
    chips = {new.tpu.chips_of(new.tpu.zones[zone], preemptible=kind) for zone in zones for kind in (True, False)}
    assert chips == {0}


@pytest.mark.parametrize(("text", "chips", "memory"), [("", 0, 40), ("base: prepared\n", 64, 400)])
def test_a_file_changes_what_it_names_of_its_base(tmp_path, text, chips, memory):
    path = tmp_path / "world.yaml"
    zone = "us-east5-a: {accelerator_types: [v6e-4], flex_start: true, capacity: {v6e-4: 0}}"
    path.write_text(f"{text}run: {{cpu_quota: 24}}\ntpu: {{zones: {{{zone}}}}}\n")
    found = load(path)
    assert list(found.tpu.zones) == ["us-east5-a"]
    assert found.tpu.chips_of(found.tpu.zones["us-east5-a"], preemptible=True) == chips
    assert (found.run.cpus_of("us-east4"), found.run.memory_gib_of("us-east4")) == (24, memory)


def test_a_base_that_does_not_exist_is_refused(tmp_path):
    path = tmp_path / "world.yaml"
    path.write_text("base: rich\n")
    with pytest.raises(ScenarioError, match=r"base is 'rich', expected one of new-project, prepared, "):
        load(path)


def test_in_an_empty_project_the_login_has_no_role_and_gclouds_login_is_the_owner():
    scenario = BUILT_IN["empty-project"].model_copy(update={"operations": OperationDurations(instant=True)})
    with idle_cloud.start(scenario=scenario, speed=0.001) as started:
        own = Client(started.base_url, token=started.token)
        services = f"/serviceusage/v1/{P}/services/cloudresourcemanager.googleapis.com"
        status, message = own.error("GET", services)
        assert (status, message.startswith("Permission 'serviceusage.services.get' denied")) == (403, True)
        known = own.ok("POST", "/admin/tokens", {"owner": True})
        assert known["email"] == "owner@example.com"
        owner = Client(started.base_url, token=known["accessToken"], headers=gcloud_itself())
        assert owner.ok("POST", f"{services}:enable", {})["done"]
        pass_time(own, 120)
        operator = f"serviceAccount:local-operator@{P.rpartition('/')[2]}.iam.gserviceaccount.com"
        assert grant(owner, "roles/serviceusage.serviceUsageViewer", operator)[0] == 200
        assert own.error("GET", services)[0] == 403
        pass_time(own, 120)
        assert own.ok("GET", services)["state"] == "ENABLED"
        assert own.error("POST", f"{services}:enable", {})[0] == 403


def test_a_use_of_a_new_account_can_be_refused_however_late_it_comes(cloud):
    """On a slow machine, simulated time has passed, but the rejection must still occur."""
    cloud.ok("PUT", "/admin/scenario?merge=true", {"iam": {"new_account_refusals": 1}})
    enable(cloud, "cloudresourcemanager", "iam", wait_s=120)
    cloud.ok("POST", f"/iam/v1/{P}/serviceAccounts", {"accountId": "server"})
    pass_time(cloud, 3600)
    assert grant(cloud, "roles/viewer", f"serviceAccount:{ACCOUNT}")[0] == 400
    assert grant(cloud, "roles/viewer", f"serviceAccount:{ACCOUNT}")[0] == 200
