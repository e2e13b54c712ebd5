"""Cloud Run's own rules: limits of templates, references of revisions, invokers, traffic."""

import copy
import time

import pytest

from localcloud.services.run import authorizer
from localcloud.tests.conftest import grant
from localcloud.world.runtime import AccessDecision

P = "projects/local-project"
SERVICES = f"/run/v2/{P}/locations/us-east4/services"
PROBE = {
    "httpGet": {"path": "/health", "port": 8000},
    "initialDelaySeconds": 240,
    "periodSeconds": 60,
    "timeoutSeconds": 60,
    "failureThreshold": 30,
}
GPU = {
    "template": {
        "containers": [
            {
                "image": "docker.io/vllm/vllm-openai:v1",
                "ports": [{"containerPort": 8000}],
                "resources": {"limits": {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "1"}, "startupCpuBoost": True},
                "startupProbe": PROBE,
            }
        ],
        "gpuZonalRedundancyDisabled": True,
        "nodeSelector": {"accelerator": "nvidia-l4"},
        "scaling": {"maxInstanceCount": 1},
    }
}
CPU, MEMORY = "CpuAllocPerProjectRegion", "MemAllocPerProjectRegion"
PLAIN = {"template": {"containers": [{"image": "docker.io/x"}]}}


def changed(body, path, value):
    """A copy with one value set or (None) removed."""
    result = copy.deepcopy(body)
    at = result
    *steps, last = path.split(".")
    for step in steps:
        at = at[int(step)] if isinstance(at, list) else at.setdefault(step, {})
    if value is None:
        at.pop(last)
    else:
        at[last] = value
    return result


def deploy(client, name, body, parent=SERVICES):
    operation = client.ok("POST", parent, body, serviceId=name)
    return client.ok("POST", f"/run/v2/{operation['name']}:wait", {"timeout": "20s"})


def patched(client, name, body, **query):
    operation = client.ok("PATCH", f"{SERVICES}/{name}", body, **query)
    return client.ok("POST", f"/run/v2/{operation['name']}:wait", {"timeout": "20s"})


def await_running(started, revisions):
    """An instance without traffic stops after its last request, which is after the operation has finished."""
    end = time.monotonic() + 20
    while started.cloud.runtimes.revisions.running != revisions and time.monotonic() < end:
        time.sleep(0.005)  # the stop has no operation and comes in the thread of the server
    assert started.cloud.runtimes.revisions.running == revisions


CONTAINER = "template.containers.0"
GPU_LIMIT = "nvidia.com/gpu"
NAMED = {"image": "docker.io/x", "name": "x", "ports": [{"containerPort": 8000}]}
VOLUMES = [{"name": "v", "emptyDir": {"medium": "MEMORY"}}]
LATE = {"httpGet": {}, "initialDelaySeconds": 1}
LONG = {"httpGet": {}, "periodSeconds": 5, "timeoutSeconds": 6}


LATEST = "TRAFFIC_TARGET_ALLOCATION_TYPE_LATEST"
NO_NETWORK = {"networkInterfaces": [{"network": "nonet", "subnetwork": "nosub"}]}
NO_REPOSITORY = "us-east4-docker.pkg.dev/local-project/norepo"
TWO_SOURCES = {"name": "X", "value": "x", "valueSource": {"secretKeyRef": {"secret": "s"}}}


def of_secret(name):
    return {"name": "T", "valueSource": {"secretKeyRef": {"secret": name, "version": "latest"}}}


