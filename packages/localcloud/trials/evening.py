"""The trials of the critical assumptions: each function sends its requests and returns the response that decides.

A function with the prefix `must_` ends the trial as `unknown` if its step fails. TRIALS has the functions, by entry.
"""

from collections.abc import Callable, Mapping
from typing import Final

from localcloud.json_values import JsonObject, packaged, strings
from localcloud.trials.attempt import Attempt, Trial
from localcloud.trials.judging import Expected
from localcloud.trials.resources import OwnResource, TrialResource
from localcloud.trials.sending import ApiReply

APIS: Final = tuple(
    f"{api}.googleapis.com"
    for api in [
        "artifactregistry",
        "cloudresourcemanager",
        "compute",
        "iam",
        "logging",
        "monitoring",
        "run",
        "secretmanager",
        "serviceusage",
        "storage",
        "tpu",
    ]
)
"""APIs that each run, the trials and their stacks call. One trial needs the Cloud Billing API off."""
_HUB_IDS: Final = packaged("localcloud.trials", "hub_ids.json")
HUB_IDS: Final = strings(_HUB_IDS, "present")
"""The planner's checkpoints."""
ABSENT_HUB_ID: Final = str(_HUB_IDS["absent"])
_LOADED: Final = "Loading weights took"
_HELLO: Final = "us-docker.pkg.dev/cloudrun/container/hello"
_PUT: Final = "http://${GCE_METADATA_HOST:-metadata.google.internal}/computeMetadata/v1/instance/guest-attributes/gemma-serving/try"
_PUT_FUNCTION: Final = f'put() {{ curl -X PUT -H Metadata-Flavor:Google -d "$1" {_PUT}; }}\n'


def _machine_body(
    resource: TrialResource,
    run_s: int,
    metadata: Mapping[str, str] | None = None,
    queueing: Mapping[str, str] | None = None,
) -> JsonObject:
    """Return the body of a queued resource with one v6e chip, which Google deletes after `run_s` seconds."""
    node: JsonObject = {"acceleratorType": "v6e-1", "runtimeVersion": "v2-alpha-tpuv6e"}
    if metadata is not None:
        node["metadata"] = dict(metadata)
    parent = f"projects/{resource.project}/locations/us-east5-a"
    return {
        "tpu": {"nodeSpec": [{"parent": parent, "nodeId": resource.name, "node": node}]},
        "provisioningModel": "FLEX_START",
        "runDuration": {"maxRunDuration": f"{run_s}s"},
        "queueingPolicy": dict(queueing or {"validUntilDuration": "600s"}),
    }


def _machine(attempt: Attempt, run_s: int = 600, metadata: Mapping[str, str] | None = None) -> str:
    """Create a TPU VM, wait until it is active, and return the URL of its node."""
    resource = attempt.resource("queuedResources")
    created = attempt.create(resource, _machine_body(resource, run_s, metadata))
    attempt.must_poll(900, "state.{1,6}ACTIVE", lambda: attempt.send("GET", resource.url), created)
    return _node(resource)


def _node(resource: TrialResource) -> str:
    return f"{resource.url.partition('/queuedResources')[0]}/nodes/{resource.name}"


def _guest_attributes(attempt: Attempt, node: str) -> Callable[[], ApiReply]:
    return lambda: attempt.send("POST", f"{node}:getGuestAttributes", {"queryPath": "gemma-serving/"})


def _first_revision_before_its_grant(attempt: Attempt) -> ApiReply:
    secret = attempt.resource("secrets", "secr")
    account = attempt.resource("serviceAccounts", "acco")
    attempt.must_have(account, {})
    attempt.must_have(secret, {"replication": {"automatic": {}}})
    attempt.must_send("POST", f"{secret.url}:addVersion", {"payload": {"data": "eA=="}})
    attempt.pause(180)
    service = attempt.resource("services")
    variable = {"name": "T", "valueSource": {"secretKeyRef": {"secret": secret.name, "version": "latest"}}}
    template = {
        "scaling": {"maxInstanceCount": 1},
        "serviceAccount": account.url.rpartition("/")[2],
        "containers": [{"image": _HELLO, "env": [variable]}],
    }
    created = attempt.create(service, {"template": template})
    attempt.must_poll(300, "permission denied|secretAccessor", lambda: attempt.send("GET", service.url), created)
    return attempt.send("PATCH", f"{service.url}?updateMask=template", {"template": template})


def _hub_ids(attempt: Attempt) -> ApiReply:
    for name in HUB_IDS:
        attempt.must_send("GET", f"https://huggingface.co/api/models/{name}", has_login=False)
    return attempt.send("GET", f"https://huggingface.co/api/models/{ABSENT_HUB_ID}", has_login=False)


def _service_disabled_without_errors(attempt: Attempt) -> ApiReply:
    return attempt.send(
        "GET",
        f"https://cloudbilling.googleapis.com/v1/projects/{attempt.project}/billingInfo",
        headers={"X-Goog-User-Project": attempt.project},
        waits=False,
    )


