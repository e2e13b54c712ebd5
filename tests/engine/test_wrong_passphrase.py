"""A user on another machine, with a settings file without its salt: one wrong passphrase does not lock the stack."""

import pytest

from gemma_serving.contracts.settings_files import refresh_command
from gemma_serving.engine import runner
from gemma_serving.engine.exported_state import StateUnreadableError, is_passphrase_error
from gemma_serving.engine.previewed import preview
from gemma_serving.engine.state import read
from gemma_serving.scripts.doctor.diagnosis import Checkup
from gemma_serving.scripts.doctor.passphrase import checks

pytestmark = [pytest.mark.engine, pytest.mark.long]


def test_a_wrong_passphrase_writes_nothing_and_config_refresh_repairs_a_file_that_has_its_salt(tmp_path, monkeypatch):
    project, file, state = tmp_path / "project", tmp_path / "project" / "Pulumi.s.yaml", tmp_path / "state"
    project.mkdir()
    state.mkdir()
    (project / "Pulumi.yaml").write_text("name: gemma-serving\nruntime: python\n")
    (project / "__main__.py").write_text("import pulumi\n")
    monkeypatch.chdir(project)
    monkeypatch.setenv("PULUMI_BACKEND_URL", f"file://{state}")
    monkeypatch.setenv("PULUMI_CONFIG_PASSPHRASE", "right")
    monkeypatch.setattr(runner, "project_folder", lambda: project)

    def diagnosis():
        (check,) = checks(Checkup(project="p", google=None, member="", state=read("s")))
        (line,) = check.lines()
        return line

    runner.query(["stack", "init", "s"])
    runner.query(["config", "set", "--secret", "token", "value", "--stack", "s"])
    runner.query(["up", "--yes", "--skip-preview", "--stack", "s"])
    with_salt = file.read_text()
    without = "".join(line for line in with_salt.splitlines(keepends=True) if not line.startswith("encryptionsalt"))
    file.write_text(without)
    with monkeypatch.context() as heir:
        heir.setenv("PULUMI_CONFIG_PASSPHRASE", "wrong")
        assert diagnosis().detail == "PULUMI_CONFIG_PASSPHRASE is not the passphrase of the state of stack s"
        with pytest.raises(StateUnreadableError, match="cannot be decrypted"):
            preview("s")
        assert file.read_text() == without, "the engine would write the salt of the wrong one"
        refused = runner.run("preview", "--stack", "s")
        assert is_passphrase_error(runner.error_of(refused))
    assert "has the encryptionsalt of another passphrase" in diagnosis().detail
    assert diagnosis().fix == refresh_command("s")
    runner.query(refresh_command("s").split()[1:])
    assert (diagnosis().state, preview("s")["steps"] != []) == ("passed", True)
    file.write_text(without)
    assert "has secrets without their encryptionsalt" in diagnosis().detail
    file.unlink()
    runner.query(refresh_command("s").split()[1:])
    assert sorted(file.read_text().split()) == sorted(with_salt.split())
    assert read("s").status == "read"
