"""A trial on the local cloud reads the checkout's settings, and keeps its salt and its secrets to itself."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given
from hypothesis import settings as settings_of_law
from hypothesis import strategies as st
from ruamel.yaml import YAML, YAMLError

from gemma_serving.contracts.settings_files import shipped_files
from gemma_serving.engine import runner, trial
from gemma_serving.scripts.stack.frozen import write_settings

ROOT = Path(__file__).resolve().parents[2]
PLAIN = "config:\n  # the model\n  gemma-serving:model: google/gemma-4-E2B-it\n  gemma-serving:vllm:\n    maxModelLen: 8192\n"
SECRET = "  gemma-serving:hfToken:\n    secure: v1:AAA=:{0}\n"
FAKE_ENGINE = """#!{python}
import json, os, pathlib, sys
pathlib.Path({said!r}).write_text(json.dumps([os.getcwd(), *sys.argv[1:]]))
for path, text in {writes!r}.items():
    pathlib.Path(path).write_text(text)
sys.exit({code})
"""


def settings(salt="", token="", more=""):
    """Return a settings file as the engine leaves it."""
    secret = SECRET.format(token) if token else ""
    return PLAIN.replace("config:\n", f"config:\n{secret}") + more + (f"encryptionsalt: v1:{salt}\n" if salt else "")


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    folder = tmp_path / "gemma-serving"
    (folder / ".venv").mkdir(parents=True)
    (folder / "Pulumi.yaml").write_text("name: gemma-serving\nruntime: yaml\n")
    (folder / "Pulumi.l4.yaml").write_text(settings("REAL", "REAL"))
    monkeypatch.setenv(trial.STATE_VARIABLE, str(tmp_path / "cloud"))
    monkeypatch.chdir(folder)
    return folder


def test_outside_a_local_cloud_and_in_a_copy_commands_work_in_the_project_itself(checkout, monkeypatch, tmp_path):
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / ".venv").symlink_to(checkout / ".venv")
    assert trial.project_of(tmp_path / "copy") == tmp_path / "copy"
    monkeypatch.delenv(trial.STATE_VARIABLE)
    assert runner.project_folder() == checkout


def test_a_trial_has_every_setting_and_neither_the_salt_nor_the_secrets_of_the_real_stack(checkout):
    folder = runner.project_folder()
    assert folder.parent == Path(os.environ[trial.STATE_VARIABLE], "projects")
    assert (folder / "Pulumi.l4.yaml").read_text() == PLAIN
    assert trial.project_of(folder) == folder, "a command of a command stays in the trial"
    assert (folder / "Pulumi.yaml").resolve() == checkout / "Pulumi.yaml"
    (folder / ".work" / "receipt").write_text("kept")
    assert (checkout / ".work" / "receipt").is_file()


@pytest.mark.parametrize("token", ["", "TRIAL"])
def test_an_edit_of_the_checkout_arrives_and_the_trial_keeps_its_own_secrets(checkout, token):
    copy = runner.project_folder() / "Pulumi.l4.yaml"
    copy.write_text(settings("TRIAL", token))
    edited = settings("REAL", "REAL").replace("8192", "4096")
    (checkout / "Pulumi.l4.yaml").write_text(edited)
    (checkout / "Pulumi.fresh.yaml").write_text("config: {}\n")
    runner.project_folder()
    wanted = yaml.safe_load(settings("TRIAL", token).replace("8192", "4096"))
    assert yaml.safe_load(copy.read_text()) == wanted
    assert "# the model" in copy.read_text()
    assert runner.require_stacks(["fresh"]) == ["fresh", "l4"]
    (checkout / "Pulumi.l4.yaml").unlink()
    assert runner.require_stacks([]) == ["fresh"]


STAGED = {"bucket.manifest": "sha256:" + "7" * 64, "modelRevision": "c" * 40, "bucket.parts": {"a/b": "d"}}
"""Keys that `gemma stage_model` writes."""


def staged(checkout, text):
    """Let the checkout have a settings file, stage its weights in the trial, and return the copy's path."""
    (checkout / "Pulumi.l4.yaml").write_text(text)
    shutil.rmtree(os.environ[trial.STATE_VARIABLE], ignore_errors=True)
    copy = runner.project_folder() / "Pulumi.l4.yaml"
    write_settings(copy, STAGED)
    runner.project_folder()
    return copy


def values(text):
    """Return the settings of a file, and those below a block, by dotted key; None if the engine would refuse the file."""
    try:
        config = (YAML(typ="safe", pure=True).load(text) or {}).get("config")
    except (YAMLError, AttributeError):
        return None
    if not isinstance(config, dict):
        return None
    blocks = {key: value for key, value in config.items() if isinstance(value, dict)}
    below = {f"{key}.{name}": value for key, block in blocks.items() for name, value in block.items()}
    return {**{key: value for key, value in config.items() if key not in blocks}, **below}


