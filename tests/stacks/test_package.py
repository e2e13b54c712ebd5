"""The package's components: a schema from the settings tree, all checks before a resource, and the server of a stack with the same settings."""

import copy
import json
import re
from functools import cache
from pathlib import Path

import pulumi
import pulumi_gcp as gcp
import pytest
import yaml
from pulumi.errors import InputPropertiesError
from pulumi.output import Unknown

from gemma_serving.contracts.compile_cache import ARCHIVE_METADATA_KEY
from gemma_serving.stacks import schema as settings
from gemma_serving.stacks.package import schema
from gemma_serving.stacks.package.constructing import construct as construct_component
from gemma_serving.stacks.package.inputs import NOT_OFFERED
from tests.stacks.conftest import values_of

ROOT = Path(__file__).resolve().parents[2]
PROJECT, EMAIL = "my-project", "own@my-project.iam.gserviceaccount.com"
NETWORK = "projects/my-project/global/networks/own"
OF = {
    "CloudRunGpuService": {
        "project": PROJECT,
        "serviceAccount": EMAIL,
        "serviceName": "own-gpu",
        "model": "google/gemma-4-E2B-it",
        "cloudRun": {
            "region": "us-east4",
            "gpu": "nvidia-l4",
            "cpu": 8.0,
            "memory": "32Gi",
            "concurrency": 16.0,
            "maxInstances": 1.0,
        },
    },
    "TpuQueuedResource": {
        "project": PROJECT,
        "serviceAccount": EMAIL,
        "queuedResourceId": "own-tpu",
        "network": NETWORK,
        "subnetwork": "own",
        "model": "google/gemma-4-E2B-it",
        "tpu": {"acceleratorType": "v6e-1", "zones": ["us-east5-a"], "maxRunDuration": "4h"},
    },
    "ModelBucket": {"project": PROJECT, "name": "my-models", "location": "us-east4"},
    "HuggingFaceToken": {"project": PROJECT, "secretId": "own-token", "value": "hf_canary"},
}
SECRET = "projects/my-project/secrets/own-token/versions/1"
package_schema = cache(schema.package_schema)


def inputs_of(kind, **changes):
    """Return valid inputs with other values by path; None removes one."""
    found = copy.deepcopy(OF[kind])
    for path, value in changes.items():
        *blocks, key = path.split("__")
        at = found
        for block in blocks:
            at = at.setdefault(block, {})
        at.pop(key, None)
        if value is not None:
            at[key] = value
    return found


@pytest.fixture
def construct(declare):
    """Construct a component, and return what was declared and its outputs."""

    def made(kind, inputs=None, **changes):
        given = inputs if inputs is not None else inputs_of(kind, **changes)
        built = lambda: construct_component(kind, "own", given).outputs  # noqa: E731
        return declare(lambda: pulumi.Output.all(**built()))

    return made


@pytest.fixture
def refused(construct, declare, monkeypatch):
    """Construct a component with invalid inputs, and return the reason by its property, and the message. Nothing may be declared."""

    declare(lambda: None)  # the first run of a process also declares the stack itself

    def declared(*_, **__):
        raise AssertionError("a resource was declared")

    def made(kind, **changes):
        monkeypatch.setattr("pulumi.Resource.__init__", declared)
        with pytest.raises(InputPropertiesError) as raised:
            construct(kind, **changes)
        found = {one["property_path"]: one["reason"] for one in raised.value.errors}
        known = package_schema()["resources"][f"gemma-serving:index:{kind}"]["inputProperties"]
        assert {re.split(r"[.[]", path)[0] for path in found} - set(changes) <= set(known), (
            "a problem is placed at an input"
        )
        return found, raised.value.message

    return made


@pytest.mark.parametrize("kind", OF)
def test_a_component_registers_the_class_that_programs_import_and_nothing_around_it(construct, kind):
    recorder, outputs = construct(kind)
    ours = [one.type for one in recorder.declared if one.type.startswith("gemma-serving:")]
    assert ours == [f"gemma-serving:index:{kind}"]
    stated = package_schema()["resources"][f"gemma-serving:index:{kind}"]
    assert set(outputs) == set(stated["properties"])


