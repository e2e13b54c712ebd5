"""Every mistake in the settings is one sentence with the key, the value and what is allowed."""

import copy
import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from stacks.loading import SettingsError, from_file, from_pulumi, from_values
from stacks.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
STACKS = sorted(path.name.removeprefix("Pulumi.").removesuffix(".yaml") for path in ROOT.glob("Pulumi.*.yaml"))


def values_of(stack):
    config = yaml.safe_load((ROOT / f"Pulumi.{stack}.yaml").read_text())["config"]
    return {key.partition(":")[2]: value for key, value in config.items()}


def load(values, project="my-project"):
    return from_values(values, project=project, has_token=False, origin="Pulumi.x.yaml")


def changed(stack, path, value):
    values = copy.deepcopy(values_of(stack))
    place = values
    *parents, last = path.split(".")
    for part in parents:
        place = place[part]
    if value is ...:
        place.pop(last)
    else:
        place[last] = value
    return values


@pytest.mark.parametrize("stack", STACKS)
def test_every_stack_of_the_project_loads(stack):
    assert isinstance(load(values_of(stack)), Settings)


def test_the_tpu_baseline_is_the_documented_one():
    settings = load(values_of("tpu-v6e4"))
    assert settings.model == "google/gemma-4-E2B-it"
    assert settings.tpu is not None
    assert (settings.tpu.accelerator_type, settings.tpu.provisioning, settings.tpu.max_run_duration_s) == (
        "v6e-4",
        "flex-start",
        4 * 3600,
    )
    vllm = settings.vllm
    assert (vllm.tensor_parallel_size, vllm.max_model_len, vllm.max_num_batched_tokens) == (4, 16384, 4096)
    assert (vllm.kv_cache_dtype, vllm.gpu_memory_utilization, vllm.disable_chunked_mm_input) == ("fp8", 0.4, True)
    assert vllm.limit_mm_per_prompt == {"image": 4, "audio": 1}


def test_the_l4_baseline_allows_the_start_that_was_measured():
    settings = load(values_of("l4-qat"))
    run = settings.cloud_run
    assert run is not None
    assert run.startup_probe is not None
    budget_s = run.startup_probe.initial_delay_s + run.startup_probe.period_s * run.startup_probe.failure_threshold
    assert budget_s > 664 + 99 + 4
    assert (run.gpu, run.memory_mib, settings.weights) == ("nvidia-l4", 32 * 1024, "bucket")
    assert run.concurrency > 4
    assert run.max_instances > 1


MISTAKES = [
    ("tpu-v6e4", "tagret", "tpu", "gemma-serving:tagret is not a known setting; did you mean target."),
    (
        "tpu-v6e4",
        "vllm.maxModelLength",
        1,
        "gemma-serving:vllm.maxModelLength is not a known setting; did you mean maxModelLen.",
    ),
    (
        "tpu-v6e4",
        "tpu.maxRunDuration",
        4,
        'gemma-serving:tpu.maxRunDuration = 4: a duration needs its unit; write for example "90s"',
    ),
    (
        "tpu-v6e4",
        "tpu.maxRunDuration",
        "4 hours",
        'gemma-serving:tpu.maxRunDuration = "4 hours": a duration needs its unit',
    ),
    ("tpu-v6e4", "tpu.maxRunDuration", "8d", 'maxRunDuration = "8d" must lie between "10m" and "7d"'),
    ("tpu-v6e4", "tpu.maxRunDuration", ..., "provisioning flex-start needs maxRunDuration"),
    (
        "tpu-v6e4",
        "tpu.zones",
        ["us-east5"],
        'gemma-serving:tpu.zones[0] = "us-east5": expected a zone such as us-east5-a.',
    ),
    ("tpu-v6e4", "tpu.zones", ["us-east5-a", "us-east5-a"], "each zone can be named once"),
    ("tpu-v6e4", "target", "gpu", "gemma-serving:target = \"gpu\": expected 'tpu' or 'cloud-run'."),
    ("tpu-v6e4", "target", "cloud-run", "target cloud-run needs the block cloudRun"),
    ("tpu-v6e4", "model", ..., "gemma-serving:model is missing; set it."),
    ("tpu-v6e4", "image.digest", "latest", "expected sha256: and 64 hexadecimal digits"),
    (
        "tpu-v6e4",
        "vllm.gpuMemoryUtilization",
        40,
        "gemma-serving:vllm.gpuMemoryUtilization = 40: expected less than or equal to 1.",
    ),
    ("tpu-v6e4", "vllm.maxModelLen", "16384", 'gemma-serving:vllm.maxModelLen = "16384": expected a whole number.'),
    ("tpu-v6e4", "vllm.toolCallParser", ..., "enableAutoToolChoice needs toolCallParser"),
    ("tpu-v6e4", "labels", {"managed-by": "me"}, '"managed-by" is set by this project'),
    ("tpu-v6e4", "endpointUrl", "http://localhost:8000", "write 127.0.0.1"),
    ("tpu-v6e4", "hasHfToken", True, "gemma-serving:hasHfToken is not a known setting"),
    ("tpu-v6e4", "project", "other-project", "gemma-serving:project is not a known setting"),
    ("l4-qat", "cloudRun.memory", 32, "gemma-serving:cloudRun.memory = 32: a memory size needs its binary unit"),
    (
        "l4-qat",
        "cloudRun.memory",
        "32GB",
        'gemma-serving:cloudRun.memory = "32GB": a memory size needs its binary unit',
    ),
    ("l4-qat", "cloudRun.minInstances", 3, "minInstances 3 is more than maxInstances 2"),
    ("l4-qat", "cloudRun.gpu", "l4", "expected 'nvidia-l4' or 'nvidia-rtx-pro-6000'"),
    ("l4-qat", "cloudRun.invokers", ["allUsers"], "for everybody set public: true"),
    ("l4-qat", "cloudRun.mount", {"mode": "fuse-cached"}, "mode fuse-cached and cacheSize go together"),
]


