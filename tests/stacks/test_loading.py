"""Every mistake in the settings is one sentence with the key, the value and what is allowed."""

import copy
import json
import re
import time
from functools import partial
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gemma_serving.contracts.settings_files import settings_file, shipped_files
from gemma_serving.planning.planner import plan
from gemma_serving.planning.settings.stack import NAMESPACES, Settings
from gemma_serving.stacks.loading import (
    SettingsError,
    from_file,
    from_pulumi,
    from_values,
    gateway_from_file,
    gateway_from_pulumi,
)
from gemma_serving.stacks.planned import to_deployment

ROOT = Path(__file__).resolve().parents[2]
STACKS = sorted(path.name.removeprefix("Pulumi.").removesuffix(".yaml") for path in shipped_files(ROOT))


def values_of(stack):
    config = yaml.safe_load(settings_file(stack, ROOT).read_text())["config"]
    return {key.partition(":")[2]: value for key, value in config.items()}


def load(values, project="my-project"):
    return from_values(values, project=project, origin="Pulumi.x.yaml")


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


OWN = {"digest": f"sha256:{'a' * 64}"}
MISTAKES = [
    ("tpu-v6e4", "tagret", "tpu", "gemma-serving:tagret is not a known setting. Did you mean target?"),
    (
        "tpu-v6e4",
        "m\u0430xAge",
        "4h",
        "Did you mean maxAge? It has U+0430 (CYRILLIC SMALL LETTER A). Replace it with an ASCII",
    ),
    ("tpu-v6e4", "maxAge\u00a0", "4h", "Did you mean maxAge? It has U+00A0 (NO-BREAK SPACE). Replace it with an ASCII"),
    (
        "l4-qat",
        "image",
        {**OWN, "repository": "ghcr.io/me/vllm"},
        '= "ghcr.io/me/vllm": expected LOCATION-docker.pkg.dev/PROJECT/',
    ),
    (
        "l4-qat",
        "image",
        {**OWN, "repository": "localhost/me/vllm"},
        '= "localhost/me/vllm": expected LOCATION-docker.pkg.dev/PROJECT/',
    ),
    (
        "l4-qat",
        "image",
        {**OWN, "repository": "docker.io/me/vllm"},
        "or a repository of Docker Hub such as vllm/vllm-openai",
    ),
    (
        "l4-qat",
        "image",
        {**OWN, "repository": "us-docker.pkg.dev/me/vllm"},
        "expected LOCATION-docker.pkg.dev/PROJECT/REPOSITORY/",
    ),
    ("tpu-v6e4", "maxUsd", 12.5, "expected a whole number above 0"),
    (
        "tpu-v6e4",
        "vllm.maxModelLength",
        1,
        "gemma-serving:vllm.maxModelLength is not a known setting. Did you mean vllm.maxModelLen?",
    ),
    (
        "tpu-v6e4",
        "tpu.maxRunDuration",
        "4 hours",
        'gemma-serving:tpu.maxRunDuration = "4 hours": a duration needs a unit',
    ),
    (
        "tpu-v6e4",
        "tpu.existingNetwork",
        {"network": "n", "subnetwork": "s", "privateGoogleAccess": True},
        "the zones and the subnetwork are in us-east5, europe-west4, asia-northeast1, southamerica-west1; remove the zones of other regions",
    ),
    (
        "tpu-v6e4",
        "tpu.zones",
        ["us-east5"],
        'gemma-serving:tpu.zones[0] = "us-east5": expected a zone such as us-east5-a.',
    ),
    (
        "l4-qat",
        "maxInstances",
        3,
        "maxInstances is not a known setting. Did you mean cloudRun.maxInstances or gateway.maxInstances?",
    ),
    ("tpu-v6e4", "tpu.zones", ["us-east5-a", "us-east5-a"], "list each zone once"),
    ("tpu-v6e4", "target", "gpu", "gemma-serving:target = \"gpu\": expected 'tpu', 'cloud-run' or 'gateway'."),
    ("tpu-v6e4", "target", "cloud-run", "target cloud-run requires the block cloudRun"),
    ("tpu-v6e4", "model", ..., "gemma-serving:model is missing; set it."),
    ("tpu-v6e4", "image", {"repository": "r", "digest": "latest"}, "expected sha256: and 64 hexadecimal digits"),
    (
        "tpu-v6e4",
        "image",
        "vllm-openai",
        "target tpu needs a tpu image, but vllm/vllm-openai is a cuda image; set image: vllm-tpu.",
    ),
    (
        "l4-qat",
        "image",
        {"repository": "vllm/vllm-tpu", "digest": f"sha256:{'a' * 64}"},
        "target cloud-run needs a cuda image, but vllm/vllm-tpu is a tpu image; set image: vllm-openai.",
    ),
    (
        "tpu-v6e4",
        "dockerHub",
        {"username": "someone", "tokenSecret": "projects/p/secrets/s/versions/latest"},
        "expected a version in Secret Manager by its number such as projects/my-project/secrets/hf-token/versions/1.",
    ),
    ("tpu-v6e4", "vllm.enableAutoToolChoice", True, "enableAutoToolChoice needs toolCallParser"),
    (
        "l4-qat",
        "vllm.allowedMediaDomains",
        ["https://a.example"],
        '[0] = "https://a.example": expected a lower-case host name',
    ),
    ("l4-qat", "vllm.allowedMediaDomains", ["*.example"], "without a scheme, port or wildcard"),
    ("tpu-v6e4", "labels", {"managed-by": "me"}, '"managed-by" is set by this project'),
    ("tpu-v6e4", "endpointUrl", "models.example.com", "expected a full URL such as https://models.example.com"),
    ("tpu-v6e4", "endpointUrl", "http://[", "expected a full URL such as https://models.example.com"),
    (
        "tpu-v6e4",
        "acceptFindings",
        ["FIT99"],
        'finding "FIT99" does not exist; acceptable findings are FIT02, FIT03',
    ),
    (
        "tpu-v6e4",
        "vllm.maxModelLen",
        "16k",
        'maxModelLen = "16k": expected a whole number without a unit; write 16384 or 16000.',
    ),
    *(
        ("tpu-v6e4", "tpu.runtimeVersion", text, "expected a TPU VM image such as v2-alpha-tpuv6e.")
        for text in ("v2\x1b[2J", "v2$(id)", "v2 alpha", "--yes", "")
    ),
    *(
        ("tpu-v6e4", "tpu.tunnelMembers", [text], "expected a member such as user:name@example.com.")
        for text in ("user:a\x1b]0;x\x07@b.c", "user:$(id)@b.c", "user:a;b@c.d", "user:`id`")
    ),
    ("tpu-v6e4", "measuredTokPerS", float("inf"), "expected a number above 0"),
    (
        "tpu-v6e4",
        "vllm.gpuMemoryUtilization",
        "0.9",
        '= "0.9": expected a number, not text; write 0.9 without quotes, or set it again with `pulumi config set --type float`.',
    ),
    ("tpu-v6e4", "vllm.gpuMemoryUtilization", "90%", "write 0.9 without quotes"),
    ("tpu-v6e4", "vllm.gpuMemoryUtilization", "0,9", "write 0.9 without quotes"),
    (
        "tpu-v6e4",
        "vllm.maxModelLen",
        "16,384",
        "write 16384 without quotes, or set it again with `pulumi config set --type int`",
    ),
    ("tpu-v6e4", "maxUsd", "$20", "write 20 without quotes"),
    (
        "tpu-v6e4",
        "vllm.speculativeConfig",
        {"method": [1]},
        "gemma-serving:vllm.speculativeConfig.method: expected text, a number, true or false.",
    ),
    ("tpu-v6e4", "tpu", "v6e-4", 'gemma-serving:tpu = "v6e-4": expected a block of settings.'),
    ("l4-qat", "cloudRun.memory", 32, "gemma-serving:cloudRun.memory = 32: a memory size needs its binary unit"),
    ("l4-qat", "cloudRun.minInstances", 3, "minInstances 3 exceeds maxInstances 1"),
    *(
        ("l4-qat", "bucket", {"prefix": text}, f'gemma-serving:bucket.prefix = "{text}": expected a folder such as')
        for text in ("a//b", "..", "a/../b", "./a")
    ),
    ("l4-qat", "cloudRun.invokers", ["allUsers"], "to allow the public, set public: true"),
    ("l4-qat", "cloudRun.mount", {"mode": "fuse-cached"}, "mode fuse-cached and cacheSize require each other"),
    (
        "l4-qat",
        "cloudRun.mount",
        {"mode": "fuse", "cacheSize": "8Gi"},
        "mode fuse-cached and cacheSize require each other",
    ),
]


