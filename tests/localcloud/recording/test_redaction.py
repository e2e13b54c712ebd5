"""What identifies somebody or opens something is replaced wherever it stands; what the comparison needs is kept."""

import base64
import json
from datetime import UTC, datetime

import google_crc32c
import pytest

from localcloud.recording.placeholders import Kind, Placeholders
from localcloud.recording.record import known_secrets
from localcloud.recording.recordings import RecordedExchange
from localcloud.recording.redaction import Redactor

KEY = "AAAAC3NzaC1lZDI1NTE5AAAAIexamplekey"
PEM = "-----BEGIN PRIVATE KEY-----\nMIIEvQIB\n-----END PRIVATE KEY-----"


def redacted(request=None, path="/run/v2/projects/my-corp-prod/x", placeholders=None, **parts):
    exchange = RecordedExchange(
        time=datetime.now(UTC), duration_s=0, method="POST", path=path, request=request, status=200, **parts
    )
    return Redactor(placeholders or Placeholders()).exchange(exchange)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("projects/my-corp-prod/secrets/x", "projects/project-1/secrets/x"),
        ("projects/123456789012/secrets/x", "projects/100000000001/secrets/x"),
        ("ann@corp.example", "person-1@example.com"),
        ("user:ann@corp.example, ann@corp.example", "user:person-1@example.com, person-1@example.com"),
        ("deployer@my-corp-prod.iam.gserviceaccount.com", "account-1@project-1.iam.gserviceaccount.com"),
        ("123456789012-compute@developer.gserviceaccount.com", "100000000001-compute@developer.gserviceaccount.com"),
        (
            "service-123456789012@cloud-tpu.iam.gserviceaccount.com",
            "service-100000000001@cloud-tpu.iam.gserviceaccount.com",
        ),
        ("my-corp-prod@appspot.gserviceaccount.com", "project-1@appspot.gserviceaccount.com"),
        ("domain:corp.example", "domain:domain-1.example.com"),
        ("organizations/998877665544", "organizations/100000000001"),
        ("billingAccounts/0A1B2C-3D4E5F-A6B7C8", "billingAccounts/000000-000000-000001"),
        ("Bearer abcdefgh12345", "Bearer token-1"),
        ("ya29.a0AfH6SMBx-y_z1234", "token-1"),
        ("eyJhbGciOiJSUzI1.eyJhdWQiOiJ4In0x.c2ln", "token-1"),
        ("hf_abcdefghijklmnopqrst", "token-1"),
        ("pul-0123456789abcdef0123456789abcdef01234567", "token-1"),
        ("AIzaSyA1234567890abcdefghijklmnopqrstuv", "key-1"),
        (PEM, "key-1"),
        (f"ann:ssh-ed25519 {KEY} ann@laptop", "account-1:ssh-ed25519 key-1"),
        ("https://user:pa55word@registry.example/x", "https://user:person-1@example.com/x"),
        ("https://x/y?upload_id=ABPtcPq-1&z=1", "https://x/y?upload_id=token-1&z=1"),
        ("from 81.2.69.142 to 10.0.0.1/24", "from 203.0.113.1 to 10.0.0.1/24"),
        ("35.235.240.0/20 and 0.0.0.0/0", "35.235.240.0/20 and 0.0.0.0/0"),
        ("2a00:1450:4001:81b::200e and fd00::1", "2001:db8::1 and fd00::1"),
        ("https://gemma-abcdefghij-uk.a.run.app", "https://gemma-host000001-uk.a.run.app"),
        ("https://gemma-123456789012.us-east4.run.app", "https://gemma-100000000001.us-east4.run.app"),
        ("us-docker.pkg.dev/my-corp-prod/repo/image@sha256:0a1b", "us-docker.pkg.dev/project-1/repo/image@sha256:0a1b"),
        ("v2-alpha-tpuv6e at 10:11:12, us-east5-a", "v2-alpha-tpuv6e at 10:11:12, us-east5-a"),
    ],
)
def test_a_text_is_found_by_its_form(text, shown):
    assert redacted({"description": text}, path="/x").request == {"description": shown}


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (
            {"projectId": "my-corp-prod", "projectNumber": "123456789012"},
            {"projectId": "project-1", "projectNumber": "100000000001"},
        ),
        ({"projectNumber": 123456789012}, {"projectNumber": 100000000001}),
        ({"accountId": "deployer"}, {"accountId": "account-1"}),
        ({"parent": {"type": "folder", "id": "123456"}}, {"parent": {"type": "folder", "id": "100000000001"}}),
        ({"accessToken": "short"}, {"accessToken": "token-1"}),
        ({"env": [{"name": "API_KEY", "value": "k"}]}, {"env": [{"name": "API_KEY", "value": "secret-1"}]}),
        ({"env": [{"name": "HF_HOME", "value": "/mnt"}]}, {"env": [{"name": "HF_HOME", "value": "/mnt"}]}),
        ({"args": ["--api-key=k", "--port=8000"]}, {"args": ["--api-key=secret-1", "--port=8000"]}),
        ({"args": ["--token", "k", "--port", "1"]}, {"args": ["--token", "secret-1", "--port", "1"]}),
        ({"args": ["--tokenizer", "x"]}, {"args": ["--tokenizer", "x"]}),
        ({"metadata": {"hub-token": "v"}}, {"metadata": {"hub-token": "secret-1"}}),
        (
            {"metadata": {"ssh-keys": f"ann:ssh-ed25519 {KEY} a@b"}},
            {"metadata": {"ssh-keys": "account-1:ssh-ed25519 key-1"}},
        ),
        ({"metadata": {"doc": '{"apiKey": "k", "n": 1}'}}, {"metadata": {"doc": '{"apiKey": "key-1", "n": 1}'}}),
        ({"labels": {"project": "gemma-serving"}}, {"labels": {"project": "gemma-serving"}}),
        (
            {"metadata": {"token-secret": "projects/my-corp-prod/secrets/hub"}},
            {"metadata": {"token-secret": "projects/project-1/secrets/hub"}},
        ),
        (
            {"queryValue": {"items": [{"key": "phase", "value": "ready"}]}},
            {"queryValue": {"items": [{"key": "phase", "value": "ready"}]}},
        ),
    ],
)
def test_a_value_is_found_by_its_field(body, shown):
    assert redacted(body, path="/x").request == shown