def limits(cpu, memory, gpus="1"):
    return {"cpu": cpu, "memory": memory, GPU_LIMIT: gpus}


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            f"{CONTAINER}.startupProbe.initialDelaySeconds",
            241,
            "initial_delay_seconds: must be from 0 to 240; given 241",
        ),
        (f"{CONTAINER}.startupProbe.periodSeconds", 241, "period_seconds: must be from 1 to 240; given 241"),
        (f"{CONTAINER}.startupProbe.failureThreshold", 31, "must not exceed 1800 seconds with a GPU"),
        (f"{CONTAINER}.startupProbe.timeoutSeconds", 61, "must not be greater than period_seconds"),
        (f"{CONTAINER}.startupProbe.tcpSocket", {"port": 8000}, "exactly one of httpGet, tcpSocket, grpc"),
        (f"{CONTAINER}.resources.limits.cpu", "2", "at least 8 CPU are needed; given 2"),
        (f"{CONTAINER}.resources.limits.cpu", "7", "The supported values are 1, 2, 4, 6 and 8; given 7"),
        (f"{CONTAINER}.resources.limits", limits("8", "12Gi"), "needs at least 16Gi of memory; given 12Gi"),
        (f"{CONTAINER}.resources.limits", limits("2", "8Gi"), "needs at least 4 CPU; given 2"),
        (f"{CONTAINER}.resources.limits", limits("8", "32Gi", "2"), "one GPU per instance is allowed; given 2"),
        (f"{CONTAINER}.resources.limits.memory", "64Gi", "Maximum 32Gi allowed; given 64Gi"),
        (f"{CONTAINER}.resources.cpuIdle", True, "cpu_idle: must be false with a GPU"),
        ("template.nodeSelector.accelerator", "nvidia-h100", "'nvidia-h100' is not a GPU type"),
        ("template.nodeSelector.accelerator", "nvidia-rtx-pro-6000", "is not available in region us-east4"),
        ("template.nodeSelector", None, "needs a node selector with an accelerator"),
        ("template.scaling.maxInstanceCount", 4, "must be set to 3 or fewer in order to set GPU requirements"),
        ("template.gpuZonalRedundancyDisabled", None, "You do not have quota for using GPUs with zonal redundancy"),
        ("template.maxInstanceRequestConcurrency", 1001, "must be from 1 to 1000; given 1001"),
        ("template.timeout", "3601s", "must be from 1s to 3600s; given 3601s"),
        ("template.volumes", [{"name": "v"}], "exactly one source must be given"),
        (f"{CONTAINER}.image", None, "Expected an image path like [host/]repo-path"),
        (f"{CONTAINER}.image", "ghcr.io/a/b:1", "[region-]docker.pkg.dev or docker.io but obtained ghcr.io/a/b:1"),
        (f"{CONTAINER}.args", ["x", "x" * 32_769], "containers[0].args[1]: must not exceed 32768 bytes; given 32769"),
        (f"{CONTAINER}.command", ["é" * 16_385], "command[0]: must not exceed 32768 bytes; given 32770"),
        (f"{CONTAINER}.env", [{"name": "X", "value": "x" * 32_769}], "env[0].value: must not exceed 32768 bytes"),
        (f"{CONTAINER}.env", [{"name": "X"}, {"name": "X"}], "env[1].name: 'X' is empty or given twice"),
        (f"{CONTAINER}.env", [{"name": "PORT"}], "env[0].name: the name 'PORT' is reserved"),
        (f"{CONTAINER}.env", [TWO_SOURCES], "value and value_source cannot both be given"),
        ("template.containers", [], "at least one container must be given"),
        ("template.containers", [{"image": "docker.io/x"}] * 2, "exactly one container must have a port; 0 have one"),
        ("template.containers", [NAMED, {**NAMED, "ports": []}], "container names must be unique; given are x, x"),
        (f"{CONTAINER}.resources.limits", {"disk": "1Gi"}, "'disk' is not a limit; cpu, memory and nvidia.com/gpu are"),
        (f"{CONTAINER}.resources.limits.cpu", "1.5", "'1.5' is not a number of CPUs"),
        (f"{CONTAINER}.resources.limits.cpu", "10", "Maximum 8 CPU allowed; given 10"),
        (f"{CONTAINER}.resources.limits.memory", "64Mi", "'64Mi' is not an amount of memory of at least 128Mi"),
        (f"{CONTAINER}.resources.limits", {"cpu": "8", "memory": "32Gi"}, "exactly one container must have a limit of"),
        (f"{CONTAINER}.volumeMounts", [{"name": "v", "mountPath": "x"}], "'x' must be an absolute path without ':'"),
        (f"{CONTAINER}.volumeMounts", [{"name": "v", "mountPath": "/a:b"}], "'/a:b' must be an absolute path without"),
        ("template.volumes", [*VOLUMES, *VOLUMES], "volumes[1].name: 'v' is empty or given twice"),
        ("template.executionEnvironment", "EXECUTION_ENVIRONMENT_GEN1", "GPUs need the second generation"),
        ("template.scaling.minInstanceCount", 2, "min_instance_count 2 is above max_instance_count 1"),
        (f"{CONTAINER}.livenessProbe", {"tcpSocket": {}}, "liveness_probe: exactly one of httpGet, grpc must be given"),
        (f"{CONTAINER}.readinessProbe", {"tcpSocket": {}}, "exactly one of httpGet, grpc must be given"),
        (f"{CONTAINER}.readinessProbe", LATE, "initial_delay_seconds: is not supported"),
        (f"{CONTAINER}.readinessProbe", {"httpGet": {}, "periodSeconds": 301}, "must be from 1 to 300"),
        (f"{CONTAINER}.readinessProbe", LONG, "must not be greater than period_seconds"),
    ],
)
def test_a_template_beyond_a_limit_is_refused_and_nothing_is_created(client, path, value, message):
    body = changed(GPU, "template.volumes", VOLUMES)
    status, found = client.error("POST", SERVICES, changed(body, path, value), serviceId="limits")
    assert status == 400
    assert message in found
    assert client.call("GET", f"{SERVICES}/limits")[0] == 404


