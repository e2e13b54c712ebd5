"""Service Usage tells the quotas that the scenario sets, in Google's units."""

import pytest

from localcloud.tests.conftest import PROJECT
from localcloud.world.scenario import Run, Scenario, Tpu

SERVICES = f"/serviceusage/v1beta1/projects/{PROJECT}/services"
PREEMPTIBLE = "tpu.googleapis.com%2Ftpu-v6e-preemptible"


def limits(client, service, metric, view="FULL"):
    path = f"{SERVICES}/{service}.googleapis.com/consumerQuotaMetrics/{service}.googleapis.com%2F{metric}"
    buckets = client.ok("GET", path, view=view)["consumerQuotaLimits"][0]["quotaBuckets"]
    return {next(iter(bucket["dimensions"].values())): bucket.get("effectiveLimit") for bucket in buckets[1:]}


def test_chips_are_counted_in_each_zone(client):
    assert limits(client, "tpu", "tpu-v6e-preemptible")["us-east5-a"] == "64"
    assert "us-west4-a" not in limits(client, "tpu", "tpu-v6e")
    assert "us-west4-a" in limits(client, "tpu", "tpu-v5s-litepod")


def test_a_limit_of_zero_is_left_out(own_client):
    zones = {"us-east5-a": Tpu().zones["us-east5-a"].model_copy(update={"preemptible_quota_chips": 0})}
    own_client.ok("PUT", "/admin/scenario", Scenario(tpu=Tpu(zones=zones)).model_dump(mode="json"))
    assert limits(own_client, "tpu", "tpu-v6e-preemptible") == {"us-east5-a": None}


def test_an_rtx_pro_6000_counts_thousandths_of_a_gpu(own_client):
    run = Run(gpu_quota=2, gpu_quota_overrides={"us-east4/nvidia-l4": 7, "us-east4/nvidia-l4/zonal": 1})
    own_client.ok("PUT", "/admin/scenario", Scenario(run=run).model_dump(mode="json"))
    assert limits(own_client, "run", "nvidia_rtx_pro_6000_gpu_allocation_no_zonal_redundancy")["us-central1"] == "2000"
    assert limits(own_client, "run", "nvidia_l4_gpu_allocation_no_zonal_redundancy")["us-east4"] == "7"
    assert limits(own_client, "run", "nvidia_l4_gpu_allocation")["us-east4"] == "1"


def test_memory_and_cpu_come_in_bytes_and_thousandths(client):
    assert limits(client, "run", "mem_allocation")["us-east4"] == str(400 * 2**30)
    assert limits(client, "run", "cpu_allocation")["us-east4"] == "200000"


def test_without_the_full_view_there_are_no_places(client):
    assert limits(client, "tpu", "tpu-v6e-preemptible", view="BASIC") == {}


def test_a_metric_that_does_not_exist_is_not_found(client):
    status, _ = client.error("GET", f"{SERVICES}/tpu.googleapis.com/consumerQuotaMetrics/tpu.googleapis.com%2Fnone")
    assert status == 404


def test_the_quota_of_a_service_that_is_off_is_refused(own_client):
    own_client.ok("POST", f"/serviceusage/v1/projects/{PROJECT}/services/tpu.googleapis.com:disable", {})
    status, message = own_client.error("GET", f"{SERVICES}/tpu.googleapis.com/consumerQuotaMetrics/{PREEMPTIBLE}")
    assert (status, "not enabled" in message) == (403, True)


def test_a_slash_in_a_metric_has_to_be_encoded(client):
    status, _ = client.error("GET", f"{SERVICES}/tpu.googleapis.com/consumerQuotaMetrics/tpu.googleapis.com/tpu-v6e")
    assert status == 404


PREFERENCES = {
    "tpu": ("TPUV6EPreemptiblePerProjectPerZoneForTPUAPI", {"zone": "us-east5-a"}, "tpu-v6e-preemptible"),
    "chips": ("TPUV6EPerProjectPerZoneForTPUAPI", {"zone": "us-east5-a"}, "tpu-v6e"),
    "l4": (
        "NvidiaL4GpuAllocNoZonalRedundancyPerProjectRegion",
        {"region": "us-east4"},
        "nvidia_l4_gpu_allocation_no_zonal_redundancy",
    ),
    "rtx": (
        "NvidiaRtxPro6000GpuAllocPerProjectRegion",
        {"region": "us-central1"},
        "nvidia_rtx_pro_6000_gpu_allocation",
    ),
    "cpu": ("CpuAllocPerProjectRegion", {"region": "us-east4"}, "cpu_allocation"),
    "memory": ("MemAllocPerProjectRegion", {"region": "us-east4"}, "mem_allocation"),
}
GRANTED = 8 * 1000 * 2**30