@pytest.mark.parametrize(("stack", "path", "value", "sentence"), MISTAKES, ids=[f"{m[1]}={m[2]}" for m in MISTAKES])
def test_a_mistake_is_one_sentence_with_the_key(stack, path, value, sentence):
    with pytest.raises(SettingsError) as caught:
        load(changed(stack, path, value))
    message = str(caught.value)
    assert sentence in message
    assert message.startswith("Pulumi.x.yaml: ")
    assert "\n" not in message
    assert "pydantic" not in message


def test_every_mistake_is_named_not_only_the_first():
    values = changed("tpu-v6e4", "vllm.maxModelLen", "x")
    values["tagret"] = 1
    with pytest.raises(SettingsError) as caught:
        load(values)
    assert len(str(caught.value).splitlines()) == 2


def test_without_a_project_nothing_loads():
    with pytest.raises(SettingsError, match="gcp:project is not set and neither is GOOGLE_CLOUD_PROJECT"):
        load(values_of("tpu-v6e4"), project=None)


def test_a_project_that_cannot_be_one_is_refused():
    with pytest.raises(SettingsError, match='gcp:project = "My Project": expected a project id'):
        load(values_of("tpu-v6e4"), project="My Project")


def test_a_token_in_clear_is_refused_and_not_repeated():
    config = {"gcp:project": "my-project", "gemma-serving:hfToken": "hf_canary_in_clear"}
    with pytest.raises(SettingsError, match="is stored in clear") as caught:
        from_pulumi(config, frozenset(), stack="x")
    assert "hf_canary_in_clear" not in str(caught.value)


def test_the_engines_configuration_and_the_file_mean_the_same(monkeypatch):
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "my-project")
    for stack in STACKS:
        config = {
            f"gemma-serving:{key}": value if isinstance(value, str) else json.dumps(value)
            for key, value in values_of(stack).items()
        }
        assert from_pulumi(config, frozenset(), stack=stack) == from_file(ROOT / f"Pulumi.{stack}.yaml")


def test_the_token_is_a_fact_in_the_settings_and_never_a_value():
    config = {
        **{f"gemma-serving:{k}": v if isinstance(v, str) else json.dumps(v) for k, v in values_of("tpu-v6e4").items()},
        "gcp:project": "my-project",
        "gemma-serving:hfToken": "hf_canary",
    }
    settings = from_pulumi(config, frozenset({"gemma-serving:hfToken"}), stack="x")
    assert settings.has_hf_token
    assert "hf_canary" not in repr(settings) + settings.model_dump_json()


def test_a_stack_without_a_file_names_those_that_have_one(tmp_path):
    (tmp_path / "Pulumi.good.yaml").write_text("config: {}\n")
    with pytest.raises(SettingsError, match=r"There is no Pulumi.bad.yaml; the stacks with settings here are: good."):
        from_file(tmp_path / "Pulumi.bad.yaml")


def test_a_file_that_is_not_yaml_is_one_sentence(tmp_path):
    path = tmp_path / "Pulumi.x.yaml"
    path.write_text("config: [")
    with pytest.raises(SettingsError, match=r"Pulumi.x.yaml is not YAML"):
        from_file(path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(
    key=st.sampled_from([*sorted(values_of("tpu-v6e4")), "cloudRun", "smoke", "bucket", "labels", "acceptFindings"]),
    value=JSON,
)
def test_no_value_makes_loading_crash(key, value):
    values = {**values_of("tpu-v6e4"), key: value}
    try:
        assert isinstance(load(values), Settings)
    except SettingsError as error:
        assert str(error).startswith("Pulumi.x.yaml: ")
