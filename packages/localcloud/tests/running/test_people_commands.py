"""Another distribution adds commands to the PATH of a local cloud."""

import os
import subprocess

from localcloud.running import shims


class Point:
    name, value = "mine", "json.tool"


def test_the_module_of_an_entry_point_becomes_a_command_beside_our_own(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "importlib.metadata.entry_points", lambda *, group: [Point] if group == "localcloud.commands" else []
    )
    folder = shims.install(tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == ["gcloud", "mine"]
    done = subprocess.run(
        [folder / "mine", "--compact"],
        input='{"a": 1}',
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == '{"a":1}\n'
