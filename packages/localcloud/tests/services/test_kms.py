"""Key rings and keys of Cloud KMS: existence and permissions."""

import pytest

from localcloud.tests.conftest import grant

P = "projects/local-project"
RING = f"{P}/locations/us/keyRings/r"
KEY = f"{RING}/cryptoKeys/k"
DECRYPT, ENCRYPT = "cloudkms.cryptoKeyVersions.useToDecrypt", "cloudkms.cryptoKeyVersions.useToEncrypt"
PURPOSE = {"purpose": "ENCRYPT_DECRYPT"}


@pytest.fixture
def key(own_client):
    own_client.ok("POST", f"/cloudkms/v1/{P}/locations/us/keyRings", {}, keyRingId="r")
    own_client.ok("POST", f"/cloudkms/v1/{RING}/cryptoKeys", PURPOSE, cryptoKeyId="k")
    return own_client


def test_a_key_has_an_enabled_version_and_is_made_once(key):
    found = key.ok("GET", f"/cloudkms/v1/{KEY}")
    assert (found["purpose"], found["primary"]["state"]) == ("ENCRYPT_DECRYPT", "ENABLED")
    assert key.error("POST", f"/cloudkms/v1/{RING}/cryptoKeys", PURPOSE, cryptoKeyId="k")[0] == 409
    assert key.error("POST", f"/cloudkms/v1/{RING}/cryptoKeys", {}, cryptoKeyId="other")[0] == 400
    assert key.error("POST", f"/cloudkms/v1/{RING}x/cryptoKeys", PURPOSE, cryptoKeyId="k")[0] == 404
    assert key.error("POST", f"/cloudkms/v1/{P}/locations/moon/keyRings", {}, keyRingId="r")[0] == 404


def test_a_key_that_does_not_exist_has_no_permission_and_is_not_found(key):
    assert key.error("GET", f"/cloudkms/v1/{KEY}x")[0] == 404
    assert key.ok("POST", f"/cloudkms/v1/{KEY}x:testIamPermissions", {"permissions": [DECRYPT]}) == {}


def test_a_grant_on_the_key_or_above_it_is_what_may_be_used(key):
    emails = [
        key.ok("POST", f"/iam/v1/{P}/serviceAccounts", {"accountId": name})["email"]
        for name in ("decrypts", "encrypts")
    ]
    callers = [key.as_caller(each) for each in emails]

    def held():
        asked = {"permissions": [DECRYPT, ENCRYPT]}
        return [
            caller.ok("POST", f"/cloudkms/v1/{KEY}:testIamPermissions", asked).get("permissions", [])
            for caller in callers
        ]

    assert held() == [[], []]
    decrypts, encrypts = (f"serviceAccount:{each}" for each in emails)
    grant(key, f"/cloudkms/v1/{KEY}", "roles/cloudkms.cryptoKeyDecrypter", member=decrypts)
    grant(key, f"/cloudkms/v1/{RING}", "roles/cloudkms.cryptoKeyEncrypterDecrypter", member=encrypts)
    assert held() == [[DECRYPT], [DECRYPT, ENCRYPT]]
    assert callers[0].error("GET", f"/cloudkms/v1/{KEY}")[0] == 403, (
        "the permission to decrypt does not include reading"
    )
