"""`gemma plan STACK --gke` and `--gcloud`: YAML or a command alone on stdout, findings on stderr, and nothing written for a blocked plan."""

import json
import shlex
import shutil
from pathlib import Path

import pytest
import yaml

from gemma_serving.contracts.settings_files import shipped_files
from gemma_serving.scripts.plan.__main__ import main
from gemma_serving.stacks.loading import from_file

ROOT = Path(__file__).parents[2]
STACKS = [path.name.split(".")[1] for path in shipped_files(ROOT)]
SECRET = "projects/theirs/secrets/token/versions/3"
LARGE = "google/gemma-4-31B-it"
"""59 GiB in bf16."""
IMAGE = f"us-docker.pkg.dev/p/r/server@sha256:{'c' * 64}"


@pytest.fixture
def plan(monkeypatch, capsys):
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "my-project")

    def planned(*arguments):
        code = main(["--stack", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return planned


def test_stdout_is_yaml_and_stderr_has_the_findings(plan):
    code, out, error = plan("tpu-v6e4", "--gke", "--replicas", "1:3", "--gateway", "inference")
    kinds = [one["kind"] for one in yaml.safe_load_all(out)]
    assert code == 0
    assert kinds == [
        *("ServiceAccount", "Service", "Deployment", "PodMonitoring", "HorizontalPodAutoscaler"),
        *("PodDisruptionBudget", "HTTPRoute"),
    ]
    assert "&id" not in out
    assert [line.split(": ")[1] for line in error.splitlines()] == ["GKE09", "GKE10", "GKE13", "GKE14", "GKE04"]


def test_the_objects_follow_the_changed_settings(plan):
    _, out, _ = plan("l4-qat", "--gke", "--set", "vllm.maxModelLen=8192", "--set", "cloudRun.memory=24Gi")
    (deployment,) = [one for one in yaml.safe_load_all(out) if one["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert "--max-model-len=8192" in container["args"]
    assert container["resources"]["limits"]["memory"] == "24576Mi"


LARGER = {
    "L4x4": (
        ("l4-qat", "--accelerator", "L4x4", "--set", f"model={LARGE}", "--set", "modelRevision=none"),
        "nvidia.com/gpu",
        4,
    ),
    "v6e-8": (
        ("tpu-v6e4-31b", "--set", "tpu.acceleratorType=v6e-8", "--set", "vllm.tensorParallelSize=none"),
        "google.com/tpu",
        8,
    ),
}


@pytest.mark.parametrize("name", LARGER)
def test_a_larger_machine_serves_one_model_on_all_its_devices(plan, name):
    arguments, resource, count = LARGER[name]
    code, out, error = plan(*arguments, "--gke")
    (deployment,) = [one for one in yaml.safe_load_all(out) if one["kind"] == "Deployment"]
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert code == 0
    assert container["resources"]["limits"][resource] == str(count)
    assert f"--tensor-parallel-size={count}" in container["args"]
    if name == "L4x4":
        run = from_file(ROOT / "Pulumi.l4-qat.yaml", project="my-project").cloud_run
        requests = container["resources"]["requests"]
        driver = int(deployment["spec"]["template"]["metadata"]["annotations"]["gke-gcsfuse/cpu-limit"])
        assert (int(requests["cpu"]) + driver, requests["memory"]) == (run.cpu * count, f"{run.memory_mib * count}Mi")
        assert pod["nodeSelector"] == {"cloud.google.com/gke-accelerator": "nvidia-l4"}
        assert "The node of a replica costs $4.00/h" in error
    else:
        assert pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == "2x4"


def test_a_model_that_one_gpu_cannot_hold_is_refused_without_the_larger_machine(plan):
    code, out, error = plan("l4-qat", "--gke", "--set", f"model={LARGE}", "--set", "modelRevision=none")
    assert (code, out) == (2, "")
    assert "is blocked by FIT01" in error


def test_json_has_the_objects_with_the_findings(plan):
    code, out, error = plan("l4-qat", "--gke", "--spare-node", "--json")
    answer = json.loads(out)
    assert (code, error, answer["stack"]) == (0, "", "l4-qat")
    assert [one["id"] for one in answer["findings"]] == ["GKE12", "GKE13", "GKE14", "GKE05"]
    assert answer["objects"][0]["kind"] == "ServiceAccount"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("tpu-v6e1-26b-w4a16", "--gke"), "is blocked by GKE03. Nothing was changed."),
        (("tpu-v6e1-26b-w4a16", "--gke", "--image", "here/server:v1"), 'The image "here/server:v1" has no digest.'),
        (("tpu-v6e1-31b-w4a16", "--gke", "--image", IMAGE, "--replicas", "1:2"), "is blocked by GKE07."),
        (("l4-qat", "--gke", "--set", "vllm.maxModelLen=9000000"), "is blocked by "),
        (("l4-qat", "--gke", "--replicas", "3:1"), "MIN:MAX with whole numbers from 1 to 9999, such as 1:3"),
        (("l4-qat", "--gke", "--replicas", "0:1"), "MIN:MAX with whole numbers from 1 to 9999, such as 1:3"),
        (("l4-qat", "--gke", "--replicas", "1:1000000"), "MIN:MAX with whole numbers from 1 to 9999, such as 1:3"),
        (("l4-qat", "--gke", "--gateway", "a b"), "--gateway is 'a b'; it must be up to 63 lower-case letters"),
        (("l4-qat", "--gke", "--compute-class", "Big_One"), "--compute-class is 'Big_One'; it must be up to 63"),
        (("l4-qat", "--gke", "--accelerator", "H100"), 'is "H100", but the stack has L4. Use one of L4, L4x2, L4x4.'),
        (("l4-qat", "--gke", "--accelerator", "x"), 'is "x", but the stack has L4. Use one of L4, L4x2, L4x4.'),
        (
            ("l4-qat", "--gke", "--accelerator", "L4x4", "--set", "vllm.tensorParallelSize=1"),
            "vllm.tensorParallelSize is 1, so 3 of the 4 GPUs of L4x4 would be idle. Remove it.",
        ),
        (("tpu-v6e4", "--gke", "--accelerator", "v6e-8"), "but the stack has v6e-4. Set tpu.acceleratorType."),
        (("l4-qat", "--accelerator", "L4x4"), "STACK and --accelerator cannot be combined."),
        (
            ("l4-qat", "--gke", "--callers", "Chat"),
            "--callers is 'Chat'; it must be namespaces and ranges of addresses",
        ),
        (
            ("l4-qat", "--gke", "--callers", "10.1.0.1/23"),
            "--callers is '10.1.0.1/23'; it must be namespaces and ranges",
        ),
        (("l4-qat", "--gke", "--callers", ""), "--callers is ''; it must be namespaces and ranges of addresses"),
        (("l4-qat", "--callers", "chat"), "--callers requires --gke. Add --gke."),
        (("l4-qat", "--replicas", "1:3"), "--replicas requires --gke. Add --gke."),
        (("l4-qat", "--image", IMAGE), "STACK and --image cannot be combined."),
        (("l4-qat", "--gke", "--costs"), "--gke and --costs cannot be combined."),
        (("l4-qat", "--gcloud", "--gke"), "--gcloud and --gke cannot be combined."),
        (("tpu-v6e4", "--gcloud"), "is not a Cloud Run service that reads its weights from a mounted bucket"),
    ],
)
def test_a_refusal_is_a_sentence_and_writes_nothing(plan, arguments, says):
    code, out, error = plan(*arguments)
    assert (code, out) == (2, "")
    assert says in error


def test_callers_are_admitted_by_a_policy(plan):
    code, out, _ = plan("tpu-v6e4", "--gke", "--callers", "chat,10.1.0.0/23")
    (policy,) = [one for one in yaml.safe_load_all(out) if one["kind"] == "NetworkPolicy"]
    assert code == 0
    assert "chat" in str(policy["spec"])
    assert "10.1.0.0/23" in str(policy["spec"])


def test_a_stack_whose_name_cannot_name_objects_is_refused(plan, monkeypatch, tmp_path):
    for name, target in (("Pulumi.yaml", "Pulumi.yaml"), ("Pulumi.tpu-v6e1.yaml", "Pulumi.My_Stack.yaml")):
        shutil.copy(ROOT / name, tmp_path / target)
    monkeypatch.setattr("gemma_serving.scripts.plan.question.ROOT", tmp_path)
    code, out, error = plan("My_Stack", "--gke")
    assert (code, out) == (2, "")
    assert 'The stack\'s name "My_Stack" becomes part of resource names.' in error


def test_a_built_image_is_served_by_the_digest_that_is_given(plan):
    code, out, _ = plan("tpu-v6e1-31b-w4a16", "--gke", "--image", IMAGE)
    assert code == 0
    assert f"image: {IMAGE}" in out


@pytest.mark.parametrize(
    ("stack", "changes"),
    [
        *((stack, ()) for stack in STACKS),
        ("tpu-v6e4", ("weights=bucket",)),
        ("tpu-v6e4", ("weights=bucket", "bucket.existing=theirs")),
        ("tpu-v6e4", (f"hfTokenSecret={SECRET}",)),
    ],
)
def test_a_project_is_needed_exactly_if_an_object_names_it(plan, monkeypatch, stack, changes):
    arguments = [stack, "--gke", "--image", IMAGE, *(word for change in changes for word in ("--set", change))]
    with_project = plan(*arguments)
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT")
    code, out, error = plan(*arguments)
    if "my-project" in with_project[1]:
        assert (code, out) == (2, "")
        assert f"Set gcp:project in Pulumi.{stack}.yaml or GOOGLE_CLOUD_PROJECT." in error
    else:
        assert (code, out, error) == with_project


@pytest.mark.parametrize("form", ["--gke", "--gcloud"])
def test_without_a_project_no_name_is_made_up(plan, monkeypatch, form):
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT")
    code, out, error = plan("l4-qat", form)
    assert (code, out) == (2, "")
    assert "Set gcp:project in Pulumi.l4-qat.yaml or GOOGLE_CLOUD_PROJECT." in error


def test_the_gcloud_command_has_the_flags_of_the_settings(plan):
    run = from_file(ROOT / "Pulumi.l4-qat.yaml", project="my-project").cloud_run
    code, out, _ = plan("l4-qat", "--gcloud", "--set", "cloudRun.maxInstances=2")
    words = shlex.split(out.replace("\\\n", " "))
    assert (code, words[:4]) == (0, ["gcloud", "run", "deploy", "gemma-l4-qat"])
    flags = dict(word.removeprefix("--").partition("=")[::2] for word in words[4:])
    assert (flags["gpu-type"], flags["region"], flags["memory"]) == (run.gpu, run.region, "20480Mi")
    assert (flags["min-instances"], flags["max-instances"]) == ("0", "2")
    assert "no-allow-unauthenticated" in flags
    served = flags["args"].removeprefix("^|^").split("|")
    assert served[:2] == ["serve", "/mnt/models/gemma-4-26B-A4B-it-qat-q4_0-w4a16-ct"]
    assert "--max-model-len=16384" in served
    assert json.loads(plan("l4-qat", "--gcloud", "--json")[1])["command"].startswith("gcloud run deploy gemma-l4-qat ")