SPACES = "gemma-serving, docker, gcp, gcp-tpu or pulumi"


@pytest.mark.parametrize(
    ("key", "step"),
    [
        ("gemma-servng:maxUsd", "Did you mean gemma-serving:maxUsd[?]"),
        ("gemma:maxAge", "Did you mean gemma-serving:maxAge[?]"),
        ("gpc:zone", "Did you mean gcp:zone[?]"),
        ("aws:region", "Remove it[.]"),
    ],
)
def test_a_namespace_that_nothing_reads_is_refused(tmp_path, key, step):
    config = {"gemma-serving:target": "tpu", key: "3"}
    sentence = f"^Pulumi[.]x[.]yaml: {key} is not a setting: expected the namespace {SPACES}[.] {step}$"
    for read in (partial(from_pulumi, secret_keys=frozenset()), gateway_from_pulumi):
        with pytest.raises(SettingsError, match=sentence):
            read(config, stack="x")
    path = tmp_path / "Pulumi.x.yaml"
    path.write_text(f"config:\n  {key}: 3\n")
    for read in (from_file, gateway_from_file):
        with pytest.raises(SettingsError, match=sentence):
            read(path, project="my-project")


@pytest.mark.parametrize("space", NAMESPACES[1:])
def test_namespaces_of_providers_and_of_the_engine_are_theirs(tmp_path, space):
    text = (ROOT / "Pulumi.tpu-v6e4.yaml").read_text()
    path = tmp_path / "Pulumi.x.yaml"
    path.write_text(text.replace("config:\n", f"config:\n  {space}:zone: us-east5-a\n", 1))
    assert from_file(path, project="my-project").target == "tpu"


