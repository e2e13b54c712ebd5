"""The program of examples/gke with the settings of each shipped stack: its resources, and the schemas of its objects."""

import copy
import json
import runpy
from functools import cache
from pathlib import Path

import kubernetes_validate
import pulumi
import pytest

from gemma_serving.contracts.settings_files import shipped_files
from gemma_serving.gke.server_inputs import GkeOptions
from gemma_serving.stacks.gke_program import server_on_gke
from tests.security_page import rows

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "examples" / "gke" / "__main__.py"
FILES = {path.name: path for path in sorted(shipped_files(ROOT))}
IMAGE = "us-east5-docker.pkg.dev/my-project/gemma/vllm@sha256:" + "a" * 64
MEMBER = (
    "principal://iam.googleapis.com/projects/123/locations/global/workloadIdentityPools/my-project.svc.id.goog/subject"
)
SLOW = "Pulumi.tpu-v6e1-31b-w4a16.yaml"
"""Starts too slowly for an autoscaler."""
SCHEMAS = ("1.33", "1.37")
"""An older minor version, and the newest that the package has."""
OF_GKE = {"SecretProviderClass", "PodMonitoring", "HTTPRoute"}
"""Kinds that Kubernetes itself does not have."""
# It would parse megabytes for each object.
kubernetes_validate.utils.schema_contents = cache(kubernetes_validate.utils.schema_contents)


def planned(declare, path, **choices):
    options = GkeOptions(image=IMAGE, **choices)
    return declare(lambda: server_on_gke(path, options, project="my-project").objects)[1]


def invalid(item):
    """Return why a schema of Kubernetes rejects an object; empty for an object that all of them accept."""
    for version in SCHEMAS:
        try:
            kubernetes_validate.validate(copy.deepcopy(item), version, strict=True)
        except kubernetes_validate.ValidationError as error:
            return f"{version}: {error.message}"
    return ""


def run_program(path, declare, monkeypatch, tmp_path):
    """Run the program with another settings file, and with an image for a stack that builds its own. Return what it exports."""
    text = PROGRAM.read_text().replace('Path(__file__).parents[2] / "Pulumi.l4-12b-qat.yaml"', f"Path({str(path)!r})")
    program = tmp_path / "program.py"
    program.write_text(text.replace("replicas=(1, 3)", f"replicas=(1, 3), image={IMAGE!r}"))
    values = {"gemma-serving:context": "gke_my-project_us-east5_mine", "gemma-serving:namespace": "models"}
    monkeypatch.setenv("PULUMI_CONFIG", json.dumps({**values, "gcp:project": "my-project"}))
    exported = {}
    monkeypatch.setattr(pulumi, "export", exported.__setitem__)
    return declare(lambda: runpy.run_path(str(program)) and exported["service"])


@pytest.mark.parametrize("name", sorted(FILES.keys() - {SLOW}))
def test_the_program_takes_the_settings_of_each_shipped_stack(declare, monkeypatch, tmp_path, name):
    recorder, service = run_program(FILES[name], declare, monkeypatch, tmp_path)
    stack = name.removeprefix("Pulumi.").removesuffix(".yaml")
    assert service == f"gemma-{stack}"
    kinds = [one.inputs["kind"] for one in recorder.declared if one.type.startswith("kubernetes:")]
    assert [kind for kind in kinds if kind != "SecretProviderClass"] == [
        "ServiceAccount", "Service", "Deployment", "PodMonitoring", "HorizontalPodAutoscaler", "PodDisruptionBudget"
    ]  # fmt: skip
    (deployment,) = [one.inputs for one in recorder.all("apps/v1:Deployment")]
    mounted = [one["csi"] for one in deployment["spec"]["template"]["spec"]["volumes"] if "csi" in one]
    grants = [one.inputs for one in recorder.all("bucketIAMMember")]
    assert [grant["bucket"] for grant in grants] == [one["volumeAttributes"]["bucketName"] for one in mounted]
    assert {grant["member"] for grant in grants} <= {f"{MEMBER}/ns/models/sa/{service}"}
    assert recorder.all("storage/bucket:Bucket") == []


def test_streamed_weights_are_granted_like_mounted_ones(declare, monkeypatch, tmp_path):
    settings = tmp_path / "Pulumi.streamed.yaml"
    shipped = FILES["Pulumi.l4-12b-qat.yaml"].read_text()
    settings.write_text(shipped.replace("cloudRun:", "cloudRun:\n    mount: {mode: streamer}"))
    recorder, service = run_program(settings, declare, monkeypatch, tmp_path)
    (container,) = recorder.one("apps/v1:Deployment").inputs["spec"]["template"]["spec"]["containers"]
    grant = recorder.one("bucketIAMMember").inputs
    assert container["args"][0].startswith(f"gs://{grant['bucket']}/")
    assert grant["member"] == f"{MEMBER}/ns/models/sa/{service}"