def beside(cpu, memory, own_cpu, own_memory):
    """A service with a GPU and a sidecar, with limits of both."""
    body = changed(GPU, f"{CONTAINER}.resources.limits", limits(own_cpu, own_memory))
    own = {"resources": {"limits": {"cpu": cpu, "memory": memory}}} if cpu else {}
    body["template"]["containers"].append({"image": "docker.io/x", **own})
    return body


@pytest.mark.parametrize(
    ("gpu", "limits", "message"),
    [
        ("nvidia-l4", ("1", "512Mi", "8", "24Gi"), "for cpu. Maximum 8 CPU allowed for all containers"),
        ("nvidia-l4", ("500m", "512Mi", "8", "24Gi"), "given 8.5 CPU"),
        ("nvidia-l4", ("", "", "8", "24Gi"), "given 9 CPU"),
        ("nvidia-rtx-pro-6000", ("1", "512Mi", "40", "176Gi"), "for memory. Maximum 176Gi allowed for all containers"),
    ],
)
def test_the_containers_of_an_instance_share_its_maximum(client, gpu, limits, message):
    body = changed(beside(*limits), "template.nodeSelector.accelerator", gpu)
    status, found = client.error("POST", SERVICES, body, serviceId="shared")
    assert status == 400
    assert message in found
    assert client.call("GET", f"{SERVICES}/shared")[0] == 404


def test_a_sidecar_within_the_maximum_of_the_instance_is_accepted(own_client):
    """Its GPU would count against the quota of every other test in a shared cloud."""
    assert "error" not in deploy(own_client, "beside", beside("2", "512Mi", "6", "24Gi"))


@pytest.mark.parametrize("path", ["/dev", "/dev/shm", "/dev/shm/", "/mnt/../dev/shm", "//proc/x", "/sys"])
def test_a_volume_at_the_kernels_folders_is_refused(client, path):
    body = changed(PLAIN, f"{CONTAINER}.volumeMounts", [{"name": "v", "mountPath": path}])
    body["template"]["volumes"] = [{"name": "v", "emptyDir": {"medium": "MEMORY", "sizeLimit": "8Gi"}}]
    status, found = client.error("POST", SERVICES, body, serviceId="kernel")
    assert status == 400
    assert (
        "volume_mounts[0].mount_path: Cloud Run does not allow you to mount a volume at /dev, /proc, or /sys" in found
    )
    assert f"'{path}'" in found


def test_a_volume_at_a_folder_that_only_begins_like_them_is_accepted(client):
    body = changed(PLAIN, f"{CONTAINER}.volumeMounts", [{"name": "v", "mountPath": "/devices"}])
    body["template"]["volumes"] = [{"name": "v", "emptyDir": {"medium": "MEMORY", "sizeLimit": "8Gi"}}]
    assert "error" not in deploy(client, "devices", body)


def test_a_probe_without_a_gpu_has_600_seconds(client):
    body = changed(
        PLAIN, f"{CONTAINER}.startupProbe", {"httpGet": {"path": "/"}, "periodSeconds": 60, "failureThreshold": 11}
    )
    assert (
        "must not exceed 600 seconds; given 11 x 60 = 660"
        in client.error("POST", SERVICES, body, serviceId="budget")[1]
    )


