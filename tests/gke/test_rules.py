"""Findings about a server on GKE: each question has its finding before anything is written."""

import dataclasses
import re
from typing import get_args

import pytest

from gemma_serving.gke.rules import GKE_RULES, findings
from gemma_serving.gke.server_inputs import GkeOptions
from gemma_serving.planning.settings.cloud_run import MountMode, MountSettings
from tests.gke.test_objects import BUILT, SHIPPED, TOO_SLOW, server_of, settings_of

FUSE = "Cloud Storage FUSE CSI driver"
SCALED = GkeOptions(replicas=(1, 3))


def found_in(stack, options=SCALED, **changes):
    server = server_of(stack, options, **changes)
    return {one.id: one for one in findings(server, options)}


@pytest.mark.parametrize("stack", SHIPPED)
def test_only_a_built_image_and_a_long_start_block_a_shipped_stack(stack):
    blocking = {one.id for one in found_in(stack).values() if one.severity == "block"}
    assert blocking == ({"GKE03"} if stack in BUILT else set()) | ({"GKE07"} if stack == TOO_SLOW else set())


@pytest.mark.parametrize("stack", sorted(BUILT))
def test_a_built_stack_is_served_from_a_given_digest_with_a_fixed_number(stack):
    options = GkeOptions(replicas=(2, 2), image=f"us-docker.pkg.dev/p/r/i@sha256:{'c' * 64}")
    assert not [one for one in found_in(stack, options).values() if one.severity == "block"]


@pytest.mark.parametrize(
    ("stack", "options", "changes", "identifier", "says"),
    [
        ("tpu-v6e4", {}, {"tpu": {"accelerator_type": "v5e-4"}}, "GKE01", "labels of v5e-4 are not known"),
        (
            "tpu-v6e4",
            {},
            {"image": {"build_context": "images/x"}},
            "GKE03",
            "image that the stack builds has no digest",
        ),
        ("tpu-v6e4", {"image": "here/server:latest"}, {}, "GKE03", '"here/server:latest"'),
        ("tpu-v6e4", {"image": "here/server@sha256:12"}, {}, "GKE03", '"here/server@sha256:12"'),
        ("tpu-v6e4", {}, {"tpu": {"zones": ("europe-west4-a",)}}, "GKE08", "but tpu.zones has europe-west4-a"),
        ("tpu-v6e4", {}, {}, "GKE09", "after at most 7 days"),
        ("tpu-v6e4", {}, {}, "GKE10", "downtime of up to 20 min"),
        ("tpu-v6e4", {}, {}, "GKE11", "a second replica may get no traffic"),
        ("l4-qat", {}, {}, "GKE12", "CUDA compatibility"),
        (
            "tpu-v6e4-31b",
            {},
            {},
            "GKE15",
            "needs 67 GiB of its node's boot disk for the weights, but the default disk of 100 GB leaves 45 GiB",
        ),
        ("l4-qat", {}, {"cloud_run": {"compile_cache": "bucket"}}, "GKE05", "captures its graphs, which takes 104 s."),
        (
            "tpu-v6e4-31b",
            {},
            {"weights": "bucket"},
            "GKE06",
            "take 9 min 7 s of each start, and 3 min 28 s with vllm.loadFormat",
        ),
        ("l4-qat", {"gateway": "inference"}, {}, "GKE13", "Gateway inference with an HTTPS listener named https"),
        (
            "l4-qat",
            {},
            {},
            "GKE14",
            "costs $0.85/h (standard). With the $0.10/h of the cluster, that is $0.95/h for 1 and $2.66/h for 3.",
        ),
    ],
)
def test_a_question_has_its_finding(stack, options, changes, identifier, says):
    found = found_in(stack, GkeOptions(replicas=(1, 3), **options), **changes)
    assert says in found[identifier].message


@pytest.mark.parametrize(("cache", "named"), [("machine", True), ("bucket", False)])
def test_a_start_too_long_for_an_autoscaler_is_shortened_by_stored_programs_only_once(cache, named):
    replicas = {"vllm": {"tensor_parallel_size": None, "data_parallel_size": 4}}
    found = found_in("tpu-v6e4", tpu={"compile_cache": cache}, **replicas)
    assert ("tpu.compileCache: bucket" in found["GKE07"].advice) is named


@pytest.mark.parametrize("mode", get_args(MountMode))
def test_a_mode_is_named_only_if_it_is_planned_faster(mode):
    mount = MountSettings(mode=mode, cache_size_mib=14_336 if mode == "fuse-cached" else None)
    found = found_in("l4-qat", cloud_run={"mount": mount})
    assert ("GKE06" in found) is (mode not in {"fuse-buffered", "streamer"})
    if "GKE06" in found:
        assert found["GKE06"].advice == "Set cloudRun.mount.mode: fuse-buffered, and measure a start."


