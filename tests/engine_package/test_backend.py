"""A private folder goes at the end. A relative backend is the project's, also in a copy."""

import os
import tempfile

import pytest

from gemma_serving.engine import runner
from gemma_serving.engine.atomic_file import private_folder
from gemma_serving.engine.backend import BACKEND_VARIABLE, absolute_backend


def test_a_folder_is_private_and_gone_at_the_end(monkeypatch, tmp_path):
    def interrupted():
        with private_folder() as folder:
            (folder / "secret").touch()
            assert folder.stat().st_mode & 0o777 == 0o700
            raise KeyboardInterrupt

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def project(monkeypatch, tmp_path):
    monkeypatch.setattr(runner, "project_folder", lambda: tmp_path)
    monkeypatch.delenv(BACKEND_VARIABLE, raising=False)
    monkeypatch.delenv("PULUMI_CREDENTIALS_PATH", raising=False)
    monkeypatch.setenv("PULUMI_HOME", str(tmp_path / "home"))
    (tmp_path / "Pulumi.yaml").write_text("name: gemma-serving\n")
    return tmp_path


def used():
    with absolute_backend():
        return os.environ.get(BACKEND_VARIABLE)


def test_a_relative_backend_is_the_one_of_the_project_wherever_it_is_named(project, monkeypatch):
    state = f"file://{project}/state"
    assert used() is None
    (project / "home").mkdir()
    (project / "home" / "credentials.json").write_text('{"current": "file://./state"}')
    assert used() == state
    (project / "Pulumi.yaml").write_text("name: gemma-serving\nbackend:\n  # the state\n  url: 'file://./own'\n")
    assert used() == f"file://{project}/own"
    monkeypatch.setenv(BACKEND_VARIABLE, "file://state?metadata=skip")
    assert used() == f"{state}?metadata=skip"
    assert os.environ[BACKEND_VARIABLE] == "file://state?metadata=skip"
    for url in ("file:///one", "file://~", "gs://bucket", "https://api.pulumi.com"):
        monkeypatch.setenv(BACKEND_VARIABLE, url)
        assert used() == url