def test_compiled_programs_are_in_the_one_folder_that_pods_may_write(declare, monkeypatch, tmp_path):
    settings = tmp_path / "Pulumi.compiled.yaml"
    shipped = FILES["Pulumi.tpu-v6e1.yaml"].read_text()
    settings.write_text(shipped.replace("  gemma-serving:tpu:\n", "  gemma-serving:tpu:\n    compileCache: bucket\n"))
    recorder, service = run_program(settings, declare, monkeypatch, tmp_path)
    grants = [one.inputs for one in recorder.all("bucketIAMMember")]
    writer, reader = sorted(grants, key=lambda grant: grant["role"])
    assert {reader["member"], writer["member"]} == {f"{MEMBER}/ns/models/sa/{service}"}
    assert (reader["role"], "condition" in reader) == ("roles/storage.objectViewer", False)
    assert writer["role"] == "roles/storage.objectUser"
    pod = recorder.one("apps/v1:Deployment").inputs["spec"]["template"]["spec"]
    (mount,) = [one["csi"]["volumeAttributes"] for one in pod["volumes"] if "csi" in one]
    folder = mount["mountOptions"].rpartition("only-dir=")[2]
    granted = writer["condition"]["expression"]
    assert granted == f'resource.name.startsWith("projects/_/buckets/{mount["bucketName"]}/objects/{folder}/")'
    by_hand = granted.replace(mount["bucketName"], "BUCKET")
    assert f"expression={by_hand}" in (ROOT / "docs" / "grow.md").read_text()
    (access,) = [row[1] for row in rows("Code, weights and TPU VMs", level=3) if row[0].endswith("server on GKE")]
    assert f"writes `{folder}/`, whose programs run in every Pod" in access


def test_a_token_is_a_file_that_only_its_pods_may_read(declare, monkeypatch, tmp_path):
    settings = tmp_path / "Pulumi.with-token.yaml"
    stored = "projects/theirs/secrets/hf/versions/7"
    shipped = FILES["Pulumi.tpu-v6e1.yaml"].read_text()
    settings.write_text(f"{shipped}\n  gemma-serving:hfTokenSecret: {stored}\n")
    recorder, service = run_program(settings, declare, monkeypatch, tmp_path)
    grant = recorder.one("secretIamMember").inputs
    assert (grant["project"], grant["secretId"]) == ("theirs", "hf")
    assert grant["member"] == f"{MEMBER}/ns/models/sa/{service}"
    assert stored in recorder.one("SecretProviderClass").inputs["spec"]["parameters"]["secrets"]
    (container,) = recorder.one("apps/v1:Deployment").inputs["spec"]["template"]["spec"]["containers"]
    variables = {one["name"]: one["value"] for one in container["env"]}
    assert "HF_TOKEN" not in variables
    assert variables["HF_TOKEN_PATH"].startswith(container["volumeMounts"][-1]["mountPath"])


def test_an_api_key_is_granted_to_its_pods_and_checked_by_the_guard(declare, monkeypatch, tmp_path):
    settings = tmp_path / "Pulumi.with-key.yaml"
    shipped = FILES["Pulumi.tpu-v6e1.yaml"].read_text()
    settings.write_text(f"{shipped}\n  gemma-serving:apiKeySecret: projects/theirs/secrets/key/versions/7\n")
    recorder, service = run_program(settings, declare, monkeypatch, tmp_path)
    grant = recorder.one("secretIamMember").inputs
    assert (grant["secretId"], grant["member"]) == ("key", f"{MEMBER}/ns/models/sa/{service}")
    made = [one.inputs for one in recorder.declared if one.type.startswith("kubernetes:")]
    assert [one["kind"] for one in made][:5] == [
        "ServiceAccount",
        "SecretProviderClass",
        "ConfigMap",
        "Service",
        "Deployment",
    ]
    assert [why for one in made if one["kind"] not in OF_GKE if (why := invalid(one))] == []


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "choices", [{}, {"replicas": (2, 5), "gateway": "inference", "callers": ("chat", "10.1.0.0/23")}]
)
def test_the_schemas_of_kubernetes_accept_each_object(declare, name, choices):
    found = planned(declare, FILES[name], **(choices if name != SLOW else {}))
    assert {one["kind"] for one in found} & OF_GKE
    assert [why for one in found if one["kind"] not in OF_GKE if (why := invalid(one))] == []


def test_a_wrong_key_in_an_object_is_named(declare):
    (deployment,) = [one for one in planned(declare, FILES["Pulumi.tpu-v6e1.yaml"]) if one["kind"] == "Deployment"]
    deployment["spec"]["template"]["spec"]["containers"][0]["startupProbes"] = {}
    assert "'startupProbes' was unexpected" in invalid(deployment)


def test_a_blocking_finding_is_one_error_without_resources(declare, monkeypatch, tmp_path):
    with pytest.raises(pulumi.RunError, match=r"^Stack tpu-v6e1-31b-w4a16 is blocked by GKE07\. Nothing was changed\."):
        run_program(FILES[SLOW], declare, monkeypatch, tmp_path)


@pytest.mark.parametrize("replicas", [(0, 1), (3, 1)])
def test_a_number_of_replicas_that_kubernetes_rejects_is_one_error(declare, replicas):
    with pytest.raises(pulumi.RunError, match="replicas is "):
        planned(declare, FILES["Pulumi.l4-qat.yaml"], replicas=replicas)


def test_settings_that_are_missing_are_one_error(declare, tmp_path):
    with pytest.raises(pulumi.RunError, match=r"^Pulumi\.none\.yaml"):
        planned(declare, tmp_path / "Pulumi.none.yaml")
