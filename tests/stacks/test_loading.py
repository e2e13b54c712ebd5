"""Settings from a file and from the engine mean the same, and a secret in plain text is never repeated."""

import json
import re
from pathlib import Path

import pulumi_gcp
import pytest
import yaml

from gemma_serving.contracts.settings_files import settings_file, shipped_files
from gemma_serving.planning.planner import plan
from gemma_serving.planning.settings.stack import NAMESPACES
from gemma_serving.stacks.loading import SettingsError, from_file, from_pulumi, from_values
from gemma_serving.stacks.planned import finding_text, to_question
from gemma_serving.stacks.settings_wording import StackWording
from tests.stacks.conftest import ROOT, changed, values_of

STACKS = sorted(path.name.removeprefix("Pulumi.").removesuffix(".yaml") for path in shipped_files(ROOT))


def load(values, project="my-project"):
    return from_values(values, project=project, origin="Pulumi.x.yaml")


def test_each_reader_refuses_a_namespace_that_nothing_reads(tmp_path):
    config = {"gemma-serving:target": "tpu", "aws:region": "3"}
    path = tmp_path / "Pulumi.x.yaml"
    path.write_text("config:\n  gemma-serving:target: tpu\n  aws:region: 3\n")
    for read in (
        lambda: from_pulumi(config, frozenset(), stack="x"),
        lambda: from_file(path),
    ):
        with pytest.raises(SettingsError, match=r"^Pulumi[.]x[.]yaml: aws:region is not a setting: "):
            read()


@pytest.mark.parametrize("space", NAMESPACES[1:])
def test_namespaces_of_providers_and_of_the_engine_are_theirs(tmp_path, space):
    text = (ROOT / "Pulumi.tpu-v6e4.yaml").read_text()
    path = tmp_path / "Pulumi.x.yaml"
    path.write_text(text.replace("config:\n", f"config:\n  {space}:zone: us-east5-a\n", 1))
    assert from_file(path, project="my-project").target == "tpu"


PROVIDER_KEYS = re.findall(
    r"__config__\.get\w*\('(\w+)'", Path(pulumi_gcp.__file__).with_name("config").joinpath("vars.py").read_text()
)


@pytest.mark.parametrize(
    "keys", [["region", "zone"], ["accessToken"], sorted({*PROVIDER_KEYS, "notOfTheProvider"} - {"project"})], ids=len
)
def test_each_setting_of_the_provider_but_its_place_blocks_the_plan_and_its_value_is_not_printed(tmp_path, keys):
    document = yaml.safe_load((ROOT / "Pulumi.tpu-v6e4.yaml").read_text())
    given = {f"gcp:{key}": "canary" for key in keys}
    config = {"gcp:project": "my-project", **document["config"], **given}
    path = tmp_path / "Pulumi.x.yaml"
    path.write_text(yaml.safe_dump({"config": config}))
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in config.items()}
    blocked = [key for key in given if key not in {"gcp:region", "gcp:zone"}]
    for settings in (
        from_file(path),
        from_pulumi(texts, frozenset(), stack="x"),
        from_file(ROOT / "Pulumi.tpu-v6e4.yaml", project="my-project", changes=given),
    ):
        question = to_question(settings)
        found = [finding_text(one, StackWording(question, "x")) for one in plan(question).stopping]
        assert [text.partition(" set.")[0] for text in found] == [
            f"SEC12: {', '.join(keys)} {'is' if len(keys) == 1 else 'are'}" for keys in [blocked] if keys
        ]
        assert all(f" Remove {key}" in text or f", {key}" in text for text in found for key in blocked)
        assert "canary" not in "".join(found)


def test_the_namespaces_are_those_of_the_providers():
    plugins = yaml.safe_load((ROOT / "Pulumi.yaml").read_text())["plugins"]["providers"]
    required = "".join((ROOT / f"requirements/{name}.in").read_text() for name in ("base", "images"))
    packages = re.findall(r"^pulumi-(\w+)\b", required, re.MULTILINE)
    assert sorted(NAMESPACES) == sorted({"gemma-serving", "pulumi", *packages, *(one["name"] for one in plugins)})


