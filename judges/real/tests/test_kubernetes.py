"""The objects of the GKE targets on a real control plane, registered by the real provider of Pulumi."""

import time

import pytest

from judges.real.kubernetes import programs as built
from judges.real.kubernetes.cluster import running_cluster
from judges.real.kubernetes.deployment import new_project
from judges.real.kubernetes.kubelet import Serving, TinyKubelet
from judges.real.kubernetes.life import Namespace, changed, container, of_kind, scaled
from judges.real.kubernetes.metrics import running_adapter, wait_for_metrics
from judges.real.kubernetes.shipped import names, shipped
from judges.real.kubernetes.world import NOT_JUDGED, accelerators, disk_left_gib, furnish, nodes

SPEED = 120
"""Seconds of a start that pass in one second, except where the autoscaler is judged in its own time."""
START_S = 60
"""The start of a replica, with its node, to which the autoscaler's times are scaled."""
PLANTED = "tpu-v6e1"
FOLLOWED = "l4-12b-qat"
ACCELERATORS = {"L4": "l4", "RTX PRO 6000": "rtx6000"}
"""Names in nodes.toml of accelerators that the planner names otherwise."""


@pytest.fixture(scope="module")
def programs(home):
    """The built programs."""
    return built.ensure(home)


@pytest.fixture(scope="module")
def cluster(home, programs, judge):
    """A control plane with nodes and a kubelet."""
    judge(
        f"Kubernetes {built.KUBERNETES}, etcd {built.module_version('go.etcd.io/etcd/server/v3')}, pulumi-kubernetes {built.PROVIDER}"
    )
    with running_cluster(home, programs) as found:
        furnish(found)
        yield found


@pytest.fixture(scope="module")
def kubelet(cluster):
    """The kubelet of all nodes, and the metrics of its servers."""
    found = TinyKubelet(cluster.api, [node["metadata"]["name"] for node in nodes()])
    found.start()
    with running_adapter(cluster, found):
        wait_for_metrics(cluster.api)
        yield found
    found.stop()
    assert not found.errors, found.errors[:3]


@pytest.fixture
def namespace(home, cluster, programs, kubelet, request):
    """Return a function that makes a namespace for a stack. What a test leaves there is deleted."""
    made = []

    def make(stack, **serving):
        name = f"judge-{len(kubelet.servings)}"
        kubelet.servings[name] = Serving(
            start_s=stack.start_s, concurrent=stack.server.concurrent_requests, **{"speed": SPEED} | serving
        )
        made.append(Namespace(name=name, project=new_project(home, cluster, programs, name), kubelet=kubelet))
        return made[-1]

    yield make
    for one in made:
        one.project.destroy()
        cluster.api.call("DELETE", f"api/v1/namespaces/{one.name}")


@pytest.mark.parametrize("name", names())
def test_selectors(name):
    """A stack selects, tolerates and takes what Google's published manifests do for its accelerator."""
    stack = shipped(name)
    published = accelerators()[ACCELERATORS.get(stack.server.accelerator, stack.server.accelerator)]
    deployment = of_kind(stack.objects, "Deployment")
    spec = deployment["spec"]["template"]["spec"]
    form = {"cloud.google.com/gke-flex-start": "true"} if stack.server.form == "flex-start" else {}
    assert spec["nodeSelector"] == {**published["labels"], **form}
    key, _, effect = published["taint"].replace("=present", "").partition(":")
    assert {"key": key, "operator": "Exists", "effect": effect} in spec["tolerations"]
    assert published["resource"] in container(deployment)["resources"]["limits"]


@pytest.mark.parametrize("name", names())
def test_life(name, namespace, notes):
    """A stack comes up, scales, comes up again without a conflict, changes while it serves, and is destroyed without a rest."""
    stack = shipped(name)
    place = namespace(stack)
    objects = stack.objects
    notes.append(f"up: {place.project.up(objects)}")
    assert "error" not in notes[-1], notes[-1]
    notes.append(f"ready on {place.machines()} after {place.wait_ready(1) * SPEED:.0f} planned s")

    if stack.server.disk_gib > disk_left_gib(100):
        notes.append(
            f"needs {stack.server.disk_gib} GiB of boot disk, and GKE's default of 100 GB leaves {disk_left_gib(100)}"
        )
    place.serving.offered = 2 * place.serving.concurrent - 1
    notes.append(f"2 replicas after {place.wait_ready(2):.0f} s")
    again = place.project.up(objects)
    notes.append(f"second up: {again}")
    assert again == f"{len(objects) + 3} unchanged", again
    assert place.replicas() == 2

    before = {pod["metadata"]["name"] for pod in place.pods()}
    with place.called() as traffic:
        change = place.project.up(changed(objects, lambda one: container(one)["args"].append("--max-log-len=1")))
        assert "error" not in change, change
        place.wait(
            lambda: place.ready() == 2 and not before & {pod["metadata"]["name"] for pod in place.pods()},
            "2 new Pods",
            120,
        )
    notes.append(f"change: {change}; {traffic.calls} calls, {len(traffic.failures)} failed")
    assert not traffic.failures, traffic.failures[:3]

    gone = place.project.destroy()
    notes.append(f"destroy: {gone}")
    api = place.project.cluster.api
    place.wait(lambda: not api.present(place.name), f"nothing in the namespace: {api.present(place.name)}", 60)
    print(f"\n{name}: " + "; ".join(notes))


