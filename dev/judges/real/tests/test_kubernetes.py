"""The objects of the GKE targets on a real control plane, registered by the real provider of Pulumi."""

import json
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pulumi
import pytest

from dev.judges.planted import refuse_planted
from dev.judges.real.kubernetes import programs as built
from dev.judges.real.kubernetes.cluster import running_cluster
from dev.judges.real.kubernetes.deployment import new_project
from dev.judges.real.kubernetes.kubelet import Serving, TinyKubelet
from dev.judges.real.kubernetes.life import Namespace, changed, container, scaled
from dev.judges.real.kubernetes.metrics import running_adapter
from dev.judges.real.kubernetes.shipped import PROJECT, names, shipped
from dev.judges.real.kubernetes.world import NOT_JUDGED, disk_left_gib, furnish, nodes
from dev.judges.real.project import project_in_cloud
from gemma_serving.gke.objects import objects
from gemma_serving.gke.rules import findings
from gemma_serving.gke.server_inputs import NODE_START_S, GkeOptions

SPEED = 120
"""Seconds of a start that pass in one second, except where the autoscaler is judged in its own time."""
START_S = 60
"""The start of a replica, with its node, to which the autoscaler's times are scaled."""
PLANTED, FOLLOWED, EXAMPLE = "tpu-v6e1", "l4-12b-qat", "l4-12b-qat"
OPTIONS = GkeOptions(replicas=(1, 2))