@settings_of_law(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_what_staging_wrote_and_an_edit_of_any_line_of_the_checkouts_file_are_both_kept(checkout, data):
    text = data.draw(st.sampled_from([path.read_text() for path in shipped_files(ROOT)]))
    copy, lines = staged(checkout, text), text.splitlines()
    wrote = values(copy.read_text())
    any_line = st.just(len(lines) - 1) | st.integers(0, len(lines) - 1)
    at, other = data.draw(any_line), data.draw(any_line)
    line = lines[at]
    number = re.sub(r"\d+", "3", line)
    edited = data.draw(
        st.sampled_from([[], [number], [line, "  gemma-serving:pulumi: 1"], [lines[other]], ["# a", line]])
    )
    lines[at : at + 1] = edited
    lines[other : other + 1] = data.draw(st.sampled_from([lines[other : other + 1], [line]]))
    (checkout / "Pulumi.l4.yaml").write_text("\n".join(lines))
    runner.project_folder()
    before, theirs = values(text), values("\n".join(lines))
    if theirs is None:
        assert copy.read_text().splitlines() == lines, "the engine shows the fault of the user's own text"
        return
    own = {key: value for key, value in wrote.items() if value != before.get(key)}
    kept = {key: value for key, value in own.items() if theirs.get(key) == before.get(key)}
    assert "gemma-serving:bucket.manifest" in kept
    assert values(copy.read_text()) == {**theirs, **kept}


def test_the_checkouts_value_wins_where_both_changed_a_key(checkout):
    copy = staged(checkout, PLAIN)
    (checkout / "Pulumi.l4.yaml").write_text(f"{PLAIN}  gemma-serving:bucket: {{ manifest: def }}\n")
    runner.project_folder()
    bucket = yaml.safe_load(copy.read_text())["config"]["gemma-serving:bucket"]
    assert bucket == {"manifest": "def", "parts": {"a/b": "d"}}
    assert copy.read_text().count("gemma-serving:bucket") == 1


def test_a_token_that_the_checkout_has_by_reference_now_replaces_the_secret_of_the_trial(checkout):
    copy = runner.project_folder() / "Pulumi.l4.yaml"
    copy.write_text(settings("TRIAL", "TRIAL"))
    (checkout / "Pulumi.l4.yaml").write_text(PLAIN + "  gemma-serving:hfToken: hf_plain\n")
    runner.project_folder()
    wanted = (checkout / "Pulumi.l4.yaml").read_text() + "encryptionsalt: v1:TRIAL\n"
    assert copy.read_text() == wanted, "the engine refuses a key that is there twice"


@pytest.mark.parametrize(
    "real",
    [
        "config:\n    gemma-serving:hfToken: {secure: v1:A=:REAL}\n    gemma-serving:model: m\n",
        'config:\n    "gemma-serving:hfToken":\n        secure: v1:A=:REAL\n    gemma-serving:model: m\n',
        "secretsprovider: gcpkms://projects/p\nencryptedkey: REAL\nconfig:\n    gemma-serving:model: m\n",
    ],
)
def test_every_form_of_a_secret_stays_out_of_the_trial(real):
    found = trial.with_secrets_of(real, settings("TRIAL", "TRIAL"))
    secret = {"secure": "v1:AAA=:TRIAL"}
    config = {"gemma-serving:hfToken": secret, "gemma-serving:model": "m"}
    assert yaml.safe_load(found) == {"config": config, "encryptionsalt": "v1:TRIAL"}


@pytest.mark.parametrize("text", ["", "config: [", "config:\n", "config: {}\n", "a: 1\na: 1\n"])
def test_a_file_without_secrets_is_copied_as_it_is(text):
    assert trial.with_secrets_of(text, "") == text


def launched(checkout, *arguments, writes=None, code=0, folder=None):
    """Run the launcher's step with an engine that tells its folder and its arguments, and writes files."""
    said, engine = checkout.parent / "said", checkout.parent / "engine"
    engine.write_text(FAKE_ENGINE.format(python=sys.executable, said=str(said), writes=writes or {}, code=code))
    engine.chmod(0o755)
    words = [sys.executable, "-P", trial.__file__, str(engine), *arguments]
    done = subprocess.run(words, cwd=folder or checkout, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (code, "")
    return yaml.safe_load(said.read_text())


def test_the_engine_runs_in_the_folder_of_the_trial_and_paths_stay_the_callers(checkout):
    below = checkout / "docs"
    below.mkdir()
    where, *words = launched(checkout, "stack", "export", "--file", "a.json", "--out=b.json", code=3, folder=below)
    assert where == str(runner.project_folder())
    assert words == ["stack", "export", "--file", f"{below}/a.json", f"--out={below}/b.json"]
    elsewhere = checkout.parent
    assert launched(checkout, "version", folder=elsewhere) == [str(elsewhere), "version"]


def test_a_setting_of_pulumi_config_reaches_the_checkout_and_a_secret_does_not(checkout):
    real = (checkout / "Pulumi.l4.yaml").read_text()
    launched(checkout, "config", "set", "--secret", writes={"Pulumi.l4.yaml": settings("TRIAL", "TRIAL")})
    assert (checkout / "Pulumi.l4.yaml").read_text() == real
    changed = settings("TRIAL", "TRIAL").replace("8192", "4096")
    made = {"Pulumi.new.yaml": settings("TRIAL")}
    launched(checkout, "config", "set", writes={"Pulumi.l4.yaml": changed, **made})
    assert yaml.safe_load((checkout / "Pulumi.l4.yaml").read_text()) == yaml.safe_load(real.replace("8192", "4096"))
    assert (checkout / "Pulumi.new.yaml").read_text() == PLAIN
    launched(checkout, "config", "rm", writes={"Pulumi.l4.yaml": PLAIN.replace("8192", "4096")})
    assert "REAL" in (checkout / "Pulumi.l4.yaml").read_text(), "the secret of the real stack stays"
    launched(checkout, "stack", "init", writes={"Pulumi.l4.yaml": settings("OTHER", more="  gemma-serving:x: 1\n")})
    assert "gemma-serving:x" not in (checkout / "Pulumi.l4.yaml").read_text()
