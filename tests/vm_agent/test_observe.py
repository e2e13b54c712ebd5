"""The collector beside the server, and the agent's own metrics: what a metadata key starts, keeps, replaces and removes."""

import json
import urllib.error
import urllib.request

import pytest

from gemma_serving.contracts.collector import (
    COLLECTOR_IMAGE,
    CONFIG_VARIABLE,
    CollectorSettings,
    collector_config,
)
from gemma_serving.contracts.guest_attributes import READY, RETRYING
from gemma_serving.vm_agent.cloud import MetadataClient
from gemma_serving.vm_agent.containers import run_command
from gemma_serving.vm_agent.follow import LatestDocument
from gemma_serving.vm_agent.observe import COLLECTOR_NAME, Observer
from gemma_serving.vm_agent.publishing import PhasePublisher
from gemma_serving.vm_agent.running_server import KnownSecrets, RunEnd, RunningServer
from gemma_serving.vm_agent.stored_state import StoredState
from localcloud.running.shims.docker import NO_DAEMON
from localcloud.running.shims.machine import read_json, write_json
from tests.vm_agent.in_process import Serving, calls, seen
from tests.vm_agent.machine import Machine, free_port

KEY = "projects/p/secrets/gemma-x-api-key/versions/1"
VALUE = "canary-key-0123456789"


def settings(*, namespace: str = "gemma-x", key: str | None = None, image: str = COLLECTOR_IMAGE) -> str:
    config = collector_config(
        project="p",
        namespace=namespace,
        cluster="tpu",
        ports=(8000, 8001),
        has_api_key=key is not None,
    )
    return CollectorSettings(image, config, key).text()


@pytest.fixture
def observer(machine: Machine):
    metadata, latest = MetadataClient(clock=machine.requests), LatestDocument(machine.clock)
    publisher = PhasePublisher(metadata)
    secrets = KnownSecrets(metadata, publisher)
    run_end = RunEnd(latest, publisher, RunningServer(StoredState(), latest, secrets))
    observer = Observer(metadata, publisher, run_end, secrets, port=free_port(), clock=machine.clock)
    yield observer
    observer.apply(99, None)


def applied(observer: Observer, text: str | None) -> bool:
    observer.value.set(text)
    return observer.apply(*observer.value.get())


