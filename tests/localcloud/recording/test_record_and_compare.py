"""A recorder between a program and a local cloud in Google's place; then the recording against another local cloud."""

import asyncio
import base64
import json
import os
import re
import stat
import sys
from pathlib import Path

import pytest

from localcloud.recording.compare import compare, table
from localcloud.recording.record import RecordOptions, record
from localcloud.recording.recordings import RecordingError, read
from localcloud.recording.replay import Limits
from tests.localcloud import idle_cloud

ROOT = Path(__file__).resolve().parents[3]
CLIENT = Path(__file__).with_name("a_client.py")
PROJECT = "canary-project-77"
CANARIES = {
    "CANARY_HUB": "hf_canarySECRETcanary123456",
    "CANARY_PERSON": "ann.canary@corp-canary.example",
    "CANARY_CONTENT": "canary content of an object",
    "CANARY_ADDRESS": "81.2.69.142",
    "CANARY_SERVE": "sk-canary-api-key-1",
    "PULUMI_CONFIG_PASSPHRASE": "canary passphrase",
}
SHORT = Limits(simulated_s=60.0, real_s=2.0)


def environment(cloud, **more):
    kept = {key: os.environ[key] for key in ("PATH", "HOME", "LANG") if key in os.environ}
    return {
        **kept,
        **CANARIES,
        "GOOGLE_OAUTH_ACCESS_TOKEN": cloud.cloud.tokens.issue_access_token(cloud.cloud.operator),
        "GOOGLE_CLOUD_PROJECT": PROJECT,
        "PYTHONPATH": str(ROOT),
        "LOCALCLOUD_URL": cloud.base_url,
        "LOCALCLOUD_SPEED": "200",
        "NO_PROXY": "127.0.0.1",
        **more,
    }


def recorded_by(cloud, out, **more):
    options = RecordOptions(out=out, command=[sys.executable, str(CLIENT)], upstream=cloud.base_url)
    return asyncio.run(record(options, environment(cloud, **more)))


def compared(path):
    return asyncio.run(compare(read(path), runtimes=idle_cloud.idle_runtimes, limits=SHORT))


@pytest.fixture(scope="module")
def world():
    with idle_cloud.start(project=PROJECT) as cloud:
        yield cloud


@pytest.fixture(scope="module")
def recorded(world, tmp_path_factory):
    out = tmp_path_factory.mktemp("recording") / "out.jsonl"
    assert recorded_by(world, out) == 0
    return out


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def planted(recorded, tmp_path, change):
    """Write the recording with a change of its exchanges, and compare it."""
    head, *exchanges = lines(recorded)
    changed = change(exchanges)
    out = tmp_path / "planted.jsonl"
    out.write_text("\n".join(json.dumps(line) for line in (head, *(changed or exchanges))))
    return compared(out)


def one(exchanges, method, ending):
    return next(each for each in exchanges if each["method"] == method and each["path"].endswith(ending))


class TestRecording:
    def test_no_canary_is_in_the_file_and_only_its_owner_can_read_it(self, recorded, world):
        text = recorded.read_text()
        number = world.cloud.project_number(PROJECT)
        found = [
            value
            for value in (*CANARIES.values(), PROJECT, number, "canary-server", "Bearer", "ya29.")
            if value in text
        ]
        assert found == []
        assert "canary" not in text
        assert stat.S_IMODE(recorded.stat().st_mode) == 0o600

    def test_the_same_value_has_the_same_placeholder(self, recorded):
        exchanges = lines(recorded)[1:]
        assert {match for each in exchanges for match in re.findall(r"/projects/([^/:]+)", each["path"])} == {
            "project-1"
        }
        policy = one(exchanges, "POST", ":setIamPolicy")["request"]["policy"]["bindings"][-1]
        assert policy == {"role": "roles/viewer", "members": ["user:person-1@example.com"]}
        sent = one(exchanges, "POST", "hub:addVersion")["request"]["payload"]["data"]
        read_back = one(exchanges, "GET", "versions/latest:access")["response"]["payload"]["data"]
        container = one(exchanges, "POST", "/services")["request"]["template"]["containers"][0]
        assert sent == read_back
        # The passphrase of the environment is the first secret.
        assert base64.b64decode(sent) == b"secret-2"
        assert container["env"][0]["value"] == "secret-2"
        assert container["args"] == ["--api-key", "secret-3"]

    def test_public_addresses_are_replaced_and_private_ranges_kept(self, recorded):
        rule = one(lines(recorded)[1:], "POST", "/firewalls")["request"]
        assert rule["sourceRanges"] == ["203.0.113.1/32", "10.1.0.0/16"]

    def test_every_exchange_has_its_parts_and_no_content_of_an_object(self, recorded):
        exchanges = lines(recorded)[1:]
        parts = {"time", "duration_s", "method", "path", "query", "request", "status", "response"}
        assert all(parts <= set(each) for each in exchanges)
        uploads = [each for each in exchanges if "/upload/" in each["path"]]
        sizes = [each["request_content"]["bytes"] for each in uploads if "request_content" in each]
        assert sum(sizes) > 40_000 * len(CANARIES["CANARY_CONTENT"])
        assert any(
            each["path"].startswith("/storage/upload/") and each["query"].get("name") == "at-the-root"
            for each in uploads
        )
        assert one(exchanges, "GET", "/small.txt")["response_content"]["bytes"] == len(CANARIES["CANARY_CONTENT"])

    def test_the_exit_code_is_the_commands_and_one_sentence_says_what_was_kept(self, world, tmp_path, capfd):
        script = (
            f"import sys; sys.path.insert(0, {str(CLIENT.parent)!r}); import a_client; a_client.project(); sys.exit(7)"
        )
        options = RecordOptions(out=tmp_path / "o", command=[sys.executable, "-c", script], upstream=world.base_url)
        assert asyncio.run(record(options, environment(world))) == 7
        said = capfd.readouterr().err.strip()
        assert said.count("\n") == 0
        assert said.startswith(
            f"localcloud: kept 1 exchanges in {tmp_path / 'o'}, replaced by placeholders: 1 x project id"
        )

    def test_a_file_that_exists_is_refused(self, world, tmp_path):
        (tmp_path / "o").touch()
        with pytest.raises(RecordingError, match="exists; give --out the name of a new file"):
            recorded_by(world, tmp_path / "o")


