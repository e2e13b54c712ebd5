"""A deployed server under alerts: the simulated vLLM on Cloud Run with its collector, until the service is deleted."""

import requests

from localcloud.running.simulated import simulated_runtimes
from localcloud.tests.conftest import SCENARIO, Client
from localcloud.tests.idle_cloud import start
from localcloud.tests.rules.built import evaluator_program
from localcloud.tests.services.watched import QUERY, SERVICES, V3, promql, sidecar

SERVER = {
    "name": "vllm",
    "image": "docker.io/x",
    "command": ["vllm", "serve"],
    "args": ["simulated/tiny", "--port=8000"],
    "ports": [{"containerPort": 8000}],
    "resources": {"limits": {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "1"}, "startupCpuBoost": True},
}


def test_the_metrics_of_a_deployed_server_arrive_and_its_last_answer_rings():
    program = evaluator_program()
    scenario = SCENARIO.model_copy(update={"run": SCENARIO.run.model_copy(update={"gpu_drivers": {}})})
    with start(scenario=scenario, runtimes=simulated_runtimes, evaluator=program, speed=1500) as cloud:
        client = Client(cloud.base_url, cloud.token)
        template = {
            "containers": [SERVER, sidecar()],
            "gpuZonalRedundancyDisabled": True,
            "nodeSelector": {"accelerator": "nvidia-l4"},
            "scaling": {"maxInstanceCount": 1},
        }
        operation = client.ok("POST", SERVICES, {"template": template}, serviceId="gemma")
        client.ok("POST", f"/run/v2/{operation['name']}:wait", {"timeout": "60s"})
        idle = 'max by (namespace) (vllm:num_requests_running{namespace="gemma"}) == 0'
        gone = 'absent(up{namespace="gemma"})'
        for expression, changes in ((idle, {"duration": "60s"}), (gone, {"displayName": "gone"})):
            client.ok("POST", f"{V3}/alertPolicies", promql(expression, **changes))
        client.ok("POST", "/admin/advance", {"seconds": 120})
        (alert,) = client.ok("GET", f"{V3}/alerts")["alerts"]
        assert (alert["state"], alert["policy"]["displayName"]) == ("OPEN", "policy")
        names = client.ok("POST", QUERY, {"query": 'count by (__name__) ({namespace="gemma"})'})["data"]["result"]
        assert {"up", "vllm:num_requests_waiting", "vllm:time_to_first_token_seconds_bucket"} <= {
            each["metric"]["__name__"] for each in names
        }
        client.ok("DELETE", f"{SERVICES}/gemma")
        client.ok("POST", "/admin/advance", {"seconds": 400})
        states = {each["policy"]["displayName"]: each["state"] for each in client.ok("GET", f"{V3}/alerts")["alerts"]}
        assert states == {"policy": "CLOSED", "gone": "OPEN"}
        assert requests.get(f"{cloud.base_url}/admin/", timeout=30).json()["alerts"] == "evaluated"