def test_gpus_of_other_services_count_against_the_quota(own_client):
    deploy(own_client, "first", changed(GPU, "template.scaling.maxInstanceCount", 2))
    message = own_client.error(
        "POST", SERVICES, changed(GPU, "template.scaling.maxInstanceCount", 2), serviceId="second"
    )[1]
    assert "Max instances must be set to 1 or fewer" in message
    assert "error" not in deploy(own_client, "second", GPU)


@pytest.mark.parametrize(
    ("instances", "most", "total", "quotas"),
    [
        (
            3,
            1,
            "CPU",
            [f"{CPU} requested: 24000 allowed: 20000", f"{MEMORY} requested: 103079215104 allowed: 42949672960"],
        ),
        (2, 1, "memory", [f"{MEMORY} requested: 68719476736 allowed: 42949672960"]),
        (1, None, "", []),
    ],
)
def test_cpu_and_memory_of_all_instances_must_fit_the_regions_quota(own_client, instances, most, total, quotas):
    """8 vCPU and 32 GiB each, against the 20 vCPU and 40 GiB of many new projects. Other services of the region do not count."""
    own_client.ok("PUT", "/admin/scenario?merge=true", {"run": {"cpu_quota": 20, "memory_quota_gib": 40}})
    deploy(own_client, "other", GPU)
    body = changed(GPU, "template.scaling.maxInstanceCount", instances)
    own_client.ok("PUT", "/admin/scenario?merge=true", {"run": {"gpu_quota": 9}})
    if most is None:
        assert "error" not in deploy(own_client, "fits", body)
        return
    message = own_client.error("POST", SERVICES, body, serviceId="much")[1]
    assert (
        f"Max instances must be set to {most} or fewer to set the requested total {total}.\nConsider running" in message
    )
    assert message.partition("Quota violated:\n")[2].splitlines() == quotas
    assert own_client.error("GET", f"{SERVICES}/much")[0] == 404


@pytest.mark.parametrize(("quota", "what"), [({"cpu_quota": 15}, "CPU"), ({"memory_quota_gib": 63}, "memory")])
def test_old_and_new_revision_count_together_at_an_update(own_client, quota, what):
    """8 vCPU and 32 GiB each: the service can be created, and not updated. The old revision keeps serving."""
    own_client.ok("PUT", "/admin/scenario?merge=true", {"run": quota})
    first = deploy(own_client, "grows", GPU)["response"]["latestReadyRevision"]
    failed = patched(own_client, "grows", changed(GPU, "template.timeout", "100s"))
    said = f"is not ready and cannot serve traffic. Quota exceeded for total allowable {what} per project per region."
    assert said in failed["error"]["message"]
    service = own_client.ok("GET", f"{SERVICES}/grows")
    assert (service["latestReadyRevision"], service["terminalCondition"]["state"]) == (first, "CONDITION_FAILED")
    enough = {"cpu_quota": 16, "memory_quota_gib": 64}
    own_client.ok("PUT", "/admin/scenario?merge=true", {"run": enough})
    assert "error" not in patched(own_client, "grows", changed(GPU, "template.timeout", "101s"))


def test_defaults_are_filled_in_as_cloud_run_does(client):
    service = deploy(client, "defaults", PLAIN)["response"]
    container = service["template"]["containers"][0]
    assert container["ports"] == [{"name": "http1", "containerPort": 8080}]
    assert container["startupProbe"] == {
        "timeoutSeconds": 240,
        "periodSeconds": 240,
        "failureThreshold": 1,
        "tcpSocket": {"port": 8080},
    }
    assert service["template"]["scaling"] == {"maxInstanceCount": 100}
    assert service["traffic"] == [{"type": "TRAFFIC_TARGET_ALLOCATION_TYPE_LATEST", "percent": 100}]
    assert service["generation"] == service["observedGeneration"] == "1"
    assert service["urls"] == [service["uri"]]
    assert service["trafficStatuses"] == service["traffic"]
    assert "/defaults-00001-" in service["latestReadyRevision"]
    assert {condition["state"] for condition in service["conditions"]} == {"CONDITION_SUCCEEDED"}