def test_the_plan_is_an_output_with_fit_start_and_price(construct):
    _, outputs = construct("TpuQueuedResource")
    plan = outputs["plan"]
    assert (plan["fits"], plan["accelerator"]) == (True, "v6e-1")
    assert plan["startup"]["totalS"] > 0
    assert plan["cost"]["usdPerHour"] == pytest.approx(1.35, abs=0.02)


def _blocks(found, name):
    return found["types"][f"gemma-serving:index:{name}"]["properties"]


def test_every_setting_is_an_input_or_named_with_the_reason_why_not():
    made = package_schema()
    for kind, block in (("CloudRunGpuService", "cloudRun"), ("TpuQueuedResource", "tpu")):
        inputs = made["resources"][f"gemma-serving:index:{kind}"]["inputProperties"]
        foreign = {"cloudRun", "tpu"} - {block}
        assert set(settings.settings_schema()["properties"]) - set(NOT_OFFERED) - foreign <= set(inputs)
    for name, path in (("CloudRunSettings", "cloudRun"), ("TpuSettings", "tpu"), ("BucketSettings", "bucket")):
        left_out = {key.removeprefix(f"{path}.") for key in NOT_OFFERED}
        assert set(settings.settings_schema()["$defs"][name]["properties"]) - left_out == set(_blocks(made, name))
    known = {
        f"{path.partition(':')[2]}.{key}".lstrip(".")
        for path, block in settings.blocks()
        for key in block["properties"]
    }
    assert set(NOT_OFFERED) - known == set()


def test_the_schema_is_the_same_each_time_and_says_what_may_be_an_output():
    made = package_schema()
    assert json.dumps(made) == json.dumps(schema.package_schema())
    inputs = made["resources"]["gemma-serving:index:TpuQueuedResource"]["inputProperties"]
    outputs = {key for key, value in inputs.items() if "plain" not in value}
    assert outputs == {"serviceAccount", "bucketName", "network", "subnetwork"}
    assert "plain" not in inputs["secrets"]["additionalProperties"]
    assert made["resources"]["gemma-serving:index:HuggingFaceToken"]["inputProperties"]["value"]["secret"] is True
    assert all(one["description"] for one in made["resources"].values())
    assert all(one.get("description") for kind in made["types"].values() for one in kind.get("properties", {}).values())


def test_what_the_planner_reads_cannot_be_an_output(refused):
    found, _ = refused("CloudRunGpuService", model=pulumi.Output.from_input("google/gemma-4-E2B-it"))
    assert found == {
        "model": "it is an output or a secret, but the plan and the checks need its value. Pass a plain value."
    }
    found, _ = refused("ModelBucket", location=pulumi.Output.from_input("us-east4"))
    assert "it is an output or a secret" in found["location"]


@pytest.mark.parametrize(
    ("kind", "keys"), [("ModelBucket", ("name", "project")), ("HuggingFaceToken", ("secretId", "project"))]
)
def test_what_no_plan_needs_may_be_an_output_and_a_known_value_is_still_checked(construct, refused, kind, keys):
    given = {key: pulumi.Output.from_input(OF[kind][key]) for key in keys}
    recorder, _ = construct(kind, labels={"team": pulumi.Output.from_input("ml")}, **given)
    inputs = recorder.one("storage/bucket:Bucket" if kind == "ModelBucket" else "secret:Secret").inputs
    assert {key: inputs[key] for key in keys} == {key: OF[kind][key] for key in keys}
    assert inputs["labels"]["team"] == "ml"
    for wrong in (
        {"project": "X"},
        {"labels": {"team": "M L"}},
        {"labels": {"managed-by": pulumi.Output.from_input("me")}},
    ):
        found, _ = refused(kind, **wrong)
        assert [key.partition("[")[0].partition(" ")[0].partition(".")[0] for key in found] == list(wrong)


