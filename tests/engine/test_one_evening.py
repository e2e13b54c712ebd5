"""examples/one-evening.sh on the local cloud, whole and killed, and the lines of the assumptions page as they are printed."""

import os
import re
import signal
import subprocess

import pytest

from localcloud.ledger.entries import load
from localcloud.ledger.page import SHELL
from tests.engine.conftest import PROJECT, ROOT, open_workspace
from tests.polling import until

pytestmark = [pytest.mark.engine, pytest.mark.long, pytest.mark.timeout(900)]

(SCRIPT,) = re.findall(r"(?m)^examples/\S+$", (ROOT / "docs" / "one-evening.md").read_text())
DECIDED = {entry.id for entry in load().critical if not entry.try_it}
PRINTED = {
    "first-revision-before-its-grant": r'(?s)(?!.*"error")"name": "projects/[^"]+/services/localcloud-try/revisions|/operations/',
    "hub-ids": r"^(?:200 \S+\n)+401 \S+\n$",
    "service-disabled-without-errors": r"SERVICE_DISABLED",
    "tpu-delete-needs-force": r'(?s)"state": "WAITING_FOR_RESOURCES".*"code": 400(?!.*\[[^\]]*WAITING_FOR_RESOURCES)',
    "disabled-api-keeps-resources": r"services/localcloud-try\"",
    "queued-run-ends": r'(?s)"SUSPENDED".*"code": 404.*"code": 409',
    "tpu-boot-disk-left": r"system=1\dG,image=(1[2-9]|2[0-5])G",
    "os-login-shuts-out-metadata-keys": r'"value": "ignored"',
}
"""Entry -> what its lines print on the local cloud, which simulates the assumption."""


@pytest.fixture
def evening(tmp_path):
    (tmp_path / "world.yaml").write_text("base: prepared\n")
    with open_workspace(tmp_path, "--scenario", str(tmp_path / "world.yaml"), serving_speed="200", cold=True) as opened:
        opened.environment["GOOGLE_CLOUD_PROJECT"] = PROJECT
        yield opened


