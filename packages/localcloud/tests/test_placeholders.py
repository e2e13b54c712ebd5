"""Values that identify someone or grant access are replaced anywhere in a text."""

import json

import pytest

from localcloud.trials.answers import PROJECT, Redaction, known_secrets

KEY = "AAAAC3NzaC1lZDI1NTE5AAAAIexamplekey"
PEM = "-----BEGIN PRIVATE KEY-----\nMIIEvQIB\n-----END PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("projects/my-corp-prod/secrets/x", "projects/PROJECT/secrets/x"),
        ("projects/123456789012/secrets/x", "projects/NUMBER/secrets/x"),
        ("ann@corp.example", "PERSON"),
        ("user:ann@corp.example, ann@corp.example", "user:PERSON, PERSON"),
        ("deployer@my-corp-prod.iam.gserviceaccount.com", "ACCOUNT@PROJECT.iam.gserviceaccount.com"),
        ("123456789012-compute@developer.gserviceaccount.com", "NUMBER-compute@developer.gserviceaccount.com"),
        (
            "service-123456789012@cloud-tpu.iam.gserviceaccount.com",
            "service-NUMBER@cloud-tpu.iam.gserviceaccount.com",
        ),
        ("my-corp-prod@appspot.gserviceaccount.com", "PROJECT@appspot.gserviceaccount.com"),
        ("domain:corp.example", "domain:DOMAIN"),
        ("organizations/998877665544", "organizations/NUMBER"),
        ("billingAccounts/0A1B2C-3D4E5F-A6B7C8", "billingAccounts/BILLING"),
        ("Bearer abcdefgh12345", "Bearer TOKEN"),
        ("ya29.a0AfH6SMBx-y_z1234", "TOKEN"),
        ("eyJhbGciOiJSUzI1.eyJhdWQiOiJ4In0x.c2ln", "TOKEN"),
        ("hf_abcdefghijklmnopqrst", "TOKEN"),
        ("pul-0123456789abcdef0123456789abcdef01234567", "TOKEN"),
        ("AIzaSyA1234567890abcdefghijklmnopqrstuv", "KEY"),
        (PEM, "KEY"),
        (f"ann:ssh-ed25519 {KEY} ann@laptop", "ACCOUNT:ssh-ed25519 KEY"),
        ("https://user:pa55word@registry.example/x", "https://user:PERSON/x"),
        ("https://x/y?upload_id=ABPtcPq-1&z=1", "https://x/y?upload_id=TOKEN&z=1"),
        ("from 81.2.69.142 to 10.0.0.1/24", "from ADDRESS to 10.0.0.1/24"),
        ("35.235.240.0/20 and 0.0.0.0/0", "35.235.240.0/20 and 0.0.0.0/0"),
        ("2a00:1450:4001:81b::200e and fd00::1", "ADDRESS and fd00::1"),
        ("https://gemma-abcdefghij-uk.a.run.app", "https://gemma-HOST-uk.a.run.app"),
        ("https://gemma-123456789012.us-east4.run.app", "https://gemma-NUMBER.us-east4.run.app"),
        ("us-docker.pkg.dev/my-corp-prod/repo/image@sha256:0a1b", "us-docker.pkg.dev/PROJECT/repo/image@sha256:0a1b"),
        ("v2-alpha-tpuv6e at 10:11:12, us-east5-a", "v2-alpha-tpuv6e at 10:11:12, us-east5-a"),
    ],
)
def test_a_text_is_found_by_its_form(text, shown):
    assert Redaction([]).text(text) == shown


def test_what_is_known_is_replaced_wherever_it_is():
    assert Redaction([(PROJECT, "my-corp-prod")]).text("gs://my-corp-prod-models") == "gs://PROJECT-models"


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
    said = "d-FL95Q19q7MQmFpd 1//0abcdefgh my-corp-prod correct horse pul-secret-access ann@corp.example"
    shown = Redaction(known_secrets(environment)).text(said)
    assert shown == "SECRET TOKEN PROJECT SECRET TOKEN PERSON"