def scraped(observer: Observer, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{observer.port}{path}", timeout=30) as answer:
        return answer.read().decode()


def test_the_key_starts_one_collector_with_its_configuration_and_a_limit_of_memory(
    observer: Observer, machine: Machine
):
    assert applied(observer, settings())
    (call,) = calls(machine, "run")
    assert {"--net=host", "--memory=512m", "--restart=unless-stopped", "--name=gemma-serving-collector"} <= set(call)
    assert {"--cap-drop=ALL", "--security-opt=no-new-privileges", "--read-only", "--user=10001"} <= set(call)
    assert not [word for word in call if word.startswith(("--volume", "--cgroup-parent", "--cap-add", "--privileged"))]
    assert call[-2:] == [COLLECTOR_IMAGE, f"--config=env:{CONFIG_VARIABLE}"]
    config = json.loads(seen(machine)[-1]["env"][CONFIG_VARIABLE])
    jobs = config["receivers"]["prometheus"]["config"]["scrape_configs"]
    assert [job["job_name"] for job in jobs] == ["vllm", "agent"]
    assert applied(observer, settings()), "an agent that starts again finds it"
    assert observer.apply(2, settings())
    assert len(calls(machine, "run")) == 1


def test_a_changed_key_replaces_the_collector_and_no_key_removes_it(observer: Observer, machine: Machine):
    applied(observer, settings())
    applied(observer, settings(namespace="gemma-y"))
    assert len(calls(machine, "run")) == 2
    assert "gemma-y" in seen(machine)[-1]["env"][CONFIG_VARIABLE]
    applied(observer, None)
    assert not machine.vm.record(COLLECTOR_NAME).exists()
    with pytest.raises(urllib.error.URLError):
        scraped(observer)


def test_a_collector_that_stops_after_each_start_is_reported_and_replaced(
    observer: Observer, machine: Machine, capsys: pytest.CaptureFixture[str]
):
    assert applied(observer, settings())
    assert not observer._has_stopped()
    record = machine.vm.record(COLLECTOR_NAME)
    write_json(record, {**(read_json(record) or {}), "running": False, "restarting": True})
    assert observer._has_stopped()
    assert "The collector stops after each start, with exit code 0." in capsys.readouterr().err
    assert observer.apply(1, settings())
    assert len(calls(machine, "run")) == 2


def test_a_collector_that_a_killed_daemon_left_exited_starts_again(observer: Observer, machine: Machine, capsys):
    assert applied(observer, settings())
    run_command(["docker", "stop", "-t", "1", COLLECTOR_NAME])
    assert observer._has_stopped()
    assert "stops after each start" not in capsys.readouterr().err
    assert observer.apply(1, settings())
    assert len(calls(machine, "run")) == 2
    assert not observer._has_stopped()


def test_without_docker_a_collector_is_neither_started_nor_reported_as_gone(
    observer: Observer, machine: Machine, capsys
):
    assert applied(observer, settings())
    machine.vm.stopped_docker.touch()
    assert not observer._has_stopped()
    assert not observer.apply(1, settings())
    assert f"No metrics are collected: docker does not respond: {NO_DAEMON}" in capsys.readouterr().err
    machine.vm.stopped_docker.unlink()
    assert observer.apply(1, settings())
    assert len(calls(machine, "run")) == 1


def test_the_api_key_reaches_the_collector_in_memory_and_no_log(observer: Observer, machine: Machine):
    machine.secrets[KEY] = VALUE.encode()
    assert applied(observer, settings(key=KEY))
    assert seen(machine)[-1]["env"]["VLLM_API_KEY"] == VALUE
    assert VALUE not in json.dumps(machine.docker_calls())
    assert observer.publisher.mask(f"key {VALUE}") != f"key {VALUE}"


def test_what_cannot_start_is_tried_again_and_what_cannot_be_read_is_not(observer: Observer, machine: Machine, capsys):
    assert not applied(observer, settings(image="missing@sha256:" + "0" * 64))
    assert "No metrics are collected: Cannot pull image missing" in capsys.readouterr().err
    assert not applied(observer, settings(key=KEY)), "the grant may still come"
    assert applied(observer, "no json")
    assert "No metrics are collected: Expecting" in capsys.readouterr().err
    assert calls(machine, "run") == []


def test_the_agents_metrics_are_those_that_alerts_name(observer: Observer):
    observer.run_end.set("2026-11-22T18:00:00Z")
    observer.publisher.publish(RETRYING, "a" * 64, "gone")
    observer.publisher.publish(READY, "a" * 64)
    applied(observer, settings())
    text = scraped(observer)
    names = {line.split("{")[0].split(" ")[0] for line in text.splitlines() if not line.startswith("#")}
    assert names == {"gemma_serving_phase", "gemma_serving_restarts_total", "gemma_serving_deadline_timestamp_seconds"}
    assert 'gemma_serving_phase{phase="ready"} 1' in text
    assert "gemma_serving_restarts_total 1" in text
    assert "gemma_serving_deadline_timestamp_seconds 1795370400.000" in text
    with pytest.raises(urllib.error.HTTPError, match="404"):
        scraped(observer, "/other")


def test_without_an_end_of_the_run_there_is_no_deadline(observer: Observer):
    assert "deadline" not in observer.exposition()


@pytest.mark.parametrize(("image", "said"), [("missing", "manifest unknown"), ("slow", "no result within 0 s")])
def test_a_collector_whose_image_does_not_come_leaves_the_server_alone(
    observer: Observer, machine: Machine, monkeypatch, image: str, said: str
):
    reports, serving = list[str](), Serving(machine)
    observer.retry_s, observer.pull_limit_s = 0.01, 0.3
    monkeypatch.setattr(observer.publisher, "report", reports.append)

    observer.value.set(settings(image=f"{image}@sha256:" + "0" * 64))
    machine.clock.start(observer.run)
    serving.good()
    machine.until(lambda: len(reports) >= 3, "the pull is tried again")
    started = [call for call in calls(machine, "run") if "--name=gemma-serving-collector" in call]
    assert (said in reports[0], started) == (True, [])
    assert reports[0].endswith("Trying again in 0.01 s.")
    assert machine.guest()["phase"] == "ready"