def test_the_project_is_that_of_the_provider_unless_it_is_set(construct, refused):
    for kind in ("ModelBucket", "HuggingFaceToken"):
        recorder, _ = construct(kind, project=None)
        assert all("project" not in one.inputs for one in recorder.declared)
    for kind in ("CloudRunGpuService", "TpuQueuedResource"):
        assert "it is required without `gcp:project`" in refused(kind, project=None)[0]["project"]


@pytest.mark.parametrize("kind", ["CloudRunGpuService", "TpuQueuedResource"])
def test_a_server_is_planned_in_the_project_of_the_program(construct, declare, monkeypatch, kind):
    monkeypatch.setattr(
        "pulumi.Config.get", lambda config, key: PROJECT if (config.name, key) == ("gcp", "project") else None
    )
    recorder, _ = construct(kind, project=None, secrets={"HF_TOKEN": pulumi.Output.from_input(SECRET)})
    assert {one.inputs["project"] for one in recorder.declared if "project" in one.inputs} == {PROJECT}

    def with_provider():
        options = pulumi.ResourceOptions(providers={"gcp": gcp.Provider("other", project="other-project")})
        return construct_component(kind, "own", inputs_of(kind, project=None), options)

    with pytest.raises(InputPropertiesError) as raised:
        declare(with_provider)
    assert [one["property_path"] for one in raised.value.errors] == ["project"]


def test_the_outputs_name_what_a_program_attaches_to(construct):
    _, service = construct("CloudRunGpuService")
    assert (service["serviceName"], service["serviceAccount"]) == ("own-gpu", EMAIL)
    assert service["serviceId"]
    assert construct("TpuQueuedResource")[1]["serviceAccount"] == EMAIL
    assert construct("ModelBucket")[1]["url"] == "gs://my-models"


REFERENCES = {
    "account.member": f"serviceAccount:{EMAIL}", "account.email": EMAIL, "token.versionName": SECRET, "hfToken": "hf_canary",
    "suffix.id": "my-models", "network.id": NETWORK, "subnetwork.name": "own",
}  # fmt: skip


@pytest.mark.parametrize("kind", OF)
def test_the_example_in_a_description_is_accepted(construct, kind):
    described = package_schema()["resources"][f"gemma-serving:index:{kind}"]["description"]
    text = described.partition("An example in YAML:\n\n")[2]
    assert all(line.startswith("    ") for line in text.splitlines()), (
        "the generators of SDKs drop fenced code of other languages"
    )
    (example,) = yaml.safe_load(re.sub(r"\$\{(.*?)\}", lambda found: REFERENCES[found[1]], text)).values()
    assert example["type"] == f"gemma-serving:{kind}"
    inputs = example["properties"] | {"project": PROJECT}
    recorder, _ = construct(kind, inputs)
    assert [one.type for one in recorder.declared if one.type.startswith("gemma-serving:")] == [
        f"gemma-serving:index:{kind}"
    ]


def test_the_package_and_the_provider_name_the_same_repository_and_no_name_of_pulumi():
    ours, provider = package_schema(), json.loads((ROOT / "packages/gcp-tpu/gcp_tpu_provider/schema.json").read_text())
    same = ("homepage", "repository", "publisher", "license")
    assert {key: ours[key] for key in same} == {key: provider[key] for key in same}
    assert not ours["language"]["nodejs"]["packageName"].startswith("@pulumi/")
    assert {"kind/component", "category/cloud"} <= set(ours["keywords"])


def test_an_account_may_be_an_output_or_unknown_and_an_unknown_model_is_refused(construct, refused):
    for account, known in ((pulumi.Output.from_input(EMAIL), EMAIL), (Unknown(), None)):
        recorder, _ = construct("CloudRunGpuService", serviceAccount=account)
        assert recorder.one("cloudrunv2").inputs["template"].get("serviceAccount") == known
    assert "model" in refused("CloudRunGpuService", model=Unknown())[0]


