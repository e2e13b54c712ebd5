"""The stored schema of the settings answers as pydantic does, and never for other modules or another pydantic_core."""

import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import msgspec
import pydantic_core
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dev.authors.stored_settings import packed
from gemma_serving.planning.settings import reading, stored
from gemma_serving.planning.settings.bucket import BucketSettings
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.planning.settings.stored import stored_validator
from gemma_serving.stacks.loading import SettingsError, from_values
from tests.laws import examples
from tests.stacks.conftest import ROOT, with_parents
from tests.stacks.test_setting_laws import BLOCKS, JSON, PATHS, sample, stack_of, wrong

LOADED = """
import sys
import gemma_serving.planning.settings.stack
print(*(module.__file__ for name, module in sys.modules.items() if name.startswith("gemma_serving.")))
"""
PLAN = """
import sys
from gemma_serving.scripts.plan.__main__ import main
code = main(["--stack", "l4-12b-qat", "--json"])
print(code, sorted({"pydantic", "pydantic_core"} & {*sys.modules}), file=sys.stderr)
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("stored") / "core_schema.msgpack"
    subprocess.run([sys.executable, "-m", "dev.authors.stored_settings", path], cwd=ROOT, check=True, timeout=60)
    return path


@cache
def by_file(path):
    found = stored_validator(Settings, path)
    assert found is not None
    return found


@cache
def by_pydantic():
    return reading._of_type(Settings)


def read_by(validator, path, value):
    """Return the settings of a stack with one value of a path, or the sentences of their rejection."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "_of_block", lambda _: validator)
        try:
            return from_values(with_parents(stack_of(path), path, value), project="my-project", origin="Pulumi.x.yaml")
        except SettingsError as error:
            return str(error)


@settings(max_examples=examples(test=200, part=2_000, night=20_000))
@given(path=st.sampled_from([*PATHS, *filter(None, BLOCKS)]), value=JSON)
def test_any_value_is_read_as_pydantic_reads_it(file, path, value):
    assert repr(read_by(by_file(file), path, value)) == repr(read_by(by_pydantic(), path, value))


@pytest.mark.parametrize("path", [path for path in PATHS if path.partition(".")[0] not in {"hfToken", "apiKey"}])
def test_a_good_and_each_wrong_value_of_a_path_is_read_as_pydantic_reads_it(file, path):
    for value in (sample(PATHS[path]), *(value for value, _ in wrong(path))):
        assert repr(read_by(by_file(file), path, value)) == repr(read_by(by_pydantic(), path, value))


def test_a_changed_or_missing_module_is_noticed(file, tmp_path, monkeypatch):
    modules = msgspec.msgpack.decode(file.read_bytes())["modules"]
    for module in modules:
        (tmp_path / module).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(stored.PACKAGE / module, tmp_path / module)
    monkeypatch.setattr(stored, "PACKAGE", tmp_path)
    assert stored_validator(Settings, file) is not None
    for module in modules:
        text = (tmp_path / module).read_bytes()
        (tmp_path / module).write_bytes(text + b"\n")
        assert stored_validator(Settings, file) is None, module
        (tmp_path / module).unlink()
        assert stored_validator(Settings, file) is None, module
        (tmp_path / module).write_bytes(text)
    assert stored_validator(Settings, file) is not None


def test_each_module_that_the_settings_load_is_one_of_them(file):
    done = subprocess.run(
        [sys.executable, "-c", LOADED], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    loaded = {str(Path(one).relative_to(stored.PACKAGE)) for one in done.stdout.split()}
    assert loaded == {*msgspec.msgpack.decode(file.read_bytes())["modules"]}


def test_another_version_another_block_and_a_damaged_file_are_not_used(file, tmp_path, monkeypatch):
    assert stored_validator(BucketSettings, file) is None
    assert stored_validator(Settings, tmp_path / "none") is None
    for cut in (0, 1, 500):
        (tmp_path / "cut").write_bytes(file.read_bytes()[:cut])
        assert stored_validator(Settings, tmp_path / "cut") is None
    monkeypatch.setattr(pydantic_core, "__version__", "0.0.1")
    assert stored_validator(Settings, file) is None


def test_a_check_without_a_name_cannot_be_stored():
    with pytest.raises(ValueError, match="has no name in a module"):
        packed({"function": lambda value: value})


def test_a_plan_of_a_stack_reads_its_settings_without_pydantic():
    subprocess.run([sys.executable, "-m", "dev.authors.stored_settings"], cwd=ROOT, check=True, timeout=60)
    done = subprocess.run(
        [sys.executable, "-c", PLAN], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr.strip() == "0 ['pydantic_core']"
