"""`localcloud record` and `localcloud compare` as commands: exit codes, Ctrl-C, refusals, the table and the JSON."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from localcloud.recording.recordings import read
from tests.localcloud import idle_cloud

ROOT = Path(__file__).resolve().parents[3]
CLIENT = Path(__file__).parent
LIMIT_S = 60
HEAD = {"format": "localcloud-recording", "version": 1, "speed": 1}


def command(*arguments, environment=None, **options):
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("GOOGLE_", "PULUMI_", "CLOUDSDK_"))}
    return subprocess.Popen(
        [sys.executable, "-m", "localcloud", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**kept, **(environment or {})},
        **options,
    )


def finished(*arguments, environment=None):
    process = command(*arguments, environment=environment)
    out, err = process.communicate(timeout=LIMIT_S)
    return process.returncode, out, err


@pytest.fixture(scope="module")
def cloud():
    with idle_cloud.start() as started:
        yield started


def child(script):
    return [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(CLIENT)!r}); import a_client, time; {script}"]


def environment(cloud):
    token = cloud.cloud.tokens.issue_access_token(cloud.cloud.operator)
    return {"GOOGLE_CLOUD_PROJECT": "local-project", "GOOGLE_OAUTH_ACCESS_TOKEN": token}


def test_ctrl_c_ends_the_command_and_leaves_a_valid_file(cloud, tmp_path):
    out = tmp_path / "out.jsonl"
    script = child("a_client.project(); time.sleep(60)")
    process = command(
        "record", "--out", str(out), "--upstream", cloud.base_url, "--", *script, environment=environment(cloud)
    )
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end and not (out.exists() and len(out.read_text().splitlines()) > 1):
        time.sleep(0.05)
    assert json.loads(out.read_text().splitlines()[0])["complete"] is False
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    assert "kept 1 exchanges" in err
    assert [each.path for each in read(out).exchanges] == ["/cloudresourcemanager/v1/projects/project-1"]
    assert json.loads(out.read_text().splitlines()[0])["complete"] is True
    assert "ya29." not in out.read_text()


def test_the_dashes_before_the_command_are_optional(cloud, tmp_path):
    out = tmp_path / "out.jsonl"
    script = child("a_client.project(); sys.exit(5)")
    assert (
        finished("record", "--out", str(out), "--upstream", cloud.base_url, *script, environment=environment(cloud))[0]
        == 5
    )
    code, said, _ = finished("compare", str(out), "--json")
    report = json.loads(said)
    assert (code, report["same"], report["exchanges"]) == (0, True, 1)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "cannot be read"),
        ("", "Line 1 of"),
        ("{}", "is not a recording"),
        (json.dumps({**HEAD, "version": 99}), "has version 99 of the format, this program reads version 1"),
        (json.dumps(HEAD) + '\n{"time": 1}', "Line 2 of"),
        (json.dumps(HEAD) + "\n{cut", "Line 2 of"),
        (json.dumps(HEAD) + "\n" + json.dumps({"time": "2026-11-20T08:00:00", "path": "no/slash"}), "Line 2 of"),
    ],
)
def test_a_file_that_is_no_recording_is_refused_in_one_sentence(tmp_path, text, says):
    path = tmp_path / "out.jsonl"
    if text is not None:
        path.write_text(text)
    code, out, err = finished("compare", str(path))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err


def test_a_command_is_needed_and_a_file_that_exists_is_kept(tmp_path):
    (tmp_path / "out").write_text("mine")
    assert finished("record", "--out", str(tmp_path / "new"))[0] == 2
    code, _, err = finished("record", "--out", str(tmp_path / "out"), "--", "true")
    assert (code, "exists" in err) == (2, True)
    assert (tmp_path / "out").read_text() == "mine"


def exchange(**parts):
    return {
        "time": "2026-11-20T08:00:00.000+00:00",
        "duration_s": 0.1,
        "method": "GET",
        "path": "/cloudresourcemanager/v1/projects/project-1",
        "query": {},
        "request": None,
        "status": 200,
        "response": {"projectId": "project-1", "lifecycleState": "DELETE_REQUESTED"},
        **parts,
    }


def test_differences_are_a_table_and_the_exit_code_is_1(tmp_path):
    path = tmp_path / "out.jsonl"
    path.write_text(json.dumps(HEAD) + "\n" + json.dumps(exchange()))
    code, out, err = finished("compare", str(path))
    assert (code, err) == (1, "")
    assert out.splitlines()[0] == "cloudresourcemanager.projects.get (1 exchanges)"
    assert any(
        line.split()[:4] == ["answer", "lifecycleState", "recorded:", "DELETE_REQUESTED"] for line in out.splitlines()
    )
    assert out.splitlines()[-1].startswith("1 exchanges of 1 methods compared: ")


def test_what_two_commands_sent_is_compared_with_each_other(tmp_path):
    create = {
        "method": "POST",
        "path": "/secretmanager/v1/projects/project-1/secrets",
        "query": {"secretId": "a"},
        "response": {},
    }
    ours = [exchange(**create, request={"replication": {"automatic": {}}, "etag": "1"}), exchange()]
    theirs = [exchange(**create, request={"replication": {"automatic": {}}, "etag": "2"})]
    other = [exchange(**create, request={"replication": {"userManaged": {}}})]
    paths = []
    for name, exchanges in (("ours", ours), ("theirs", theirs), ("other", other), ("none", [])):
        path = tmp_path / name
        path.write_text("\n".join(json.dumps(line) for line in (HEAD, *exchanges)))
        paths.append(str(path))
    assert finished("compare", paths[0], "--with", paths[1])[0] == 0
    code, out, _ = finished("compare", paths[0], "--with", paths[2], "--json")
    assert code == 1
    assert {each["where"] for each in json.loads(out)["differences"]} == {
        "body.replication.automatic",
        "body.replication.userManaged",
    }
    code, out, _ = finished("compare", paths[0], "--with", paths[3], "--json")
    assert code == 1
    assert [each["here"] for each in json.loads(out)["differences"]] == ["(absent)"]