def test_the_namespaces_are_those_of_the_providers():
    plugins = yaml.safe_load((ROOT / "Pulumi.yaml").read_text())["plugins"]["providers"]
    packages = re.findall(r"^pulumi-(\w+)\b", (ROOT / "requirements/base.in").read_text(), re.MULTILINE)
    assert sorted(NAMESPACES) == sorted({"gemma-serving", "pulumi", *packages, *(one["name"] for one in plugins)})


def test_a_mistake_is_one_sentence_with_the_key(subtests):
    for stack, path, value, sentence in MISTAKES:
        with subtests.test(f"{path}={value}"):
            with pytest.raises(SettingsError) as caught:
                load(changed(stack, path, value))
            message = str(caught.value)
            assert sentence in message
            assert message.startswith("Pulumi.x.yaml: ")
            assert "\n" not in message


def test_without_a_project_nothing_loads():
    with pytest.raises(
        SettingsError, match=r"are not set\. Run `export GOOGLE_CLOUD_PROJECT=PROJECT_ID`, or set gcp:project in "
    ):
        load(values_of("tpu-v6e4"), project=None)


def test_a_project_that_cannot_be_one_is_refused():
    with pytest.raises(
        SettingsError, match='gcp:project or GOOGLE_CLOUD_PROJECT = "My Project": expected a project id'
    ):
        load(values_of("tpu-v6e4"), project="My Project")


def test_a_token_in_clear_is_refused_and_not_repeated():
    config = {"gcp:project": "my-project", "gemma-serving:hfToken": "hf_canary_in_clear"}
    with pytest.raises(SettingsError, match="is stored in plain text") as caught:
        from_pulumi(config, frozenset(), stack="x")
    assert "hf_canary_in_clear" not in str(caught.value)


@pytest.mark.parametrize("token", ["hf_canary_in_clear", "{ value: hf_canary_in_clear }", "[hf_canary_in_clear]"])
def test_a_token_in_clear_in_a_file_is_refused_and_not_repeated(tmp_path, token):
    path = tmp_path / "Pulumi.x.yaml"
    path.write_text((ROOT / "Pulumi.tpu-v6e4.yaml").read_text() + f"  gemma-serving:hfToken: {token}\n")
    with pytest.raises(SettingsError, match=r"Pulumi.x.yaml: gemma-serving:hfToken is stored in plain text") as caught:
        from_file(path, project="my-project")
    assert "hf_canary_in_clear" not in str(caught.value)


def test_an_encrypted_token_in_a_file_is_a_token(tmp_path):
    path = tmp_path / "Pulumi.x.yaml"
    path.write_text((ROOT / "Pulumi.tpu-v6e4.yaml").read_text() + "  gemma-serving:hfToken: { secure: v1:abc }\n")
    assert from_file(path, project="my-project").has_secret("hfToken")