class TestComparison:
    def test_the_same_cloud_has_no_difference(self, recorded):
        report = compared(recorded)
        assert report.found == {}
        assert table(report).splitlines()[0].endswith("methods compared: no difference.")
        assert report.as_json()["same"] is True
        assert report.compared["tpu.projects.locations.queuedResources.get"] > 3

    def test_another_status_is_named(self, recorded, tmp_path):
        def change(exchanges):
            one(exchanges, "POST", "/firewalls")["status"] = 409

        report = planted(recorded, tmp_path, change)
        assert [(each.method, each.what, each.recorded) for each in report.found.values()] == [
            ("compute.firewalls.insert", "status", "409")
        ]

    def test_another_value_of_a_field_and_a_missing_field_are_named(self, recorded, tmp_path):
        def change(exchanges):
            answer = one(exchanges, "GET", "/firewalls/from-home")["response"]
            answer["priority"] = 7
            del answer["direction"]

        report = planted(recorded, tmp_path, change)
        assert {(each.method, each.where, each.recorded) for each in report.found.values()} == {
            ("compute.firewalls.get", "priority", "7"),
            ("compute.firewalls.get", "direction", "(absent)"),
        }

    def test_another_order_of_states_is_named(self, recorded, tmp_path):
        def change(exchanges):
            polls = [
                each for each in exchanges if each["method"] == "GET" and each["path"].endswith("/queuedResources/q")
            ]
            for each in polls:
                state = each["response"].get("state", {}).get("state")
                swapped = {"ACCEPTED": "PROVISIONING", "PROVISIONING": "ACCEPTED"}.get(state)
                if swapped:
                    each["response"]["state"]["state"] = swapped

        report = planted(recorded, tmp_path, change)
        (found,) = [each for each in report.found.values() if each.what == "order"]
        assert found.method == "tpu.projects.locations.queuedResources.get"
        assert re.search("PROVISIONING.*ACCEPTED.*ACTIVE", found.recorded)
        assert re.search("ACCEPTED.*PROVISIONING.*ACTIVE", found.here)

    def test_a_state_that_the_local_cloud_never_has_is_named(self, recorded, tmp_path):
        def change(exchanges):
            last = [
                each for each in exchanges if each["path"].endswith("/queuedResources/q") and each["status"] == 200
            ][-2]
            assert last["response"]["state"]["state"] == "ACTIVE"
            last["response"]["state"] = {"state": "FAILED"}

        report = planted(recorded, tmp_path, change)
        assert [(each.what, each.recorded, each.here) for each in report.found.values()] == [
            ("state", "FAILED", "ACTIVE")
        ]

    def test_an_answer_that_is_missing_is_named(self, recorded, tmp_path):
        def change(exchanges):
            one(exchanges, "GET", "/nodes/n").update(response=None)
            one(exchanges, "POST", "/firewalls").update(status=0, response=None)

        report = planted(recorded, tmp_path, change)
        assert {(each.method, each.what, each.recorded) for each in report.found.values()} == {
            ("compute.firewalls.insert", "status", "no answer"),
            ("tpu.projects.locations.nodes.get", "answer", "(absent)"),
        }

    def test_reads_of_what_existed_before_are_left_out(self, recorded, tmp_path):
        def change(exchanges):
            one(exchanges, "GET", "/firewalls/from-home")["path"] = (
                "/compute/compute/beta/projects/project-1/global/networks/older"
            )

        report = planted(recorded, tmp_path, change)
        assert report.found == {}
        assert report.left_out["reads of what existed before the recording began"] == 1
