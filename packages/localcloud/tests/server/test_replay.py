"""The recorded requests of the real pulumi-gcp provider are accepted unchanged, in order."""

import json
from pathlib import Path

import pytest

from localcloud.tests import idle_cloud
from localcloud.tests.conftest import Client
from localcloud.world.scenario import Images, OperationDurations, Scenario

ORACLE = Path(__file__).parents[1] / "fixtures" / "oracle"
GIVES_AN_ID = {
    "/monitoring/v3/projects/p1/notificationChannels": {"ids": ["20"]},
    "/monitoring/v3/projects/p1/alertPolicies": {"ids": ["22"]},
    "/monitoring/v1/projects/p1/dashboards": {"ids": ["25"], "etags": ["x"]},
    "/iam/v1/projects/p1/serviceAccounts": {"etags": ["x"]},
}
"""Values that the recorded requests expect from the server's own choices."""
REPLACED = {
    '"/dev/shm"': '"/mnt/scratch"',
    "vllm:kv_cache_usage_perc": "logging_googleapis_com:log_entry_count",
}
"""The store behind the recordings accepted every mount path and metric; Google refuses these, and the provider passes them on."""


def recorded(name: str) -> list[dict]:
    text = (ORACLE / f"{name}.jsonl").read_text()
    for refused, accepted in REPLACED.items():
        text = text.replace(refused, accepted)
    return [json.loads(line) for line in text.splitlines()]


IMAGE = "docker.io/vllm/vllm-openai@sha256:" + "0" * 64
"""The image that the recorded services pull through their repository."""
SCENARIO = Scenario(operations=OperationDurations(instant=True), images=Images(existing=(IMAGE,)))


@pytest.fixture(scope="module")
def replayed():
    """Every recorded exchange with the answer of the local cloud."""
    answers = []
    with idle_cloud.start(scenario=SCENARIO) as cloud:
        client = Client(cloud.base_url, cloud.token)
        client.ok("POST", "/admin/projects", {"projectId": "p1", "projectNumber": "1234567890"})
        for phase in ("create", "update", "delete"):
            for line, exchange in enumerate(recorded(phase), start=1):
                request = exchange["request"]
                if request["method"] == "POST" and request["path"] in GIVES_AN_ID:
                    client.ok("POST", "/admin/assign", GIVES_AN_ID[request["path"]])
                if request["method"] == "DELETE" and "/subnetworks/" in request["path"]:
                    # The store behind the recordings released addresses of Direct VPC egress at once.
                    client.ok("POST", "/admin/advance", {"seconds": 7200})
                answer = client.call(request["method"], request["path"], request["body"], **request["query"])
                answers.append((f"{phase}.jsonl:{line}", exchange, *answer))
        left = client.ok("GET", "/admin/resources")["resources"]
    return answers, left


def test_every_recorded_request_is_accepted_in_order(replayed):
    answers, _ = replayed
    refused = [(where, status, answer) for where, _, status, answer in answers if status >= 300]
    assert refused == []
    assert len(answers) == 64 + 32 + 47


def test_policies_carry_the_recorded_etags(replayed):
    answers, _ = replayed
    for where, exchange, _, answer in answers:
        if "IamPolicy" in exchange["request"]["path"] and where.startswith("create"):
            assert answer["etag"] == exchange["response"]["etag"], where


def test_nothing_recorded_is_left_after_the_delete(replayed):
    _, left = replayed
    ours = [resource for resource in left if "gemma" in resource["name"] or resource["labels"]]
    assert ours == []