def test_a_secret_by_value_and_by_reference_is_refused_with_the_way_out():
    config = {
        **{f"gemma-serving:{key}": json.dumps(value) for key, value in values_of("tpu-v6e4").items()},
        "gcp:project": "my-project",
        "gemma-serving:apiKey": "canary-0123456789",
        "gemma-serving:apiKeySecret": "projects/p-1/secrets/s/versions/1",
    }
    with pytest.raises(SettingsError, match="apiKey and apiKeySecret both set the API key") as caught:
        from_pulumi(config, frozenset({"gemma-serving:apiKey"}), stack="x")
    assert "pulumi config rm apiKey" in str(caught.value)
    assert "canary" not in str(caught.value)


def test_a_path_that_was_set_as_a_key_has_the_command_that_sets_it():
    with pytest.raises(SettingsError) as error:
        load({**values_of("tpu-v6e4"), "vllm.maxModelLen": 8192})
    assert str(error.value) == (
        "Pulumi.x.yaml: gemma-serving:vllm.maxModelLen is not below gemma-serving:vllm. Run `pulumi config rm gemma-serving:vllm.maxModelLen "
        "--stack x`, then `pulumi config set --path gemma-serving:vllm.maxModelLen 8192 --stack x`."
    )


def test_smart_quotes_of_a_value_are_named():
    with pytest.raises(
        SettingsError, match=r"It has U\+201C \(LEFT DOUBLE QUOTATION MARK\)\. Replace it with an ASCII character\.$"
    ):
        load({**values_of("tpu-v6e4"), "maxAge": "\u201c4h"})


def test_words_that_are_booleans_only_in_old_yaml_are_text(tmp_path):
    path = tmp_path / "Pulumi.x.yaml"
    text = (ROOT / "Pulumi.tpu-v6e4.yaml").read_text()
    path.write_text(text + "    compileCache: off\n  gemma-serving:labels: { answer: no }\n")
    settings = from_file(path, project="my-project")
    assert settings.tpu is not None
    assert settings.tpu.compile_cache == "off"
    assert settings.labels == {"answer": "no"}


def test_a_value_that_is_not_json_is_one_sentence(tmp_path):
    path = tmp_path / "Pulumi.x.yaml"
    path.write_text("config:\n  gemma-serving:labels: { 2026-01-01: x }\n")
    with pytest.raises(SettingsError, match=r"^Pulumi.x.yaml is invalid: use only text, numbers, true, false, lists"):
        from_file(path, project="my-project")


def planned(values):
    return plan(to_deployment(load(values)))


def test_a_subnetwork_of_another_region_is_refused():
    values = changed("tpu-v6e4", "tpu.zones", ["us-east5-a"])
    link = "https://www.googleapis.com/compute/v1/projects/host/regions/us-east1/subnetworks/s"
    values["tpu"]["existingNetwork"] = {"network": "n", "subnetwork": link, "privateGoogleAccess": True}
    with pytest.raises(SettingsError, match="are in us-east5, us-east1; remove the zones of other regions"):
        load(values)


@pytest.mark.parametrize(
    ("written", "folder"),
    [("a", "a"), ("/a/b.c/", "a/b.c"), ("..a/.b/c..", "..a/.b/c.."), ("a//", "a"), ("", ""), ("/", "")],
)
def test_a_folder_of_a_bucket_has_no_slashes_at_its_ends(written, folder):
    assert load(changed("l4-qat", "bucket", {"prefix": written})).weights_prefix == folder


@pytest.mark.parametrize(
    ("cache", "weights", "has_bucket"),
    [("machine", "hub", False), ("bucket", "hub", True), ("machine", "bucket", True), ("off", "hub", False)],
)
def test_an_archive_needs_a_bucket_whatever_the_weights(cache, weights, has_bucket):
    values = {**changed("tpu-v6e4", "tpu.compileCache", cache), "weights": weights}
    settings = load(values)
    assert (settings.uses_bucket, settings.archives_programs) == (has_bucket, cache == "bucket")


@pytest.mark.parametrize("mode", ["streamer", "memory"])
def test_a_way_without_a_mount_needs_the_bucket(mode):
    values = changed("l4-12b-qat", "cloudRun.mount", {"mode": mode})
    assert to_deployment(load(values)).weights_mode == mode
    with pytest.raises(
        SettingsError, match=f"cloudRun.mount.mode {mode} reads weights from the bucket, but weights is hub"
    ):
        load({**values, "weights": "hub"})


def test_the_engines_configuration_and_the_file_mean_the_same(monkeypatch):
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "my-project")
    for stack in STACKS:
        config = {
            f"gemma-serving:{key}": value if isinstance(value, str) else json.dumps(value)
            for key, value in values_of(stack).items()
        }
        assert from_pulumi(config, frozenset(), stack=stack) == from_file(settings_file(stack, ROOT))