def test_no_streamer_is_named_for_weights_from_the_hub_or_for_an_image_without_it():
    assert "GKE06" not in found_in("tpu-v6e4-31b")
    old = dataclasses.replace(settings_of("tpu-v6e4-31b").image, version="0.12.0")
    assert "GKE06" not in found_in("tpu-v6e4-31b", weights="bucket", image=old)


@pytest.mark.parametrize(
    ("stack", "replicas", "changes", "needs"),
    [
        ("tpu-v6e4", (1, 1), {}, "Managed Service for Prometheus."),
        ("tpu-v6e4", (1, 3), {}, "Managed Service for Prometheus, Custom Metrics Stackdriver Adapter."),
        (
            "tpu-v6e4",
            (1, 1),
            {"hf_token_secret": "projects/p/secrets/t/versions/3"},
            "Managed Service for Prometheus, Workload Identity Federation, Secret Manager add-on.",
        ),
        (
            "tpu-v6e4",
            (1, 1),
            {"tpu": {"compile_cache": "bucket"}},
            f"Managed Service for Prometheus, Workload Identity Federation, {FUSE}.",
        ),
        (
            "tpu-v6e4",
            (1, 1),
            {"api_key_secret": "projects/p/secrets/k/versions/3"},
            "Managed Service for Prometheus, Workload Identity Federation, Secret Manager add-on.",
        ),
        (
            "l4-qat",
            (1, 1),
            {},
            f"Managed Service for Prometheus, Workload Identity Federation, {FUSE} of GKE 1.34.0-gke.2011000 or newer.",
        ),
    ],
)
def test_the_cluster_needs_only_what_the_objects_use(stack, replicas, changes, needs):
    found = found_in(stack, GkeOptions(replicas=replicas), **changes)
    assert found["GKE13"].message == f"The cluster must have: {needs}"


@pytest.mark.parametrize("key", ["hfToken", "apiKey"])
def test_a_secret_that_the_stacks_teardown_deletes_is_refused(key):
    message = found_in("tpu-v6e4", secrets=(key,))["GKE02"].message
    assert f"`gemma save_token STACK {key} --secret ID`" in message


def test_a_secret_by_reference_is_served():
    references = {
        "hf_token_secret": "projects/p/secrets/t/versions/3",
        "api_key_secret": "projects/p/secrets/k/versions/1",
    }
    assert "GKE02" not in found_in("tpu-v6e4", **references)


def test_a_copy_in_memory_is_refused_with_the_mode_that_a_pod_can_have():
    mount = dataclasses.replace(settings_of("l4-qat").cloud_run.mount, mode="memory")
    found = found_in("l4-qat", cloud_run={"mount": mount})
    assert "Set cloudRun.mount.mode: fuse-buffered." in found["GKE02"].message


def test_a_network_policy_needs_its_enforcement():
    found = found_in("tpu-v6e4", GkeOptions(callers=("chat",)))
    assert found["GKE13"].message.endswith("Managed Service for Prometheus, enforcement of network policies.")


@pytest.mark.parametrize(
    ("options", "gone"),
    [
        ({"replicas": (2, 3)}, "GKE10"),
        ({"spare_node": True}, "GKE10"),
        ({"gateway": "inference"}, "GKE11"),
        ({"replicas": (1, 1)}, "GKE11"),
        ({"compute_class": "tpu-v6e-2x2"}, "GKE09"),
    ],
)
def test_a_choice_removes_its_warning(options, gone):
    before = found_in("tpu-v6e4")
    assert gone in before
    assert gone not in found_in("tpu-v6e4", GkeOptions(**{"replicas": (1, 3), **options}))


def test_every_rule_has_an_id_in_order_and_a_sentence_with_its_source():
    assert sorted(GKE_RULES) == [f"GKE{number:02}" for number in range(1, len(GKE_RULES) + 1)]
    order = [("block", "warn", "info").index(one["severity"]) for one in GKE_RULES.values()]
    assert order == sorted(order)
    assert all(re.search(r"\.$|^\{", one["message"]) and one["source"] for one in GKE_RULES.values())


@pytest.mark.parametrize(("stack", "size"), [("tpu-v6e4-31b", "150"), ("tpu-v6e4", None)])
def test_weights_that_do_not_fit_on_the_default_disk_need_a_larger_one(stack, size):
    found = found_in(stack)
    assert ("GKE15" in found) is (size is not None)
    assert size is None or found["GKE15"].advice.endswith(f"--disk-size={size}.")
