"""Service Usage tells the quotas that the scenario sets, in Google's units."""

from localcloud.world.scenario import Run, Scenario, Tpu
from tests.localcloud.conftest import PROJECT

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


def test_all_metrics_of_a_service_are_listed(client):
    metrics = client.ok("GET", f"{SERVICES}/tpu.googleapis.com/consumerQuotaMetrics")["metrics"]
    names = [metric["metric"].partition("/")[2] for metric in metrics]
    assert names == ["tpu-v5s-litepod", "tpu-v5s-litepod-preemptible", "tpu-v6e", "tpu-v6e-preemptible"]


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