def test_the_token_is_a_fact_in_the_settings_and_never_a_value():
    config = {
        **{f"gemma-serving:{k}": v if isinstance(v, str) else json.dumps(v) for k, v in values_of("tpu-v6e4").items()},
        "gcp:project": "my-project",
        "gemma-serving:hfToken": "hf_canary",
    }
    settings = from_pulumi(config, frozenset({"gemma-serving:hfToken"}), stack="x")
    assert settings.has_secret("hfToken")
    assert "hf_canary" not in repr(settings)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "config:\n  a: 1\n\tb: 2\n",
            "Pulumi.x.yaml is not YAML at line 3, column 1: a tab cannot indent. Replace the tab with spaces.",
        ),
        (
            "config: [",
            "Pulumi.x.yaml is not YAML at line 1, column 10: expected the node content, but found '<stream end>'. Fix that line,",
        ),
        (
            "a: \x00",
            "Pulumi.x.yaml is not YAML: unacceptable character #x0000: special characters are not allowed. Fix the file",
        ),
        (
            "config:\n  gemma-serving:model: a\n  gemma-serving:model: b\n",
            'Pulumi.x.yaml, line 3: mapping key "gemma-serving:model" already defined at line 2. Remove one of the two.',
        ),
        (
            "config: {}\nconfig: {}\n",
            'Pulumi.x.yaml, line 2: mapping key "config" already defined at line 1. Remove one of the two.',
        ),
        (
            "config:\n  gemma-serving:tpu: &one { ssh: true }\n  gemma-serving:vllm: *one\n",
            "Pulumi.x.yaml, line 3: aliases are not read. Write the value itself.",
        ),
        (
            "config: {}\n<<<<<<< Updated upstream\nencryptionsalt: a\n=======\nencryptionsalt: b\n>>>>>>> Stashed changes\n",
            "Pulumi.x.yaml, line 2: a git conflict is not resolved: <<<<<<< Updated upstream. Keep one of its sides.",
        ),
        (
            "config:\n  gemma-serving:target:\u00a0tpu\n  gemma-serving:model: a/b\n",
            "Pulumi.x.yaml, line 2, column 24: U+00A0 (NO-BREAK SPACE). Replace it with an ASCII character.",
        ),
        (
            "config:\n\u00a0 gemma-serving:target: tpu\n  gemma-serving:model: a/b\n",
            "Pulumi.x.yaml, line 2, column 1: U+00A0 (NO-BREAK SPACE). Replace it with an ASCII character.",
        ),
        (
            "config:\n  gemma-serving:model: \u201ca\u201d: b\n",
            "Pulumi.x.yaml, line 2, column 24: U+201C (LEFT DOUBLE QUOTATION MARK). Replace it with an ASCII character.",
        ),
    ],
)
def test_a_file_that_is_not_yaml_is_one_sentence_with_its_line(tmp_path, text, said):
    path = tmp_path / "Pulumi.x.yaml"
    path.write_text(text)
    begin_s = time.process_time()
    with pytest.raises(SettingsError) as error:
        from_file(path)
    assert time.process_time() - begin_s < 1
    assert str(error.value).startswith(said)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "config: {}\n", "config:\n  gcp:project: p\n", "# nothing\n"])
def test_a_file_without_settings_names_the_command_that_writes_those_of_a_deployed_stack(tmp_path, monkeypatch, text):
    (tmp_path / "Pulumi.x.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    for read in (lambda: from_file(tmp_path / "Pulumi.x.yaml"), lambda: from_pulumi({}, frozenset(), stack="x")):
        with pytest.raises(
            SettingsError,
            match=r"^Pulumi.x.yaml has no settings of this project\. .* `pulumi config refresh --stack x ",
        ):
            read()


def test_keys_beside_config_are_named_and_the_file_is_not_overwritten(tmp_path):
    (tmp_path / "Pulumi.x.yaml").write_text("config:\ngemma-serving:target: tpu\ngemma-serving:model: m\n")
    with pytest.raises(SettingsError, match=r"^Pulumi.x.yaml: gemma-serving:target is not below config:\. Indent each"):
        from_file(tmp_path / "Pulumi.x.yaml")


def test_a_stack_whose_file_was_deleted_is_told_so_by_the_program(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Pulumi.tpu-v6e1.yaml").write_text("config: {}\n")
    with pytest.raises(SettingsError, match=r"^Pulumi.tpu-v6e2.yaml not found. Did you mean tpu-v6e1\?"):
        from_pulumi({"gcp:project": "p"}, frozenset(), stack="tpu-v6e2")


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