def preference(name, **changes):
    quota_id, dimensions, metric = PREFERENCES[name]
    service = "tpu" if metric.startswith("tpu") else "run"
    body = {
        "project": PROJECT,
        "service": f"{service}.googleapis.com",
        "quotaId": quota_id,
        "dimensions": dimensions,
        "preferredValue": str(GRANTED),
        "contactEmail": "me@example.com",
        **changes,
    }
    return service, metric, body


@pytest.mark.parametrize("name", list(PREFERENCES))
def test_a_preference_is_granted_and_read_in_its_own_unit(own_client, name):
    service, metric, body = preference(name)
    answer = own_client.ok("POST", "/admin/quota", body)
    assert answer["quotaConfig"] == {"preferredValue": str(GRANTED), "grantedValue": str(GRANTED)}
    (place,) = body["dimensions"].values()
    assert limits(own_client, service, metric)[place] == str(GRANTED)


def test_an_increase_needs_an_email_address_and_a_quota_that_exists(own_client):
    _, _, body = preference("tpu", contactEmail="")
    assert own_client.error("POST", "/admin/quota", body) == (
        400,
        "When requesting a quota increase, the email address is required.",
    )
    for changes in ({"quotaId": "Other"}, {"dimensions": {"zone": "nowhere"}}, {"service": "run.googleapis.com"}):
        assert own_client.error("POST", "/admin/quota", preference("tpu", **changes)[2])[0] == 404


def test_a_preference_needs_the_api_cloud_quotas(own_client):
    own_client.ok("POST", f"/serviceusage/v1/projects/{PROJECT}/services/cloudquotas.googleapis.com:disable", {})
    status, message = own_client.error("POST", "/admin/quota", preference("tpu")[2])
    assert (status, message.startswith("Cloud Quotas API has not been used in project")) == (403, True)


def test_chips_of_instances_are_counted_in_each_region(own_client):
    compute = {"preemptible_quota_overrides": {"us-east5": 0}, "family_quota_chips": 8}
    own_client.ok("PUT", "/admin/scenario", {"tpu": {"compute": compute}}, merge="true")
    assert limits(own_client, "compute", "preemptible_tpu_v6e")["us-east5"] is None
    assert limits(own_client, "compute", "preemptible_tpu_v6e")["europe-west4"] == "1536"
    path = f"{SERVICES}/compute.googleapis.com/consumerQuotaMetrics/compute.googleapis.com%2Ftpus_per_tpu_family"
    (limit,) = own_client.ok("GET", path, view="FULL")["consumerQuotaLimits"]
    assert limit["unit"] == "1/{project}/{region}/{tpu_family}"
    assert {"region": "us-east5", "tpu_family": "CT6E"} in [
        bucket.get("dimensions") for bucket in limit["quotaBuckets"]
    ]


def test_quota_of_instances_can_be_asked_for(own_client):
    body = {"project": PROJECT, "service": "compute.googleapis.com", "preferredValue": "4", "contactEmail": "a@b.c"}
    region = {"region": "us-east5"}
    own_client.ok("PUT", "/admin/scenario", {"tpu": {"compute": {"preemptible_quota_chips": 0}}}, merge="true")
    preemptible = {"quotaId": "PREEMPTIBLE-TPU-V6E-per-project-region", "dimensions": region}
    own_client.ok("POST", "/admin/quota", {**body, **preemptible})
    assert limits(own_client, "compute", "preemptible_tpu_v6e")["us-east5"] == "4"
    family = {"quotaId": "TPUS-PER-TPU-FAMILY-per-project-region", "dimensions": {**region, "tpu_family": "CT6E"}}
    own_client.ok("POST", "/admin/quota", {**body, **family})
    assert limits(own_client, "compute", "tpus_per_tpu_family")["us-east5"] == "4"
    assert own_client.error("POST", "/admin/quota", {**body, **family, "dimensions": region})[0] == 404