def test_no_message_shows_a_secret(refused):
    for changes in (
        {"vllm__extraArgs": ["--hf-token=hf_canaryCanaryCANARY0123456789"]},
        {"secrets": {"HF_TOKEN": "hf_canaryCanaryCANARY0123456789"}},
    ):
        found, message = refused("CloudRunGpuService", **changes)
        assert "hf_canary" not in f"{found}{message}"


def test_a_plan_that_is_blocked_declares_nothing_and_names_the_way_out(refused):
    found, message = refused("CloudRunGpuService", model="google/gemma-4-31B-it", modelRevision=None)
    assert message == 'CloudRunGpuService "own" is blocked by FIT01, FIT03. Nothing was declared.'
    assert "does not fit on L4" in found["cloudRun.gpu"]
    assert "Choose one:" in found["cloudRun.gpu"]
    found, _ = refused("TpuQueuedResource", model="google/gemma-4-31B-it", modelRevision=None)
    assert list(found) == ["tpu.acceleratorType"], "not an input of the remedy that moves to another component"
    found, _ = refused("CloudRunGpuService", cloudRun__public=True)
    (reason,) = found.values()
    assert "To deploy anyway, set acceptFindings: [" in reason


@pytest.mark.parametrize(
    ("kind", "changes", "place"),
    [
        ("CloudRunGpuService", {"model": "google/no-such-model"}, "model"),
        ("CloudRunGpuService", {"modelConfig": "none.json"}, "modelConfig"),
        ("CloudRunGpuService", {"prices": "none.json"}, "prices"),
        ("TpuQueuedResource", {"tpu__acceleratorType": "v6e-3"}, "tpu.acceleratorType"),
        ("TpuQueuedResource", {"tpu__acceleratorType": "v5p-8"}, "tpu.acceleratorType"),
    ],
)
def test_what_cannot_be_planned_is_placed_at_its_input(refused, kind, changes, place):
    found, message = refused(kind, **changes)
    assert list(found) == [place]
    assert message == f'{kind} "own" is invalid. Nothing was declared.'


@pytest.mark.parametrize(
    ("kind", "changes", "place"),
    [
        ("CloudRunGpuService", {"image": "vllm-tpu"}, "image"),
        ("TpuQueuedResource", {"image": "vllm-openai"}, "image"),
        ("CloudRunGpuService", {"cloudRun": None}, "cloudRun"),
        ("CloudRunGpuService", {"cloudRun__mount": {"mode": "streamer"}}, "cloudRun.mount.mode"),
        ("CloudRunGpuService", {"vllm__lora": {"adapters": {"sql": "gs://b/f"}}}, "vllm.lora.adapters.sql"),
        ("CloudRunGpuService", {"weights": "prefetched-image", "modelRevision": "a" * 40}, "modelRevision"),
        ("TpuQueuedResource", {"tpu__provisioning": "reservation"}, "tpu"),
    ],
)
def test_a_contradiction_is_placed_at_the_first_input_that_it_names(refused, kind, changes, place):
    found, message = refused(kind, **changes)
    assert list(found) == [place]
    assert message == f'{kind} "own" has invalid inputs. Nothing was declared.'


def test_a_remedy_names_inputs_and_the_component_that_has_them(refused):
    reason = refused("CloudRunGpuService", model="google/gemma-4-31B-it")[0]["cloudRun.gpu"]
    assert "use TpuQueuedResource and set tpu.acceleratorType: v5e-8, tpu.zones: [" in reason
    assert "remove cloudRun" not in reason
    found, _ = refused("CloudRunGpuService", vllm__extraArgs=["--hf-token=hf_canaryCanaryCANARY0123456789"])
    assert "store the new one in Secret Manager" in found["vllm.extraArgs"]
    assert "save_token" not in found["vllm.extraArgs"]


