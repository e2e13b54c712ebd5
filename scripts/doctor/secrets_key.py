"""Check of the Cloud KMS key that encrypts a stack's secrets, if its settings file names one."""

from collections.abc import Iterator
from functools import partial
from typing import Final

from cloud.google_api import GoogleListError, lookup
from contracts.answers import Absent
from contracts.fields import as_sequence
from engine.secrets_provider import KmsKey, key_of
from scripts.doctor.diagnosis import Check, Checkup, Diagnosis, missing, ok

API: Final = "cloudkms"
ROLE: Final = "roles/cloudkms.cryptoKeyEncrypterDecrypter"
_DECRYPT, _ENCRYPT = "cloudkms.cryptoKeyVersions.useToDecrypt", "cloudkms.cryptoKeyVersions.useToEncrypt"


def checks(checkup: Checkup) -> Iterator[Check]:
    """Yield the check of a stack whose secrets are encrypted with a Cloud KMS key; none for other stacks."""
    key = key_of(checkup.stack) if checkup.stack else None
    if key is not None:
        yield checkup.calling("secrets key", API, ROLE, partial(_usable, checkup, key))


def _usable(checkup: Checkup, key: KmsKey) -> Iterator[Diagnosis]:
    """Check that the caller can use the key. For a key that does not exist, Google returns no permissions."""
    try:
        answer = checkup.google.post(API, f"v1/{key.name}:testIamPermissions", {"permissions": [_DECRYPT, _ENCRYPT]})
    except GoogleListError as error:
        if not error.is_api_off:
            raise
        detail = f"API {API} is off in project {checkup.project}, so the engine cannot decrypt"
        yield missing(detail, checkup.enable(API))
        return
    held, grant = as_sequence(answer.get("permissions")), key.grant(checkup.member, ROLE)
    if _DECRYPT in held:
        can = "encrypt and decrypt" if _ENCRYPT in held else f"decrypt; creating or changing a stack needs {ROLE}"
        yield ok(f"{key.name}: you can {can}")
    elif not isinstance(lookup(checkup.google, API, f"v1/{key.name}"), Absent):
        yield missing(f"{key.name} does not exist or you do not have permission to decrypt with it", grant)
    else:
        make_ring, make_key = key.creation
        if isinstance(lookup(checkup.google, API, f"v1/{key.ring}"), Absent):
            yield missing(f"{key.ring} does not exist", make_ring)
        yield missing(f"{key.name} does not exist", make_key)
        yield missing("a new key has no account with permission to decrypt", grant)
