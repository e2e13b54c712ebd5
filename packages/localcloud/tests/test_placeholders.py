"""Values that identify someone or grant access are replaced anywhere in a text."""

import json

import pytest

from localcloud.trials.known import known_secrets
from localcloud.trials.placeholders import Kind, Placeholders

KEY = "AAAAC3NzaC1lZDI1NTE5AAAAIexamplekey"
PEM = "-----BEGIN PRIVATE KEY-----\nMIIEvQIB\n-----END PRIVATE KEY-----"


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
    assert Placeholders().text(text) == shown


def test_what_is_known_is_replaced_wherever_it_is():
    placeholders = Placeholders()
    placeholders.learn(Kind.PROJECT, "my-corp-prod")
    assert placeholders.text("gs://my-corp-prod-models") == "gs://project-1-models"


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
    placeholders = Placeholders(secrets=known_secrets(environment))
    said = "d-FL95Q19q7MQmFpd 1//0abcdefgh my-corp-prod correct horse pul-secret-access ann@corp.example"
    shown = placeholders.text(said)
    assert shown == "secret-2 token-2 project-1 secret-1 token-1 person-1@example.com"