def planted_lie():
    pod = {"metadata": {"name": "pod"}, "status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    cluster = SimpleNamespace(api=SimpleNamespace(items=lambda *_: [pod]))
    kubelet = SimpleNamespace(servers={})
    place = Namespace(name="planted", project=SimpleNamespace(cluster=cluster), kubelet=kubelet)
    lie = "a Pod that is not ready serves"
    refuse_planted(lie, lambda: str(place.wait(lambda: place.ready() == 1, "a ready Pod", limit_s=0)))


@pytest.fixture(scope="module")
def programs(home):
    """The built programs."""
    return built.ensure(home)


@pytest.fixture(scope="module")
def cluster(home, programs, judge):
    """A control plane with nodes and a kubelet."""
    etcd = built.module_version("go.etcd.io/etcd/server/v3")
    judge(f"Kubernetes {built.KUBERNETES}, etcd {etcd}, pulumi-kubernetes {built.PROVIDER}")
    with running_cluster(home, programs) as found:
        furnish(found)
        yield found


@pytest.fixture(scope="module")
def kubelet(cluster):
    """The kubelet of all nodes, and the metrics of its servers."""
    found = TinyKubelet(cluster.api, [node["metadata"]["name"] for node in nodes()])
    found.start()
    with running_adapter(cluster, found):
        yield found
    found.stop()
    assert not found.errors, found.errors[:3]


@pytest.fixture
def namespace(home, cluster, programs, kubelet):
    """Return a function that makes a namespace for a server. What a test leaves there is deleted."""
    made = []

    def make(server, **serving):
        name = f"judge-{len(kubelet.servings)}"
        figures = {"start_s": server.container_start_s, "concurrent": server.concurrent_requests, "speed": SPEED}
        kubelet.servings[name] = Serving(**figures | serving)
        made.append(Namespace(name=name, project=new_project(home, cluster, programs, name), kubelet=kubelet))
        return made[-1]

    yield make
    for one in made:
        one.project.destroy()
        cluster.api.call("DELETE", f"api/v1/namespaces/{one.name}")


def change_under_traffic(place, found, replicas):
    """Change a flag while callers call, and return a note and the failed calls."""
    before = place.pod_names()
    with place.called() as traffic:
        change = place.project.up(changed(found, lambda one: container(one)["args"].append("--max-log-len=1")))
        assert "error" not in change, change
        place.wait(lambda: place.ready() == replicas and not before & place.pod_names(), "new Pods", 120)
    return f"change: {change}; {traffic.calls} calls, {len(traffic.failures)} failed", traffic.failures


@pytest.mark.parametrize("name", names())
def test_life(name, namespace, notes):
    """A stack comes up, scales, comes up again without a conflict, changes while it serves, and leaves nothing."""
    try:
        server, found = shipped(name)
    except pulumi.RunError as error:
        notes.append(f"with an autoscaler: {str(error).splitlines()[1]}")
        server, found = shipped(name, replicas=(2, 2))
    place = namespace(server)
    if server.disk_gib > disk_left_gib(100):
        notes.append(f"{server.disk_gib} GiB of disk; GKE's default boot disk leaves {disk_left_gib(100)}")
    notes.append(f"up: {place.project.up(found)}")
    assert "error" not in notes[-1], notes[-1]
    place.wait_ready(1)
    place.serving.offered = 2 * place.serving.concurrent - 1
    notes.append(f"2 replicas on {place.machines()} after {place.wait_ready(2):.0f} s")
    notes.append(f"second up: {place.project.up(found)}")
    assert notes[-1].endswith(f"{len(found) + 3} unchanged"), notes[-1]
    assert place.replicas() == 2

    told, failures = change_under_traffic(place, found, 2)
    notes.append(told)
    assert not failures, failures[:3]

    notes.append(f"destroy: {place.project.destroy()}")
    api = place.project.cluster.api
    place.wait(lambda: not api.present(place.name), "nothing in the namespace", 60)
    print(f"\n{name}: {'; '.join(notes)}")


def test_every_option(namespace, notes):
    """The published definitions accept the objects of a server with a token, a Gateway and a spare node, and its Pod starts."""
    planned, _ = shipped(PLANTED)
    server = replace(planned, token_secret="projects/local-project/secrets/hf/versions/latest")
    found = objects(server, GkeOptions(replicas=(1, 2), gateway="gateway", spare_node=True))
    place = namespace(server)
    for one in found:
        place.project.cluster.api.require_valid(place.name, one)
    notes.append(f"{', '.join(one['kind'] for one in found)}: {place.project.up(found)}")
    assert "error" not in notes[-1], notes[-1]
    place.wait_ready(1)


def test_example(home, namespace, notes):
    """examples/gke deploys its stack in one graph with the grants on its bucket, and destroy leaves only the bucket."""
    server, _ = shipped(EXAMPLE)
    place = namespace(server)
    with project_in_cloud(home, name="kubernetes", speed=100) as project:
        bucket = f"storage/storage/v1/b/{PROJECT}-gemma-{EXAMPLE}-models"
        project.send(
            "POST", f"storage/storage/v1/b?project={PROJECT}", {"name": Path(bucket).name, "location": "US-EAST4"}
        )
        folder = project.folder / "examples/gke"
        (folder / ".venv").symlink_to(project.folder / ".venv")
        variables = {**project.variables, **place.project.variables(project.variables["PATH"], project.folder)}
        program = replace(project, folder=folder, variables=variables)
        program.pulumi("stack", "init", "judged")
        settings = {"gcp:project": PROJECT, "context": "judge", "namespace": place.name}
        program.pulumi("config", "set-all", *(f"--plaintext={key}={value}" for key, value in settings.items()))
        program.pulumi("up", "--yes", "--skip-preview")
        notes.append(f"ready after {place.wait_ready(1):.0f} s on {place.machines()}")
        granted = json.dumps(project.get(f"{bucket}/iam"))
        assert f"/ns/{place.name}/sa/gemma-{EXAMPLE}" in granted
        notes.append("the bucket grants access to the account in its namespace")
        program.pulumi("destroy", "--yes", "--skip-preview")
        assert place.name not in json.dumps(project.get(f"{bucket}/iam"))
        place.wait(lambda: not place.project.cluster.api.present(place.name), "empty namespace", 60)


def test_autoscaler(namespace, notes):
    """The autoscaler follows the requests up and down, and never has more replicas than they need."""
    server, found = shipped(FOLLOWED, replicas=(1, 4))
    factor = server.replica_start_s / START_S
    place = namespace(server, node_s=NODE_START_S, speed=factor)
    up = place.project.up(scaled(found, factor))
    assert "error" not in up, up
    place.wait_ready(1)
    for share, needed in ((1.8, 2), (2.8, 3), (0.5, 1)):
        place.serving.offered = round(share * place.serving.concurrent)
        highest = []
        began_s = time.monotonic()
        # Long enough for one replica too many to be seen, and for one policy period for each that goes.
        while (passed_s := time.monotonic() - began_s) < 1.5 * START_S or (
            place.ready() != needed and passed_s < 6 * START_S
        ):
            highest.append(place.replicas())
            time.sleep(1)  # between two looks at the replicas
        notes.append(
            f"{share:g} servers' requests: {highest[0]} to {max(highest)}, then {place.ready()} after {passed_s:.0f} s"
        )
        assert place.ready() == needed, f"{notes}: {place.refusal()}"
        assert max(highest) == max(needed, highest[0]), notes


def test_autoscaler_without_behavior(namespace, notes):
    """Planted: without the planned behavior, the same requests start more replicas than they need."""
    server, found = shipped(FOLLOWED, replicas=(1, 4))
    place = namespace(server, node_s=NODE_START_S, speed=server.replica_start_s / START_S)
    place.project.up(changed(found, lambda one: one["spec"].pop("behavior"), "HorizontalPodAutoscaler"))
    place.wait_ready(1)
    place.serving.offered = round(1.8 * place.serving.concurrent)
    place.wait(lambda: place.replicas() > 2, "more than 2 replicas", START_S)
    notes.append(f"{place.replicas()} replicas for the requests of 1.8 servers")


def test_change_of_one_replica(namespace, notes):
    """Planted: a warning says that a change of one replica without a spare node is downtime, and callers see it."""
    server, found = shipped(PLANTED, replicas=(1, 1))
    place = namespace(server)
    place.project.up(found)
    place.wait_ready(1)
    told, failures = change_under_traffic(place, found, 1)
    notes.append(f"{told}: {failures[0]}")
    assert "GKE10" in {one.id for one in findings(server, GkeOptions())}


def test_replicas_beside_autoscaler(namespace, notes):
    """Planted: the API server refuses the second up of replicas beside an autoscaler, which the objects never have."""
    server, found = shipped(PLANTED)
    planted = changed(found, lambda one: one["spec"].update(replicas=1))
    place = namespace(server)
    told = place.project.up(planted)
    place.wait_ready(1)
    place.serving.offered = 2 * place.serving.concurrent
    place.wait_ready(2)
    again = place.project.up(changed(planted, lambda one: container(one)["args"].append("--max-log-len=1")))
    notes.append(f"{told}; second up: {again}")
    assert "conflict" in again


@pytest.mark.skip(reason="only Google has it")
@pytest.mark.parametrize("part", NOT_JUDGED)
def test_google(part):
    """Part of GKE."""