@pytest.mark.parametrize(
    ("project", "said"),
    [
        (None, r"are not set\. Run `export GOOGLE_CLOUD_PROJECT=PROJECT_ID`, or set gcp:project in "),
        ("My Project", 'gcp:project or GOOGLE_CLOUD_PROJECT = "My Project": expected a project id'),
    ],
)
def test_nothing_loads_without_a_valid_project(project, said):
    with pytest.raises(SettingsError, match=said):
        load(values_of("tpu-v6e4"), project=project)


def config_of(stack, **more):
    """Return the settings of a stack as the engine hands them to the program."""
    values = {**values_of(stack), **more}
    return {f"gemma-serving:{key}": one if isinstance(one, str) else json.dumps(one) for key, one in values.items()}


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
    both = {"apiKey": "canary-0123456789", "apiKeySecret": "projects/p-1/secrets/s/versions/1"}
    config = {**config_of("tpu-v6e4", **both), "gcp:project": "my-project"}
    with pytest.raises(SettingsError, match="apiKey and apiKeySecret both set the API key") as caught:
        from_pulumi(config, frozenset({"gemma-serving:apiKey"}), stack="x")
    assert "pulumi config rm apiKey" in str(caught.value)
    assert "canary" not in str(caught.value)


def test_words_that_are_booleans_only_in_old_yaml_are_text(tmp_path):
    path = tmp_path / "Pulumi.x.yaml"
    text = (ROOT / "Pulumi.tpu-v6e4.yaml").read_text()
    path.write_text(text + "    compileCache: off\n  gemma-serving:labels: { answer: no }\n")
    settings = from_file(path, project="my-project")
    assert settings.tpu is not None
    assert settings.tpu.compile_cache == "off"
    assert settings.labels == {"answer": "no"}


@pytest.mark.parametrize(
    ("written", "folder"),
    [("a", "a"), ("/a/b.c/", "a/b.c"), ("..a/.b/c..", "..a/.b/c.."), ("a//", "a"), ("", ""), ("/", "")],
)
def test_a_folder_of_a_bucket_has_no_slashes_at_its_ends(written, folder):
    assert load(changed("l4-qat", {"bucket.prefix": written})).weights_prefix == folder


@pytest.mark.parametrize(
    ("cache", "weights", "has_bucket"),
    [
        ("machine", "hub", False),
        ("bucket", "hub", True),
        ("machine", "bucket", True),
        ("off", "hub", False),
        (None, "hub", True),
    ],
)
def test_an_archive_needs_a_bucket_whatever_the_weights(cache, weights, has_bucket):
    values = changed("tpu-v6e4", {"tpu.compileCache": cache, "weights": weights})
    settings = load(values)
    assert (settings.uses_bucket, settings.archives_programs) == (has_bucket, cache in {"bucket", None})


def test_the_engines_configuration_and_the_file_mean_the_same(monkeypatch):
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "my-project")
    for stack in STACKS:
        assert from_pulumi(config_of(stack), frozenset(), stack=stack) == from_file(settings_file(stack, ROOT))


def test_the_token_is_a_fact_in_the_settings_and_never_a_value():
    config = {**config_of("tpu-v6e4", hfToken="hf_canary"), "gcp:project": "my-project"}
    settings = from_pulumi(config, frozenset({"gemma-serving:hfToken"}), stack="x")
    assert settings.has_secret("hfToken")
    assert "hf_canary" not in repr(settings)


def test_a_stack_without_settings_is_told_the_command_that_writes_those_of_a_deployed_stack(tmp_path, monkeypatch):
    (tmp_path / "Pulumi.x.yaml").write_text("config: {}\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match=r"^Pulumi.x.yaml has no settings .* `pulumi config refresh --stack x "):
        from_pulumi({}, frozenset(), stack="x")


def test_a_stack_whose_file_was_deleted_is_told_so_by_the_program(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Pulumi.tpu-v6e1.yaml").write_text("config: {}\n")
    with pytest.raises(SettingsError, match=r"^Pulumi.tpu-v6e2.yaml not found. Did you mean tpu-v6e1\?"):
        from_pulumi({"gcp:project": "p"}, frozenset(), stack="tpu-v6e2")
