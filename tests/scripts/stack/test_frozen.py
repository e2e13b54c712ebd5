"""The engine runs in a copy whose hash is known: an edit that comes later reaches no run."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.installation import PROGRAM_FILES
from gemma_serving.contracts.settings_files import settings_file
from gemma_serving.scripts.stack import frozen
from gemma_serving.scripts.stack.frozen import foreign_program, freeze
from gemma_serving.stacks.schema import settings_schema

ROOT = Path(__file__).resolve().parents[3]
STACK = "l4-qat"


@pytest.fixture
def project(monkeypatch, tmp_path):
    """A project with an image of its own and prices, and an engine that says what `said` has."""
    folder = tmp_path / "checkout"
    for room in (
        "components",
        "gemma_serving/contracts",
        "images/own",
        ".venv/lib/python3.12/site-packages/a-1.0.dist-info",
    ):
        (folder / room).mkdir(parents=True)
        (folder / room / "a.py").write_text("x = 1\n")
    (folder / "Pulumi.yaml").write_text((ROOT / "Pulumi.yaml").read_text())
    image = f"{{ repository: me/mine, digest: 'sha256:{'a' * 64}', buildContext: images/own }}"
    settings = settings_file(STACK, ROOT).read_text()
    settings += f"  gemma-serving:image: {image}\n  gemma-serving:prices: prices.json\n"
    (folder / f"Pulumi.{STACK}.yaml").write_text(settings)
    (folder / "prices.json").write_text("{}")
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "a-project")
    monkeypatch.delenv("PULUMI_BACKEND_URL", raising=False)
    monkeypatch.chdir(folder)
    return folder


def test_the_engines_new_lines_reach_the_project(project, tmp_path):
    copy, path = freeze(STACK, tmp_path / "copy"), project / f"Pulumi.{STACK}.yaml"
    text, salt = path.read_text(), "encryptionsalt: v1:abc=:v1:def"
    written = copy.folder / path.name
    written.write_text(f"{salt}\n{written.read_text()}")
    assert "Keep the line" in copy.bring_back_engine_lines(project)[0]
    assert path.read_text() == f"{text}{salt}\n"
    assert copy.bring_back_engine_lines(project) == []


def test_a_file_outside_the_project_is_refused_with_the_key(project, tmp_path):
    path = project / f"Pulumi.{STACK}.yaml"
    path.write_text(path.read_text().replace("prices: prices.json", "prices: ../prices.json"))
    with pytest.raises(CommandRefusedError, match=r'prices = "\.\./prices\.json": expected a path inside the project'):
        freeze(STACK, tmp_path / "copy")


@pytest.fixture
def own_folder(monkeypatch, tmp_path):
    """A folder as `gemma init` writes it, with a function that copies it and says why it runs another program."""
    folder = tmp_path / "own"
    folder.mkdir()
    for name, text in PROGRAM_FILES.items():
        (folder / name).write_text(text)
    shutil.copy(settings_file(STACK, ROOT), folder / f"Pulumi.{STACK}.yaml")
    monkeypatch.setattr(sys, "prefix", str(folder / ".venv"))
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "a-project")
    monkeypatch.chdir(folder)
    return lambda: foreign_program(STACK)


@pytest.mark.parametrize("toolchain", ["pip", "poetry", "uv"])
@pytest.mark.parametrize("environment", [".venv", "env", "tools/python-3.12"])
def test_a_folder_as_init_writes_it_runs_no_other_program(own_folder, monkeypatch, toolchain, environment):
    text = PROGRAM_FILES["Pulumi.yaml"].replace(".venv", environment).replace("pip", toolchain)
    Path("Pulumi.yaml").write_text(text)
    Path("json.py").write_text("never copied")
    assert own_folder() == ("" if environment == ".venv" else f"this server does not run in its {environment}")
    monkeypatch.setattr(sys, "prefix", str(Path(environment).absolute()))
    assert own_folder() == ""


OTHER_PROGRAMS = {
    "main: other": "name: gemma-serving\nmain: other\n",
    "environment outside": PROGRAM_FILES["Pulumi.yaml"].replace("virtualenv: .venv", "virtualenv: ../evil"),
    "environment by its full name": PROGRAM_FILES["Pulumi.yaml"].replace("virtualenv: .venv", "virtualenv: /tmp/evil"),
    "environment of the user": PROGRAM_FILES["Pulumi.yaml"].replace("virtualenv: .venv", "virtualenv: ~/evil"),
    "no environment": PROGRAM_FILES["Pulumi.yaml"].replace("    virtualenv: .venv\n", ""),
    "another toolchain": PROGRAM_FILES["Pulumi.yaml"].replace("pip", "hatch"),
    "another language": PROGRAM_FILES["Pulumi.yaml"].replace("python", "nodejs"),
    "another provider": PROGRAM_FILES["Pulumi.yaml"] + "    - name: gcp\n      path: evil\n",
    "the provider elsewhere": PROGRAM_FILES["Pulumi.yaml"].replace("path: .venv/bin", "path: evil"),
    "a language plugin": PROGRAM_FILES["Pulumi.yaml"] + "  languages:\n    - name: python\n      path: evil\n",
    "settings": PROGRAM_FILES["Pulumi.yaml"] + "config:\n  gcp:accessToken: x\n",
    "an anchor": PROGRAM_FILES["Pulumi.yaml"]
    .replace("toolchain: pip", "toolchain: &x pip")
    .replace(".venv\n", "*x\n", 1),
    "no YAML": "name: gemma-serving\nruntime: [",
}


@pytest.mark.parametrize("text", OTHER_PROGRAMS.values(), ids=OTHER_PROGRAMS)
def test_another_project_file_is_another_program(own_folder, text):
    Path("Pulumi.yaml").write_text(text)
    assert own_folder() == "Pulumi.yaml is not as `gemma init` writes it"


@pytest.mark.parametrize("name", ["gemma_serving/__init__.py", "components/__init__.py", "stacks/__init__.py"])
def test_a_package_that_replaces_an_installed_one_is_another_program(own_folder, name):
    Path(name).parent.mkdir()
    Path(name).write_text("")
    assert own_folder() == f"{name.partition('/')[0]} is not as `gemma init` writes it"


@pytest.mark.parametrize("name", ["json.py", "pulumi.so", "Pulumi.json", "msgspec"])
def test_a_file_of_the_settings_that_the_engine_or_python_loads_is_another_program(own_folder, name):
    """A settings file of a stranger names what is copied beside the program."""
    path = Path(f"Pulumi.{STACK}.yaml")
    if name == "msgspec":
        Path(name).mkdir()
        Path(name, "__init__.py").write_text("")
        image = f"{{ repository: me/mine, digest: 'sha256:{'a' * 64}', buildContext: {name} }}"
        path.write_text(f"{path.read_text()}  gemma-serving:image: {image}\n")
    else:
        Path(name).write_text("{}")
        path.write_text(f"{path.read_text()}  gemma-serving:prices: {name}\n")
    assert own_folder() == f"{name} is not as `gemma init` writes it"


def test_the_files_of_a_checkout_are_the_products_own(monkeypatch):
    monkeypatch.chdir(ROOT)
    assert foreign_program(STACK) == ""


def test_settings_that_do_not_exist_are_refused(project, tmp_path):
    with pytest.raises(CommandRefusedError, match=r"Pulumi\.nosuch\.yaml not found"):
        freeze("nosuch", tmp_path / "copy")


def test_weights_are_linked_and_counted_by_size_and_time(project, tmp_path, monkeypatch):
    monkeypatch.setattr(frozen, "_LARGE_BYTES", 10)
    folder = project / "models" / "own"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"x" * 20)
    path = project / f"Pulumi.{STACK}.yaml"
    named = "  gemma-serving:modelConfig: models/own\n  gemma-serving:draftConfig: models/own\n"
    path.write_text(path.read_text() + named)
    (project / "images/own/a.py").chmod(0o555)
    first = freeze(STACK, tmp_path / "one")
    assert (first.folder / "models/own/model.safetensors").is_symlink()
    assert not (first.folder / "models/own/config.json").is_symlink()
    assert not (first.folder / "images/own/a.py").is_symlink()
    assert (first.folder / "images/own/a.py").stat().st_mode & 0o777 == 0o555
    os.utime(folder / "model.safetensors", ns=(1, 1))
    assert freeze(STACK, tmp_path / "two").digest != first.digest


def test_every_path_that_settings_can_name_is_copied(project, tmp_path):
    """A key with a path inside the project that `freeze` does not know would be read from the live folder."""
    schema, example = settings_schema(), "models/other/config.json"  # that of ProjectPath
    paths = {key for key, value in schema["properties"].items() if example in json.dumps(value)}
    assert not [name for name, block in schema["$defs"].items() if example in json.dumps(block)]
    assert {"modelConfig", "draftConfig"} <= paths
    path = project / f"Pulumi.{STACK}.yaml"
    (project / "named").mkdir()
    (project / "named" / "config.json").write_text("{}")
    text = "".join(f"  gemma-serving:{key}: named/config.json\n" for key in sorted(paths))
    path.write_text(path.read_text().replace("  gemma-serving:prices: prices.json\n", "") + text)
    copy = freeze(STACK, tmp_path / "copy")
    assert (copy.folder / "named" / "config.json").is_file()
    assert {key for key, named in frozen._named(copy.settings) if named == "named/config.json"} == paths
