"""What the agent does for one document, in this process: its image, its secrets, its limits in words, its lines."""

import json
import urllib.request

import pytest

from gemma_serving.contracts.serving_document import DocumentError, document_hash, parse_document
from gemma_serving.vm_agent.cloud import MetadataClient, near_image
from gemma_serving.vm_agent.publishing import PhasePublisher
from gemma_serving.vm_agent.shipping import LogShipper
from tests.vm_agent.in_process import Serving, calls
from tests.vm_agent.machine import CANARY, IMAGE, Machine, document


def test_a_document_that_names_a_hub_cache_keeps_it(serving: Serving, machine: Machine):
    serving.serves(env={"HF_HOME": "/dev/shm/hf"})
    (run,) = calls(machine, "run")
    assert [word for word in run if "HF_HOME" in word] == ["--env=HF_HOME=/dev/shm/hf"]


def test_a_machine_far_from_the_first_region_pulls_from_its_own(serving: Serving, machine: Machine):
    far, near = "us-east5-docker.pkg.dev/p/repo", "europe-west4-docker.pkg.dev/p/repo-europe-west4"
    image = "vllm/vllm-tpu@sha256:" + "a" * 64
    machine.attributes["zone"] = "projects/123/zones/europe-west4-a"
    repositories = json.dumps({"us-east5": far, "europe-west4": near})
    machine.attributes["gemma-serving-image-repositories"] = repositories
    serving.serves(image=f"{far}/{image}")
    assert [call[-1] for call in calls(machine, "login")] == ["https://europe-west4-docker.pkg.dev"]
    assert [call[-1] for call in calls(machine, "pull")] == [f"{near}/{image}"]
    assert [f"{near}/{image}" in call for call in calls(machine, "run")] == [True]


def test_a_machine_that_does_not_know_its_repositories_pulls_from_where_the_document_says(machine: Machine):
    assert near_image(MetadataClient(), IMAGE) == IMAGE
    for repositories in ("no json", "[]"):
        machine.attributes["gemma-serving-image-repositories"] = repositories
        assert near_image(MetadataClient(), IMAGE) == IMAGE, repositories


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "Serving document is not JSON"),
        ("3", "Serving document is not JSON"),
        ("{}", "'image' is missing."),
        (document(8000, schema=2), "`schema` is 2, but must be 1."),
        (document(8000, flavour="x"), "`flavour` is unknown. Known keys:"),
    ],
)
def test_a_document_of_another_version_is_one_sentence_with_the_key(text: str, sentence: str):
    with pytest.raises(DocumentError) as refused:
        parse_document(text)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_after_a_malformed_document_the_old_server_still_answers_and_the_next_good_one_runs(
    serving: Serving, machine: Machine
):
    good = serving.good()
    serving.latest.set("{")
    serving.sees("failed", document_hash("{"), good)
    assert "not JSON" in machine.guest()["detail"]
    with urllib.request.urlopen(f"http://127.0.0.1:{serving.port}/health", timeout=60) as response:
        assert response.status == 200
    assert serving.good() == good
    assert len(calls(machine, "run")) == 1, "the same document on the same running server needs no restart"


def test_an_unreadable_secret_is_told_before_the_old_server_is_touched(serving: Serving, machine: Machine):
    good = serving.good()
    second = serving.ask(secretEnv={"HF_TOKEN": "projects/p/secrets/other/versions/1"})
    serving.sees("retrying", second, good)
    assert "Cannot read secret projects/p/secrets/other/versions/1: " in machine.guest()["detail"]
    assert "403 Permission denied on resource" in machine.guest()["detail"]
    assert calls(machine, "stop") == []


def test_lines_that_cloud_logging_refused_are_written_later_once_and_in_order_and_the_reason_is_said(
    machine: Machine, capsys: pytest.CaptureFixture[str]
):
    machine.fail_next["entries:write"] = 1
    shipper = LogShipper(MetadataClient(), PhasePublisher(MetadataClient(), secrets={CANARY}))
    shipper.server_line("INFO Starting")
    assert not shipper.write()
    assert "Cannot write the log to Cloud Logging: POST /logging/v2/entries:write failed" in capsys.readouterr().err
    shipper.agent_line(f"retrying with {CANARY}")
    assert shipper.write()
    assert shipper.write()
    (body,) = machine.shipped
    assert body["logName"] == "projects/p/logs/gemma-serving-machine"
    labels = {"project_id": "p", "location": "us-east5-a", "namespace": "gemma-x", "node_id": "t1v-n-0-w-0"}
    assert body["resource"] == {"type": "generic_node", "labels": labels}
    assert [entry["textPayload"] for entry in body["entries"]] == ["INFO Starting", "retrying with [masked]"]
    assert [entry["labels"]["source"] for entry in body["entries"]] == ["server", "agent"]
    for key in ("insertId", "timestamp"):
        values = [entry[key] for entry in body["entries"]]
        assert values == sorted(set(values)), key