def test_a_secrets_payload_is_replaced_with_its_checksum_and_wherever_it_stands_later():
    placeholders = Placeholders()
    data = base64.b64encode(b"open sesame\n").decode()
    sent = redacted({"payload": {"data": data, "dataCrc32c": "1"}}, placeholders=placeholders).request["payload"]
    assert base64.b64decode(sent["data"]) == b"secret-1"
    assert sent["dataCrc32c"] == str(int.from_bytes(google_crc32c.Checksum(b"secret-1").digest(), "big"))
    assert redacted({"a": ["say open sesame"]}, placeholders=placeholders).request == {"a": ["say secret-1"]}


def test_paths_and_queries_are_replaced_and_stay_encoded():
    done = redacted(
        path="/iam/v1/projects/my-corp-prod/serviceAccounts/deployer%40my-corp-prod.iam.gserviceaccount.com/x%2Fy",
        query={"key": "AIza-short", "userProject": "my-corp-prod", "pageToken": "abc", "filter": "a=b"},
    )
    assert done.path == "/iam/v1/projects/project-1/serviceAccounts/account-1@project-1.iam.gserviceaccount.com/x%2Fy"
    assert done.query == {"key": "key-1", "userProject": "project-1", "pageToken": "token-1", "filter": "a=b"}


def test_what_becomes_known_late_is_replaced_in_earlier_lines_too():
    placeholders = Placeholders()
    redactor = Redactor(placeholders)
    early = redacted({"bucket": "my-corp-prod-models"}, path="/x", placeholders=placeholders).as_json()
    redacted({"projectId": "my-corp-prod"}, placeholders=placeholders)
    assert redactor.again(early)["request"] == {"bucket": "project-1-models"}


def test_the_environment_and_its_credential_files_are_known_before_the_first_request(tmp_path):
    credentials = tmp_path / "adc.json"
    credentials.write_text(
        json.dumps(
            {"client_secret": "d-FL95Q19q7MQmFpd", "refresh_token": "1//0abcdefgh", "quota_project_id": "my-corp-prod"}
        )
    )
    passphrase = tmp_path / "pass"
    passphrase.write_text("correct horse\n")
    environment = {
        "GOOGLE_APPLICATION_CREDENTIALS": str(credentials),
        "PULUMI_CONFIG_PASSPHRASE_FILE": str(passphrase),
        "PULUMI_ACCESS_TOKEN": "pul-secret-access",
        "CLOUDSDK_CORE_ACCOUNT": "ann@corp.example",
        "HOME": "/home/ann",
    }
    placeholders = Placeholders(secrets=known_secrets(environment, ["Corp Ltd"]))
    said = "d-FL95Q19q7MQmFpd 1//0abcdefgh my-corp-prod correct horse pul-secret-access ann@corp.example Corp Ltd"
    shown = redacted({"a": said}, path="/x", placeholders=placeholders).request["a"]
    assert shown == "secret-2 token-2 project-1 secret-1 token-1 person-1@example.com text-1"
    assert placeholders.counts()[Kind.TEXT] == 1