def test_autoscaler(namespace, notes):
    """The autoscaler follows the waiting requests up and down, and never has more replicas than the requests need."""
    stack = shipped(FOLLOWED, replicas=(1, 4))
    factor = stack.server.replica_start_s / START_S
    place = namespace(stack, node_s=stack.node_s, speed=factor)
    up = place.project.up(scaled(stack.objects, factor))
    assert "error" not in up, up
    place.wait_ready(1)
    concurrent, began_s = place.serving.concurrent, time.monotonic()
    for offered, needed in ((1.8, 2), (2.8, 3), (0.5, 1)):
        place.serving.offered = round(offered * concurrent)
        most, changed_s = 0, time.monotonic()
        while time.monotonic() - changed_s < 1.5 * START_S or (
            place.ready() != needed and time.monotonic() - changed_s < 6 * START_S
        ):
            most = max(most, place.replicas())
            time.sleep(1)
        notes.append(
            f"{offered:g} replicas' requests: {needed} ready, at most {most}, {time.monotonic() - began_s:.0f} s"
        )
        assert place.ready() == needed, f"{notes}: {place.state()}"
        assert most <= max(needed, most if needed == 1 else 0), notes


def test_autoscaler_without_behavior(namespace, notes):
    """Without the planned behavior the same requests start more replicas than they need, so this judge would see it."""
    stack = shipped(FOLLOWED, replicas=(1, 4))
    factor = stack.server.replica_start_s / START_S
    place = namespace(stack, node_s=stack.node_s, speed=factor)
    place.project.up(changed(stack.objects, lambda one: one["spec"].pop("behavior"), "HorizontalPodAutoscaler"))
    place.wait_ready(1)
    place.serving.offered = round(1.8 * place.serving.concurrent)
    place.wait(lambda: place.replicas() > 2, "more than 2 replicas", START_S)
    notes.append(f"{place.replicas()} replicas for requests of 1.8")


def test_wrong_selector(namespace, notes):
    """The scheduler refuses a selector that no node of Google's manifests has."""
    place = namespace(stack := shipped(PLANTED))

    def plant(deployment):
        deployment["spec"]["template"]["spec"]["nodeSelector"]["cloud.google.com/gke-tpu-topology"] = "1x1x1"

    place.project.up(changed(stack.objects, plant))
    place.wait(lambda: "didn't match Pod's node affinity/selector" in place.state(), "a refusal", 30)
    notes.append(place.project.cluster.api.scheduling(place.name))


def test_missing_toleration(namespace, notes):
    """The scheduler refuses a Pod that does not tolerate the accelerator's taint."""
    place = namespace(stack := shipped(PLANTED))
    place.project.up(changed(stack.objects, lambda one: one["spec"]["template"]["spec"].pop("tolerations")))
    place.wait(lambda: "untolerated taint" in place.state(), "a refusal", 30)
    notes.append(place.project.cluster.api.scheduling(place.name))


def test_replicas_beside_autoscaler(namespace, notes):
    """The API server refuses the second up of a Deployment that declares replicas beside an autoscaler."""
    place = namespace(stack := shipped(PLANTED))
    planted = changed(stack.objects, lambda one: one["spec"].update(replicas=1))
    place.project.up(planted)
    place.wait_ready(1)
    place.serving.offered = 2 * place.serving.concurrent
    place.wait_ready(2)
    notes.append(place.project.up(changed(planted, lambda one: container(one)["args"].append("--max-log-len=1"))))
    assert "error" in notes[-1]
    assert "conflict" in notes[-1]


def test_short_probe(namespace, notes):
    """The kubelet restarts a server whose startup probe gives up before the planned start ends, and it never becomes ready."""
    place = namespace(stack := shipped(PLANTED))
    place.project.up(changed(stack.objects, lambda one: container(one)["startupProbe"].update(failureThreshold=30)))
    place.wait(lambda: "startupProbe failed" in place.state(), "a restart", 60)
    notes.append(place.state())
    assert place.ready() == 0


def test_tag(namespace, notes):
    """The judge's rule in the API server refuses an image by tag."""
    place = namespace(stack := shipped(PLANTED))
    notes.append(
        place.project.up(changed(stack.objects, lambda one: container(one).update(image="vllm/vllm-tpu:latest")))
    )
    assert "all containers have an image by digest" in notes[-1]


def test_secret_in_environment(namespace, notes):
    """The judge's rule in the API server refuses a secret in an environment value."""
    place = namespace(stack := shipped(PLANTED))
    secret = {"name": "HF_TOKEN", "value": "hf_not_a_real_token_0123456789"}
    notes.append(place.project.up(changed(stack.objects, lambda one: container(one)["env"].append(secret))))
    assert "secret in its environment" in notes[-1]


def test_not_judged(cluster, notes):
    """The parts of GKE that have no judge here are named, and the control plane's memory is measured."""
    notes += [*NOT_JUDGED, cluster.memory()]