def test_a_bucket_whose_name_is_not_known_yet_is_in_the_arguments_later(construct):
    name = pulumi.Output.from_input("their-models")
    changes = {"weights": "bucket", "cloudRun__mount": {"mode": "streamer"}, "vllm__loadFormat": "runai_streamer"}
    recorder, _ = construct("CloudRunGpuService", bucketName=name, **changes)
    words = recorder.one("cloudrunv2").inputs["template"]["containers"][0]["args"]
    assert "gs://their-models/gemma-4-E2B-it" in " ".join(words)
    recorder, _ = construct("TpuQueuedResource", bucketName=name, weights="bucket")
    document = json.loads(recorder.one("gcp-tpu:index:QueuedResource").inputs["metadata"]["gemma-serving-document"])
    assert document["weights"]["uri"] == "gs://their-models/gemma-4-E2B-it"


@pytest.mark.parametrize("kind", ["CloudRunGpuService", "TpuQueuedResource"])
def test_a_secret_instead_of_its_version_is_refused_before_google_gets_it(construct, kind):
    value = pulumi.Output.from_input("hf_canaryCanaryCANARY0123456789")
    with pytest.raises(ValueError, match="A value of `secrets` is not a version:") as raised:
        construct(kind, secrets={"HF_TOKEN": value})
    assert "canary" not in str(raised.value)


def test_secrets_are_named_and_their_server_waits_for_their_grants(construct):
    recorder, _ = construct("CloudRunGpuService", secrets={"HF_TOKEN": pulumi.Output.from_input(SECRET)})
    variables = recorder.one("cloudrunv2").inputs["template"]["containers"][0]["envs"]
    assert variables[-1] == {
        "name": "HF_TOKEN",
        "valueSource": {"secretKeyRef": {"secret": "own-token", "version": "1"}},
    }


def _stated(stack):
    return {key: value for key, value in values_of(stack).items() if key not in NOT_OFFERED}


def test_a_cloud_run_server_is_the_one_of_a_stack_with_the_same_settings(construct, declared):
    stack = declared("l4-qat", alerts={"enabled": False}, cloudRun__compileCache="off")  # which only a stack offers
    own = {key: OF["CloudRunGpuService"][key] for key in ("project", "serviceAccount", "serviceName")}
    ours, _ = construct("CloudRunGpuService", {**own, **_stated("l4-qat"), "bucketName": "my-project-gemma-x-models"})
    kept, made = (one.one("cloudrunv2/service:Service").inputs["template"] for one in (stack, ours))
    for key in ("serviceAccount",):
        assert kept.pop(key) != made.pop(key)
    image = kept["containers"][0].pop("image")
    assert made["containers"][0].pop("image").rpartition("@")[2] == image.rpartition("@")[2]
    networks = [one.pop("vpcAccess") for one in (kept, made)]
    assert {network["egress"] for network in networks} == {"ALL_TRAFFIC"}
    assert networks[1]["networkInterfaces"][0]["network"] == ours.one("compute/network:Network").name + "_id"
    assert made == kept


def test_a_tpu_server_is_the_one_of_a_stack_with_the_same_settings(construct, declared):
    stack = declared("tpu-v6e1", alerts={"enabled": False}, metrics={"enabled": False})
    own = {key: value for key, value in OF["TpuQueuedResource"].items() if key not in {"model", "tpu"}}
    ours, _ = construct("TpuQueuedResource", {**own, **_stated("tpu-v6e1")})
    kept, made = (one.one("gcp-tpu:index:QueuedResource").inputs for one in (stack, ours))
    document = [json.loads(one["metadata"].pop("gemma-serving-document")) for one in (kept, made)]
    images = [one.pop("image").rpartition("@")[2] for one in document]
    archives = [ARCHIVE_METADATA_KEY in one["metadata"] for one in (kept, made)]
    assert archives == [True, False], "only a stack declares the bucket and the key of archives"
    assert document[0] == document[1]
    assert images[0] == images[1]
    differ = {key for key in kept if kept[key] != made.get(key)}
    assert differ <= {
        "metadata",
        "network",
        "subnetwork",
        "serviceAccount",
        "queuedResourceId",
        "tags",
        "nextSteps",
        "labels",
    }