def _tpu_delete_needs_force(attempt: Attempt) -> ApiReply:
    resource = attempt.resource("queuedResources")
    queueing = {"validAfterDuration": "3600s", "validUntilDuration": "4200s"}
    created = attempt.create(resource, _machine_body(resource, 600, queueing=queueing))
    attempt.must_poll(300, "state.{1,6}WAITING_FOR_RESOURCES", lambda: attempt.send("GET", resource.url), created)
    return attempt.delete_without_force(OwnResource(resource))


def _run_l4_driver(attempt: Attempt) -> ApiReply:
    job = attempt.resource("jobs")
    container = {
        "image": "docker.io/nvidia/cuda:12.2.2-base-ubuntu22.04",
        "command": ["nvidia-smi"],
        "resources": {"limits": {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "1"}},
    }
    template = {
        "maxRetries": 0,
        "timeout": "120s",
        "gpuZonalRedundancyDisabled": True,
        "nodeSelector": {"accelerator": "nvidia-l4"},
        "containers": [container],
    }
    attempt.must_create(job, {"template": {"template": template}})
    started = attempt.start("POST", f"{job.url}:run", {})
    asked: JsonObject = {
        "resourceNames": [f"projects/{attempt.project}"],
        "filter": f'resource.type="cloud_run_job" AND resource.labels.job_name="{job.name}"',
        "pageSize": 100,
    }
    url = "https://logging.googleapis.com/v2/entries:list"
    return attempt.poll(300, "Driver Version", lambda: attempt.send("POST", url, asked), started)


def _disabled_api_keeps_resources(attempt: Attempt) -> ApiReply:
    service = attempt.resource("services")
    scaling = {"minInstanceCount": 1, "maxInstanceCount": 1}
    attempt.must_create(service, {"template": {"scaling": scaling, "containers": [{"image": _HELLO}]}})
    attempt.must_disable_run()
    start, end = attempt.pause(600)
    attempt.words = {"TRY": service.name, "START": start, "END": end}
    url = f"https://serviceusage.googleapis.com/v1/projects/{attempt.project}/services/run.googleapis.com:enable"
    enabled = attempt.start("POST", url, {})
    services = service.kind.url(attempt.project)
    return attempt.must_poll(300, "services/localcloud-try-", lambda: attempt.send("GET", services), enabled)


def _billed_while_disabled(attempt: Attempt, words: Mapping[str, str]) -> ApiReply:
    metric = "metric.type%3D%22run.googleapis.com/container/billable_instance_time%22"
    service = f"resource.labels.service_name%3D%22{words['TRY']}%22"
    interval = f"interval.startTime={words['START']}&interval.endTime={words['END']}"
    summed = "aggregation.perSeriesAligner=ALIGN_SUM&aggregation.alignmentPeriod=60s"
    root = f"https://monitoring.googleapis.com/v3/projects/{attempt.project}/timeSeries"
    return attempt.send("GET", f"{root}?filter={metric}%20AND%20{service}&{interval}&{summed}")


def _node_patch(attempt: Attempt) -> ApiReply:
    node = _machine(attempt)
    attempt.must_send("PATCH", f"{node}?updateMask=metadata", {"metadata": {"gemma": "2"}})
    return attempt.send("GET", node)


def _queued_run_ends(attempt: Attempt) -> ApiReply:
    resource = attempt.resource("queuedResources")
    body = _machine_body(resource, 600)
    created = attempt.create(resource, body)
    attempt.must_poll(1800, "state.{1,6}SUSPENDED", lambda: attempt.send("GET", resource.url), created)
    attempt.must_poll(60, "not.?found", lambda: attempt.send("GET", _node(resource)))
    return attempt.create_again(resource, body)


def _tpu_guest_attributes_namespace(attempt: Attempt) -> ApiReply:
    script = f"#! /bin/bash\ncurl -X PUT -H Metadata-Flavor:Google -d reached {_PUT}"
    node = _machine(attempt, metadata={"enable-guest-attributes": "TRUE", "startup-script": script})
    return attempt.poll(300, "reached", _guest_attributes(attempt, node))


def _tpu_boot_disk_left(attempt: Attempt) -> ApiReply:
    image = "docker.io/vllm/vllm-tpu@sha256:19a1a0526476f902eb83e1057f3d8938f35b457dd7716a30e9ab4f7bee90d507"
    script = (
        f"#! /bin/bash\n{_PUT_FUNCTION}used() {{ df -BG --output=used / | tr -dc 0-9; }}\n"
        f'a=$(used)\ndocker pull -q {image} || exit 1\nput "system ${{a}}G, image $(( $(used) - a ))G"'
    )
    node = _machine(attempt, 900, {"enable-guest-attributes": "TRUE", "startup-script": script})
    return attempt.poll(600, "system [0-9]", _guest_attributes(attempt, node))


