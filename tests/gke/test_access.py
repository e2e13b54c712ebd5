"""Who may call a server on GKE, with which key, and what its container may do."""

import asyncio
import subprocess

import pytest

from gemma_serving.contracts.path_guard import GUARD_ARGUMENT, GUARD_MODULE, OPEN_PATH_VARIABLE
from gemma_serving.gke.objects import objects
from gemma_serving.gke.server_inputs import GkeOptions
from gemma_serving.vm_agent.confinement import HARDENED
from tests.gke.test_objects import SHIPPED, made, pod_of, server_of

KEY = "sk-canary"
VERSION = "projects/p/secrets/k/versions/4"


def keyed():
    return {one["kind"]: one for one in objects(server_of("tpu-v6e4", api_key_secret=VERSION), GkeOptions())}


@pytest.mark.parametrize("stack", SHIPPED)
def test_a_container_has_the_rights_of_a_confined_one_on_a_tpu_vm_or_fewer(stack):
    pod = pod_of(made(stack))
    (container,) = pod["containers"]
    assert HARDENED == ("--cap-drop=ALL", "--security-opt=no-new-privileges")
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert pod["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}
    assert pod["automountServiceAccountToken"] is False


@pytest.mark.parametrize(
    ("callers", "gateway", "admitted"),
    [
        (("chat",), "", ["chat"]),
        (("chat", "10.1.0.0/23", "batch"), "", ["10.1.0.0/23", "chat", "batch"]),
        (("10.1.0.0/23",), "gw", ["10.1.0.0/23", "35.191.0.0/16", "130.211.0.0/22", {}]),
    ],
)
def test_only_callers_and_what_the_cluster_itself_needs_are_admitted(callers, gateway, admitted):
    found = made("tpu-v6e4", callers=callers, gateway=gateway)
    spec = found["NetworkPolicy"]["spec"]
    (container,) = pod_of(found)["containers"]
    assert spec["policyTypes"] == ["Ingress"]
    assert spec["podSelector"]["matchLabels"] == found["Service"]["spec"]["selector"]
    ports = [one["containerPort"] for one in container["ports"]]
    assert all([one["port"] for one in rule["ports"]] == ports and rule["from"] for rule in spec["ingress"])

    def short(peer):
        if "ipBlock" in peer:
            return peer["ipBlock"]["cidr"]
        if "podSelector" in peer:
            return peer["podSelector"]
        return peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]

    called, scraped = spec["ingress"]
    assert [short(peer) for peer in called["from"]] == admitted
    (collectors,) = scraped["from"]
    (expression,) = collectors["namespaceSelector"]["matchExpressions"]
    assert expression["values"] == ["gmp-system", "gke-gmp-system"]


@pytest.mark.parametrize("stack", SHIPPED)
def test_without_callers_and_key_there_is_neither_policy_nor_guard(stack):
    assert not {"NetworkPolicy", "ConfigMap"} & set(made(stack))


def test_the_key_is_a_file_that_the_shell_passes_on_as_a_variable(tmp_path):
    (container,) = pod_of(keyed())["containers"]
    shell, flag, script, *rest = container["command"]
    assert rest == ["sh", "vllm", "serve"]
    (tmp_path / "api-key").write_text(f"{KEY}\n")
    here = script.replace("/var/run/secrets/server", str(tmp_path))
    shown = [
        "python3",
        "-c",
        "import os, sys; print(os.environ['VLLM_API_KEY'], os.environ['PYTHONPATH'], sys.argv[1:])",
    ]
    words = ["--a b", "$HOME", "`x`"]
    for given, path in (({}, "/etc/gemma-serving"), ({"PYTHONPATH": "/image"}, "/etc/gemma-serving:/image")):
        environment = {"PATH": "/usr/bin:/bin", **given}
        done = subprocess.run(
            [shell, flag, here, "sh", *shown, *words], env=environment, check=False, capture_output=True, text=True
        )
        assert done.stdout.strip() == f"{KEY} {path} {words}"


def test_without_the_file_the_server_does_not_start(tmp_path):
    (container,) = pod_of(keyed())["containers"]
    here = container["command"][2].replace("/var/run/secrets/server", str(tmp_path))
    done = subprocess.run(["/bin/sh", "-c", here, "sh", "echo", "started"], check=False, capture_output=True, text=True)
    assert (done.returncode != 0, done.stdout) == (True, "")


def test_the_key_is_in_no_object_and_a_new_version_replaces_the_pods():
    found = keyed()
    annotations = found["Deployment"]["spec"]["template"]["metadata"]["annotations"]
    assert VERSION in annotations["gemma-serving/secrets"]
    assert VERSION in found["SecretProviderClass"]["spec"]["parameters"]["secrets"]
    (container,) = pod_of(found)["containers"]
    assert "VLLM_API_KEY" not in {one["name"] for one in container["env"]}
    assert GUARD_ARGUMENT in container["args"]


def status_of(guard, path, key=None):
    """Return the status of the guard's answer, or 200 if it passes the request on."""
    sent = []

    async def app(_scope, _receive, send):
        await send({"status": 200})

    async def send(message):
        sent.append(message)

    headers = [(b"authorization", f"Bearer {key}".encode())] if key else []
    asyncio.run(guard(app)({"type": "http", "path": path, "headers": headers}, None, send))
    return sent[0]["status"]


def test_the_guard_of_the_objects_opens_the_metrics_and_health_only(monkeypatch):
    found = keyed()
    pod = pod_of(found)
    (container,) = pod["containers"]
    (volume,) = [one for one in pod["volumes"] if "configMap" in one]
    assert volume["configMap"]["name"] == found["ConfigMap"]["metadata"]["name"]
    assert {"name": volume["name"], "mountPath": "/etc/gemma-serving"} in container["volumeMounts"]
    variables = {one["name"]: one["value"] for one in container["env"]}
    monkeypatch.setenv(OPEN_PATH_VARIABLE, variables[OPEN_PATH_VARIABLE])
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    (scrape,) = found["PodMonitoring"]["spec"]["endpoints"]
    served = {}
    exec(found["ConfigMap"]["data"][f"{GUARD_MODULE}.py"], served)  # noqa: S102 - as vLLM imports it
    guard = served["PathGuard"]
    assert [status_of(guard, path) for path in (scrape["path"], "/health")] == [200, 200]
    refused = ["/v1/models", "/invocations", "/tokenize", "/metrics/", "/metrics2", "/v1/metrics", ""]
    assert {status_of(guard, path) for path in refused} == {401}
    assert {status_of(guard, path, KEY) for path in refused} == {200}
