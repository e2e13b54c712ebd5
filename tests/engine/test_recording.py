"""Two lives of one stack with the real engine under the recorder: they send the same, and a fresh local cloud answers as the recorded one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools import nightly

pytestmark = pytest.mark.engine

ROOT = Path(__file__).resolve().parents[2]
STACK = "l4-12b-qat"
LIMIT_S = 480


def compared(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "localcloud", "compare", *map(str, arguments), "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode in {0, 1}, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    out = tmp_path_factory.mktemp("nightly")
    code = nightly.main(["--stack", STACK, "--second", "standin", "--out", str(out)])
    return code, [out / f"{STACK}.{number}-standin.jsonl" for number in (1, 2)]


@pytest.mark.timeout(1200)
def test_two_runs_of_the_stand_in_send_the_same(recordings, capsys):
    code, (first, second) = recordings
    assert code == 0
    report = compared(first, "--with", second)
    assert (report["same"], report["exchanges"] > 12) == (True, True)


def test_a_fresh_local_cloud_answers_as_the_recorded_one(recordings):
    _, (first, _) = recordings
    assert "local-project" not in first.read_text()
    report = compared(first)
    assert report["differences"] == []
    assert report["methods"]["run.projects.locations.services.patch"] > 0


def test_a_planted_answer_and_a_planted_request_are_named(recordings, tmp_path):
    _, (first, second) = recordings
    head, *exchanges = (json.loads(line) for line in first.read_text().splitlines())
    service = next(each for each in exchanges if each["method"] == "PATCH" and each["path"].startswith("/run/"))
    service["request"]["template"]["containers"][0]["args"].append("--seed=1")
    planted = tmp_path / "planted.jsonl"
    planted.write_text("\n".join(json.dumps(line) for line in (head, *exchanges)))
    (difference,) = compared(planted, "--with", second)["differences"]
    assert difference["method"] == "run.projects.locations.services.patch"
    assert difference["recorded"] == "--seed=1"
    read = [each for each in exchanges if each["method"] == "GET" and each["path"].endswith(f"/services/gemma-{STACK}")]
    read[-1]["response"]["ingress"] = "INGRESS_TRAFFIC_NONE"
    planted.write_text("\n".join(json.dumps(line) for line in (head, *exchanges)))
    fields = {each["where"]: each["recorded"] for each in compared(planted)["differences"]}
    assert fields["ingress"] == "INGRESS_TRAFFIC_NONE"