def _run_network_without_direct_vpc(attempt: Attempt) -> ApiReply:
    attempt.must_run("gemma", "smoke", "try-l4", "--json")
    sizes = ("--concurrency", "4", "--requests", "32", "--input-tokens", "500", "--output-tokens", "100")
    attempt.must_run("gemma", "bench", "try-l4", *sizes, "--allow-invalid", "--out", f".work/{attempt.name}")
    direct = ("--path", "gemma-serving:cloudRun.directVpc", "true")
    attempt.must_run("pulumi", "config", "set", *direct, "--stack", "try-l4")
    attempt.must_run("gemma", "up", "try-l4", "--yes")
    return attempt.poll(120, f"{_LOADED}(.|\\n)*{_LOADED}", lambda: attempt.run("gemma", "logs", "try-l4"))


def _tpu_container_reaches_the_chips(attempt: Attempt) -> ApiReply:
    sizes = ("--concurrency", "8", "--requests", "64", "--input-tokens", "500", "--output-tokens", "200")
    attempt.must_run("gemma", "bench", "try-tpu", *sizes, "--allow-invalid", "--out", f".work/{attempt.name}")
    return attempt.run("gemma", "smoke", "try-tpu", "--json")


def _tpu_machine_writes_its_log(attempt: Attempt) -> ApiReply:
    length = ("--path", "gemma-serving:vllm.maxModelLen", "8192")
    attempt.must_run("pulumi", "config", "set", *length, "--stack", "try-tpu")
    attempt.must_run("gemma", "up", "try-tpu", "--yes")
    return attempt.poll(120, " server ", lambda: attempt.run("gemma", "logs", "try-tpu"))


def _os_login_shuts_out_metadata_keys(attempt: Attempt) -> ApiReply:
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ0000000000000000000000000000000000000000000"
    script = (
        f"#! /bin/bash\n{_PUT_FUNCTION}"
        "for i in {1..100}; do if id probe; then put keys-admitted; else put keys-ignored; fi; sleep 5; done"
    )
    metadata = {
        "enable-guest-attributes": "TRUE",
        "enable-oslogin": "TRUE",
        "ssh-keys": f"probe:{key} probe",
        "startup-script": script,
    }
    node = _machine(attempt, metadata=metadata)
    attempt.must_poll(300, "value.{1,5}keys-", _guest_attributes(attempt, node))
    attempt.pause(120)
    attempt.must_poll(60, "value.{1,5}keys-", _guest_attributes(attempt, node))
    return attempt.run("gemma", "chat", "try-tpu", "Say hello.")


TRIALS: Final = {
    "first-revision-before-its-grant": Trial(_first_revision_before_its_grant, 524, Expected("services/")),
    "hub-ids": Trial(_hub_ids, 80, Expected("invalid username|not found", 401)),
    "service-disabled-without-errors": Trial(
        _service_disabled_without_errors, 2, Expected("SERVICE_DISABLED", 403, r"'errors': \[")
    ),
    "tpu-delete-needs-force": Trial(
        _tpu_delete_needs_force, 484, Expected(r"^(?=.*state)(?!.*\[[^\]]*WAITING_FOR_RESOURCES)", 400)
    ),
    "run-l4-driver": Trial(_run_l4_driver, 334, Expected("Driver Version: 535", refuted=r"Driver Version: (?!535)\d+")),
    "disabled-api-keeps-resources": Trial(
        _disabled_api_keeps_resources,
        938,
        Expected("'doubleValue': [0-9.]*[1-9]", refuted=r"^\{\}$|^\{'unit': 's'\}$"),
        second_run=_billed_while_disabled,
    ),
    "node-patch": Trial(_node_patch, 1086, Expected("gemma.{1,6}2", refuted="'networkEndpoints'")),
    "queued-run-ends": Trial(_queued_run_ends, 2044, Expected("exist", 409)),
    "tpu-guest-attributes-namespace": Trial(
        _tpu_guest_attributes_namespace, 1382, Expected("reached", refuted=r"'items': \[\]")
    ),
    "tpu-boot-disk-left": Trial(
        _tpu_boot_disk_left,
        1682,
        Expected(r"system (1\d|20)G, image (1[2-9]|2[0-5])G", refuted=r"system \d*G, image -?\d+G"),
    ),
    "run-network-without-direct-vpc": Trial(
        _run_network_without_direct_vpc,
        360,
        Expected(
            rf"{_LOADED} 1\d\d\.((?!{_LOADED})(.|\n))*{_LOADED} [1-4]?\d\.(?!(.|\n)*{_LOADED})",
            refuted=rf"{_LOADED}(.|\n)*{_LOADED}",
        ),
    ),
    "tpu-container-reaches-the-chips": Trial(
        _tpu_container_reaches_the_chips,
        120,
        Expected('"verdict": "passed"', refuted="Unable to initialize backend 'tpu'|TPU initialization failed|No TPU"),
    ),
    "tpu-machine-writes-its-log": Trial(
        _tpu_machine_writes_its_log, 240, Expected(" server ", refuted="no logs of stack")
    ),
    "os-login-shuts-out-metadata-keys": Trial(
        _os_login_shuts_out_metadata_keys,
        1622,
        Expected(
            "[a-z]", refuted=r"value.{1,5}keys-admitted|Permission denied \(publickey\)|\[4033: 'not authorized'\]"
        ),
    ),
}
"""By entry."""
