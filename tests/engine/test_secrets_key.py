"""The real engine with a key in Cloud KMS: who may only decrypt can deploy, and who may not can export and preview without secrets."""

import shutil
import sys

import pytest

from gemma_serving.engine import runner
from gemma_serving.engine.exported_state import is_passphrase_error
from gemma_serving.engine.secrets_provider import key_of, provider_options
from gemma_serving.scripts.preview.without_secrets import STAND_IN, without_secrets
from tests.engine.kms import served

KEY = "projects/p/locations/us/keyRings/r/cryptoKeys/k"
CANARY = "canaryKEYcanaryKEY0123456789"
NAME = "gemma-serving:apiKey"
LIMIT_S = 120

pytestmark = [
    pytest.mark.engine,
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere Go does not read SSL_CERT_FILE"),
]


@pytest.fixture
def kms(tmp_path, monkeypatch):
    """A project with a backend of its own, and the environment of an engine that calls the stand-in."""
    (tmp_path / "Pulumi.yaml").write_text("name: gemma-serving\nruntime: python\n")
    (tmp_path / "backend").mkdir()
    for name in ("PULUMI_CONFIG_PASSPHRASE", "PULUMI_CONFIG_PASSPHRASE_FILE", "GOOGLE_CREDENTIALS", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PULUMI_BACKEND_URL", f"file://{tmp_path / 'backend'}")
    monkeypatch.setenv("PULUMI_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    with served(tmp_path) as (service, environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        yield service


def run(monkeypatch, may, *command, stdin=None):
    """Run the engine as a caller who may do these things with the key."""
    monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", f"token-{may}")
    return runner.run(*command, stdin=stdin, limit_s=LIMIT_S)


def test_who_may_only_decrypt_makes_and_reads_stacks_and_who_may_not_reads_no_secret(kms, tmp_path, monkeypatch):
    both, decrypts, neither = "may-Encrypt may-Decrypt", "may-Decrypt", "no-right"
    made = run(monkeypatch, both, "stack", "init", "a", f"--secrets-provider=gcpkms://{KEY}")
    assert made.returncode == 0, made.stderr
    assert run(monkeypatch, both, "config", "set", "--secret", NAME, "--stack", "a", stdin=CANARY).returncode == 0
    assert kms.calls[0] == ("Encrypt", KEY)
    assert {verb for verb, _ in kms.calls[1:]} == {"Decrypt"}, "the key encrypts the data key only, once"
    path = tmp_path / "Pulumi.a.yaml"
    text = path.read_text()
    assert (key_of("a"), CANARY in text) == (KEY, False)

    # The settings under another name. The engine does not read the provider of a new stack from them.
    shutil.copyfile(path, tmp_path / "Pulumi.pr-1.yaml")
    blind = run(monkeypatch, decrypts, "stack", "init", "pr-1")
    assert (blind.returncode != 0, "passphrase must be set" in blind.stderr) == (True, True), blind.stderr
    chosen = run(monkeypatch, decrypts, "stack", "select", "--create", "pr-1", *provider_options("pr-1"))
    assert chosen.returncode == 0, chosen.stderr
    assert (tmp_path / "Pulumi.pr-1.yaml").read_text() == text
    assert run(monkeypatch, decrypts, "config", "get", NAME, "--stack", "pr-1").stdout.strip() == CANARY

    refused = run(monkeypatch, neither, "preview", "--stack", "a")
    assert "useToDecrypt' denied on resource" in refused.stderr
    assert is_passphrase_error(runner.error_of(refused)), "what a script says then is about the passphrase or the key"
    kms.calls.clear()
    with without_secrets("a") as is_known:
        assert is_known
        assert run(monkeypatch, neither, "config", "get", NAME, "--stack", "a").stdout.strip() == STAND_IN
    assert (kms.calls, path.read_text()) == ([], text)


def test_a_stack_changes_from_a_passphrase_to_a_key(kms, tmp_path, monkeypatch):
    both = "may-Encrypt may-Decrypt"
    monkeypatch.setenv("PULUMI_CONFIG_PASSPHRASE", "secret")
    assert run(monkeypatch, both, "stack", "init", "a").returncode == 0
    assert run(monkeypatch, both, "config", "set", "--secret", NAME, "--stack", "a", stdin=CANARY).returncode == 0
    changed = run(monkeypatch, both, "stack", "change-secrets-provider", f"gcpkms://{KEY}", "--stack", "a")
    assert changed.returncode == 0, changed.stderr
    monkeypatch.delenv("PULUMI_CONFIG_PASSPHRASE")
    text = (tmp_path / "Pulumi.a.yaml").read_text()
    assert ("encryptionsalt" in text, "encryptedkey" in text, CANARY in text) == (False, True, False)
    assert run(monkeypatch, "may-Decrypt", "config", "get", NAME, "--stack", "a").stdout.strip() == CANARY