def begin(evening, answer="yes\n", **variables):
    started = subprocess.Popen(
        [SCRIPT],
        cwd=evening.folder / "project",
        env={**evening.environment, **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    started.stdin.write(answer)
    started.stdin.close()
    return started


def ended(started):
    out = started.stdout.read()
    return started.wait(timeout=600), out


def verdicts(out):
    return dict(re.findall(r"(?m)^([a-z0-9-]+): (true|false|not decided by these logs)$", out))


def left(evening):
    """What the stacks left, but for operations, deleted roles, and the network that Google holds."""
    kept = ("/operations/", "/roles/", "networks/gemma-evening-l4")
    return [name for name in evening.made("evening-") if not any(part in name for part in kept)]


def files(evening):
    return sorted(path.name for path in (evening.folder / "project").glob("Pulumi.evening-*.yaml"))


def test_whole_it_decides_six_entries_and_the_next_start_names_the_held_network(evening):
    code, out = ended(begin(evening))
    assert code == 0, out
    assert verdicts(out) == {
        entry.id: "true" if entry.id in DECIDED else "not decided by these logs" for entry in load().critical
    }
    assert left(evening) == []
    assert files(evening) == ["Pulumi.evening-l4.yaml"]
    (folder,) = (evening.folder / "project" / ".work" / "evening").iterdir()
    assert len((folder / "times.txt").read_text().splitlines()) == 21
    assert {path.name for path in folder.glob("receipt-*")} == {f"receipt-evening-{one}.json" for one in ("l4", "tpu")}

    code, out = ended(begin(evening))
    assert code == 1
    assert "subnetwork" in out
    (command,) = re.findall(r"Run: (gemma teardown evening-l4 && rm Pulumi\.evening-l4\.yaml)", out)
    evening.advance(3 * 3600)
    evening.run("sh", "-c", f"PATH=$PWD/.venv/bin:$PATH; {command.replace('evening-l4 &&', 'evening-l4 --yes &&')}")
    assert (evening.made("networks/gemma-evening"), files(evening)) == ([], [])


@pytest.mark.parametrize(
    ("how", "code"),
    [(signal.SIGINT, 130), (signal.SIGHUP, 129), (signal.SIGTERM, 143)],
    ids=["ctrl-c", "terminal-closed", "terminated"],
)
def test_a_signal_in_up_tears_down(evening, how, code):
    started = begin(evening)
    until(lambda: evening.made("services/gemma-evening-l4"), "the service is created", limit_s=200)
    os.killpg(started.pid, how) if how == signal.SIGINT else started.send_signal(how)
    ended_as, out = ended(started)
    assert ended_as == code, out
    assert (left(evening), files(evening)) == ([], []), out
    assert "evening-tpu" not in out.partition("yes, or")[2]


def test_after_a_kill_the_next_start_names_the_stack(evening):
    started = begin(evening)
    until(lambda: evening.made("services/gemma-evening-l4"), "the service is created", limit_s=200)
    os.killpg(started.pid, signal.SIGKILL)
    started.wait()
    code, out = ended(begin(evening))
    assert code == 1
    assert "1 Cloud Run service" in out
    assert "Run: gemma teardown evening-l4 && rm Pulumi.evening-l4.yaml" in out
    evening.script("teardown", "--stack", "evening-l4", "--yes")
    assert left(evening) == []


def test_after_its_time_a_stack_is_torn_down_and_the_other_is_tried(evening):
    """A `date` that is two hours late once the service exists."""
    shims = evening.folder / "shims"
    shims.mkdir()
    late = evening.folder / "late"
    (shims / "date").write_text(
        f'#!/bin/sh\n[ "$1" = +%s ] && [ -e {late} ] && exec echo $(($(/bin/date +%s) + 7200))\nexec /bin/date "$@"\n'
    )
    (shims / "date").chmod(0o755)
    started = begin(evening, PATH=f"{shims}:{evening.environment['PATH']}")
    until(lambda: evening.made("services/gemma-evening-l4"), "the service is created", limit_s=200)
    late.touch()
    code, out = ended(started)
    assert code == 1, out
    assert "The time for evening-l4 is over." in out
    assert verdicts(out)["tpu-container-reaches-the-chips"] == "true"
    assert (left(evening), files(evening)) == ([], []), out


def test_without_a_yes_nothing_is_deployed(evening):
    for answer in ("", "no\n", "y\n"):
        code, out = ended(begin(evening, answer))
        assert (code, "Nothing was deployed." in out) == (2, True)
    evening.configure("tpu-v6e1", **{"tpu.acceleratorType": "v6e-4", "vllm.tensorParallelSize": 4})
    code, out = ended(begin(evening))
    assert (code, "more than $4" in out) == (2, True), out
    assert (evening.made("evening-"), files(evening)) == ([], [])


@pytest.mark.parametrize("name", PRINTED)
def test_the_lines_of_the_page_show_what_the_local_cloud_simulates(evening, name):
    entry = next(each for each in load().critical if each.id == name)
    if name == "service-disabled-without-errors":
        evening.post(f"serviceusage/v1/projects/{PROJECT}/services/cloudbilling.googleapis.com:disable", {})
    evening.change_scenario({"tpu": {"accelerate_run_duration": name == "queued-run-ends"}})
    text = SHELL.replace("YOUR_PROJECT", PROJECT) + entry.try_it
    text = re.sub(r"https://(\w+)\.googleapis\.com", r"$LOCALCLOUD_URL/\1", text)
    text = text.replace("https://huggingface.co", "$HF_ENDPOINT").replace(
        "metadata.google.internal", r"\${GCE_METADATA_HOST}"
    )
    text = 'sleep() { command sleep "$(($1 / 100 + 2))"; }\n' + text
    out = evening.run("bash", "-c", text).out
    assert re.search(PRINTED[name], out), out
    evening.run("bash", "-c", text.partition(entry.try_it)[0] + "clean")
    until(
        lambda: not [each for each in evening.made("/localcloud-try") if "/operations/" not in each],
        "nothing is left",
        limit_s=60,
    )
