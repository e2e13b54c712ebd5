"""The generator of SDKs and the YAML language host: built from their Go modules, refusals, and what the engine's commands make with them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from localcloud.go_build import compiler
from tools.engine.model import VERSION as ENGINE_VERSION
from tools.languages import __main__ as command
from tools.languages import programs
from tools.languages.generator import generate

pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[2]
PROVIDER = ROOT / "packages" / "gcp-tpu"
SCHEMA = (PROVIDER / "schema.json").read_text()
BUILD_LIMIT_S = 1800


@pytest.fixture(scope="module")
def generator():
    if programs.found(programs.GENERATOR) is None and compiler() is None:
        pytest.skip(programs.NO_GO)
    return programs.ensure() / programs.GENERATOR


def with_reference(reference):
    properties = {"p": {"$ref": reference}}
    return json.dumps({"name": "x", "version": "0.1.0", "resources": {"x:index:R": {"properties": properties}}})


@pytest.mark.timeout(BUILD_LIMIT_S)
def test_a_schema_that_cannot_be_bound_is_refused_in_one_sentence_and_nothing_is_written(generator, tmp_path, subtests):
    for name, language, schema, sentence in (
        (
            "a type that does not exist",
            "python",
            with_reference("#/types/x:index:Missing"),
            r"The schema is invalid: #/resources/x:index:R/properties/p/\$ref: type x:index:Missing not found in package x\.",
        ),
        (
            "a type of another package",
            "python",
            with_reference("/gcp/v9.0.0/schema.json#/types/gcp:index:T"),
            r"The schema is invalid: .*: it refers to package gcp, which only an engine can load\.",
        ),
        ("no JSON", "go", "{", r"The schema is not a Pulumi package schema: .*\."),
        ("another language", "java", SCHEMA, r'Language "java" is not supported; supported languages are python, .*\.'),
    ):
        with subtests.test(name):
            with pytest.raises(programs.LanguagesError) as refused:
                generate(generator, schema, language, tmp_path / "sdk")
            assert re.fullmatch(sentence, str(refused.value))
            assert not (tmp_path / "sdk").exists()


def test_the_command_links_the_yaml_host_beside_engines_that_were_built_here(generator, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "gemma-serving"
    for name in ("build", "release"):
        (folder / "engine" / "3.1.0" / name).mkdir(parents=True)
        (folder / "engine" / "3.1.0" / name / "pulumi").touch()
    link = folder / "engine" / "3.1.0" / "build" / programs.YAML_HOST
    link.symlink_to("/an/older/build")
    (folder / "languages").symlink_to(generator.parents[1])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for _ in range(2):
        assert command.main(["--json"]) == 0
        assert json.loads(capsys.readouterr().out)["links"] == [str(link)]
        assert link.resolve() == (generator.parent / programs.YAML_HOST).resolve()
    assert sorted(path.name for path in link.parent.iterdir()) == ["pulumi", programs.YAML_HOST]
    assert [path.name for path in (folder / "engine" / "3.1.0" / "release").iterdir()] == ["pulumi"]


@pytest.fixture
def pulumi(generator, tmp_path):
    """Run the CLI with an empty home, with the language host of this checkout, also where several share one environment."""
    del generator
    programs.add_to_engines()
    link = Path(sys.executable).with_name("pulumi").read_text()
    cli = tmp_path / "pulumi"
    cli.write_text(re.sub(r'GEMMA_SERVING_ROOT="[^"]*"', f'GEMMA_SERVING_ROOT="{ROOT}"', link))
    cli.chmod(0o755)
    (tmp_path / "state").mkdir()
    variables = {
        **os.environ,
        "PULUMI_HOME": str(tmp_path / "home"),
        "PULUMI_BACKEND_URL": f"file://{tmp_path / 'state'}",
        "PULUMI_CONFIG_PASSPHRASE": "x",
        "PULUMI_SKIP_UPDATE_CHECK": "true",
    }

    def run(*arguments, folder=tmp_path):
        done = subprocess.run(
            [str(cli), *arguments], cwd=folder, env=variables, capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


def files_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.engine
def test_the_cli_generates_the_same_python_sdk(pulumi, generator, tmp_path, subtests):
    generate(generator, SCHEMA, "python", tmp_path / "ours")
    ours = files_of(tmp_path / "ours")
    if f"v{ENGINE_VERSION}" not in pulumi("version"):
        pytest.skip(f"the engine is not {ENGINE_VERSION}, so its generator is another one")
    assert "pulumi_gcp_tpu/queued_resource.py" in ours
    for name, source in (("from the schema", PROVIDER / "schema.json"), ("from the plugin folder", PROVIDER)):
        with subtests.test(name):
            pulumi("package", "gen-sdk", str(source), "--language", "python", "--out", str(tmp_path / name))
            assert files_of(tmp_path / name / "python") == ours


@pytest.mark.engine
def test_a_new_project_of_a_template_gets_its_environment(pulumi, tmp_path):
    template = tmp_path / "template"
    template.mkdir()
    text = "name: ${PROJECT}\ndescription: ${DESCRIPTION}\nruntime: python\ntemplate: {description: A template}\n"
    (template / "Pulumi.yaml").write_text(text)
    (template / "requirements.txt").write_text("")
    (template / "__main__.py").write_text("")
    folder = tmp_path / "new"
    pulumi("new", str(template), "--yes", "--name", "mine", "--stack", "dev", "--dir", str(folder))
    runtime = yaml.safe_load((folder / "Pulumi.yaml").read_text())["runtime"]
    assert runtime == {"name": "python", "options": {"toolchain": "pip", "virtualenv": "venv"}}
    assert (folder / "venv" / "bin" / "python").exists()


@pytest.fixture
def plugin(tmp_path):
    """Copy the provider as a plugin folder: no environment, outside any checkout."""
    folder = tmp_path / "plugin"
    folder.mkdir()
    for name in ("__main__.py", "requirements.txt"):
        (folder / name).write_bytes((PROVIDER / name).read_bytes())
    (folder / "gcp_tpu_provider").symlink_to(PROVIDER / "gcp_tpu_provider")
    (folder / "PulumiPlugin.yaml").write_text("name: gcp-tpu\nruntime: python\n")
    return folder


@pytest.mark.engine
def test_a_plugin_folder_is_added_to_programs_of_both_languages(pulumi, plugin, tmp_path, subtests):
    """`pulumi package add` needs a package index: it installs the plugin's packages, and those of a Python program."""
    with subtests.test("python"):
        program = tmp_path / "python"
        program.mkdir()
        (program / "Pulumi.yaml").write_text("name: p\nruntime: {name: python, options: {virtualenv: venv}}\n")
        (program / "requirements.txt").write_text("pulumi>=3.272,<4\n")
        told = pulumi("package", "add", "../plugin", folder=program)
        assert "  import pulumi_gcp_tpu as " in told
        assert "gcp-tpu: ../plugin" in (program / "Pulumi.yaml").read_text()
        assert (program / "requirements.txt").read_text() == "pulumi>=3.272,<4\nsdks/gcp-tpu\n"
        code = "import pulumi_gcp_tpu; print(pulumi_gcp_tpu.QueuedResource.__name__)"
        done = subprocess.run(
            [str(program / "venv/bin/python"), "-c", code], capture_output=True, text=True, check=True
        )
        assert done.stdout == "QueuedResource\n"
    with subtests.test("yaml"):
        program = tmp_path / "yaml"
        program.mkdir()
        (program / "Pulumi.yaml").write_text(YAML_PROGRAM)
        pulumi("package", "add", "../plugin", folder=program)
        assert "gcp-tpu: ../plugin" in (program / "Pulumi.yaml").read_text()
        pulumi("stack", "init", "dev", folder=program)
        assert "gcp-tpu:index:QueuedResource capacity create" in pulumi("preview", "--diff=false", folder=program)
    assert (plugin / "venv" / "bin" / "python").exists()
    assert not (PROVIDER / "venv").exists()


YAML_PROGRAM = """\
name: y
runtime: yaml
resources:
  capacity:
    type: gcp-tpu:index:QueuedResource
    properties:
      acceleratorType: v6e-1
      runtimeVersion: v2-alpha-tpuv6e
      provisioningModel: flex-start
      project: my-project-1
      zones: [us-east5-a]
      maxRunDurationS: 3600
"""