def test_a_missing_service_account_is_refused_at_once(client):
    body = changed(PLAIN, "template.serviceAccount", "ghost@local-project.iam.gserviceaccount.com")
    status, message = client.error("POST", SERVICES, body, serviceId="ghost")
    assert status == 403
    assert "service account ghost@local-project.iam.gserviceaccount.com" in message


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (f"{CONTAINER}.env", [of_secret("nowhere")], "secrets/nowhere/versions/latest was not found"),
        ("template.volumes", [{"name": "v", "gcs": {"bucket": "no-such-bucket"}}], "failed to start and listen"),
        ("template.vpcAccess", NO_NETWORK, "networks/nonet' was not found"),
        (f"{CONTAINER}.image", f"{NO_REPOSITORY}/x", f"Image '{NO_REPOSITORY}/x' not found"),
    ],
)
def test_a_reference_to_nothing_fails_the_deployment(own_client, path, value, message):
    operation = deploy(own_client, "refers", changed(PLAIN, path, value))
    assert message in operation["error"]["message"]
    service = own_client.ok("GET", f"{SERVICES}/refers")
    assert service["terminalCondition"]["state"] == "CONDITION_FAILED"
    assert "latestReadyRevision" not in service


def test_a_subnetwork_stays_in_use_for_two_hours_after_direct_vpc_egress(own_cloud, own_client, subtests):
    """After the service's deletion, and after a revision without egress. Each time the message names Cloud Run's address, as Google's does."""
    compute = f"/compute/compute/v1/{P}"
    egress = {"networkInterfaces": [{"network": "vpc", "subnetwork": "sub"}]}
    service, place = f"{SERVICES}/uses", f"{P}/regions/us-east4"

    def delete(what):
        return own_client.call("DELETE", f"{compute}/{what}")

    def refused():
        status, answer = delete("regions/us-east4/subnetworks/sub")
        used = f"The subnetwork resource '{place}/subnetworks/sub' is already being used by '{place}/addresses/serverless-ipv4-"
        return status == 400 and answer["error"]["message"].startswith(used)

    def listed():
        found = own_client.ok("GET", f"{compute}/regions/us-east4/addresses").get("items", [])
        return [
            (one["name"][:16], one["purpose"], one["prefixLength"], one["subnetwork"].rpartition("/")[2])
            for one in found
        ]

    def leave(name):
        own_client.ok("POST", f"{compute}/global/networks", {"name": "vpc", "autoCreateSubnetworks": False})
        subnetwork = {"name": "sub", "network": f"{P}/global/networks/vpc", "ipCidrRange": "10.80.0.0/26"}
        own_client.ok("POST", f"{compute}/regions/us-east4/subnetworks", subnetwork)
        deploy(own_client, "uses", changed(PLAIN, "template.vpcAccess", egress))
        assert refused()
        if name == "a revision without egress":
            patched(own_client, "uses", PLAIN)
        else:
            own_client.ok("DELETE", service)

    for name in ("a deleted service", "a revision without egress"):
        with subtests.test(name):
            leave(name)
            own_cloud.cloud.timeline.advance(7000)
            assert refused()
            assert delete("global/networks/vpc")[0] == 400
            assert listed() == [("serverless-ipv4-", "SERVERLESS", 28, "sub")]
            own_cloud.cloud.timeline.advance(200)
            assert listed() == []
            assert delete("regions/us-east4/subnetworks/sub")[0] == 200
            assert delete("global/networks/vpc")[0] == 200


def test_an_account_without_access_to_the_secret_fails_the_deployment(own_client):
    email = own_client.ok("POST", f"/iam/v1/{P}/serviceAccounts", {"accountId": "server"})["email"]
    own_client.ok("POST", f"/secretmanager/v1/{P}/secrets", {"replication": {"automatic": {}}}, secretId="token")
    own_client.ok("POST", f"/secretmanager/v1/{P}/secrets/token:addVersion", {"payload": {"data": "eA=="}})
    body = changed(PLAIN, f"{CONTAINER}.env", [of_secret("token")])
    body["template"]["serviceAccount"] = email
    operation = deploy(own_client, "denied", body)
    assert "Secret Manager Secret Accessor" in operation["error"]["message"]
    secret = f"/secretmanager/v1/{P}/secrets/token"
    grant(own_client, secret, "roles/secretmanager.secretAccessor", member=f"serviceAccount:{email}")
    assert "error" not in patched(own_client, "denied", body)


def test_labels_alone_make_no_revision(client):
    before = deploy(client, "labels", PLAIN)["response"]
    after = patched(client, "labels", {**PLAIN, "labels": {"a": "b"}})["response"]
    assert after["latestReadyRevision"] == before["latestReadyRevision"]
    assert after["labels"] == {"a": "b"}
    assert len(client.ok("GET", f"{SERVICES}/labels/revisions")["revisions"]) == 1


def test_an_update_mask_leaves_the_rest_alone(client):
    deploy(client, "mask", {**PLAIN, "labels": {"a": "b"}, "description": "old"})
    change = {"description": "new", "template": {"containers": []}}
    after = patched(client, "mask", change, updateMask="description")["response"]
    assert (after["description"], after["labels"]) == ("new", {"a": "b"})


def test_traffic_can_be_pinned_to_a_revision(own_client, own_cloud):
    first = deploy(own_client, "pinned", PLAIN)["response"]["latestReadyRevision"]
    pin = [{"type": "TRAFFIC_TARGET_ALLOCATION_TYPE_REVISION", "revision": first.rpartition("/")[2], "percent": 100}]
    body = {"template": {"containers": [{"image": "docker.io/y"}]}, "traffic": pin}
    after = patched(own_client, "pinned", body)["response"]
    assert after["latestReadyRevision"] != first
    assert after["trafficStatuses"] == pin
    await_running(own_cloud, {first})


def test_deleting_during_a_deployment_leaves_nothing_running(own_client, own_cloud):
    own_client.ok("PUT", "/admin/scenario", {"operations": {"instant": False, "run_s": 20}}, merge="true")
    operation = own_client.ok("POST", SERVICES, PLAIN, serviceId="short")
    own_client.ok("DELETE", f"{SERVICES}/short")
    assert own_client.ok("POST", f"/run/v2/{operation['name']}:wait", {})["error"]["code"] == 10
    time.sleep(0.05)  # nothing may begin now, so there is nothing to wait for
    assert own_cloud.cloud.runtimes.revisions.running == set()
    assert own_cloud.cloud.runtimes.fronts.ports == {}


def invoke(client, name, member):
    """Let a member call a service."""
    policy = {"bindings": [{"role": "roles/run.invoker", "members": [member]}]}
    client.ok("POST", f"/run/v2/{name}:setIamPolicy", {"policy": policy})


class TestInvokers:
    @pytest.fixture
    def service(self, own_client, own_cloud):
        document = deploy(own_client, "private", PLAIN)["response"]
        return document, authorizer(own_cloud.cloud), own_cloud.cloud.tokens

    def test_a_private_service_takes_id_tokens_of_its_invokers_only(self, service, own_client):
        document, authorize, tokens = service
        name, url = document["name"], document["uri"]
        assert authorize(name, None) is AccessDecision.FORBIDDEN
        assert authorize(name, "rubbish") is AccessDecision.UNAUTHENTICATED
        tampered = tokens.issue_id_token("a@example.com", url)[:-8] + "AAAAAAAA"
        assert authorize(name, tampered) is AccessDecision.UNAUTHENTICATED
        assert authorize(name, tokens.issue_access_token("a@example.com")) is AccessDecision.UNAUTHENTICATED
        assert (
            authorize(name, tokens.issue_id_token("a@example.com", "https://elsewhere"))
            is AccessDecision.UNAUTHENTICATED
        )
        assert authorize(name, tokens.issue_id_token("a@example.com", url)) is AccessDecision.FORBIDDEN
        invoke(own_client, name, "user:a@example.com")
        assert authorize(name, tokens.issue_id_token("a@example.com", url)) is AccessDecision.ALLOWED
        assert (
            authorize(name, tokens.issue_id_token("local-operator@local-project.iam.gserviceaccount.com", url))
            is AccessDecision.ALLOWED
        )

    def test_all_users_may_come_without_a_token(self, service, own_client):
        document, authorize, _ = service
        invoke(own_client, document["name"], "allUsers")
        assert authorize(document["name"], None) is AccessDecision.ALLOWED
