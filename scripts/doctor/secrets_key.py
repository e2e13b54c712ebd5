"""Check of the Cloud KMS key that encrypts a stack's secrets, if its settings file names one."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from cloud.google_api import GoogleListError, lookup
from contracts.answers import Absent
from contracts.fields import as_sequence
from engine.secrets_provider import KmsKey, key_of
from scripts.doctor.diagnosis import Check, Checkup, Diagnosis

API: Final = "cloudkms"
ROLE: Final = "roles/cloudkms.cryptoKeyEncrypterDecrypter"
_DECRYPT, _ENCRYPT = "cloudkms.cryptoKeyVersions.useToDecrypt", "cloudkms.cryptoKeyVersions.useToEncrypt"
_NAME: Final = "secrets key"


def checks(checkup: Checkup) -> Iterator[Check]:
    """Yield the check of a stack whose secrets are encrypted with a Cloud KMS key; none for other stacks."""
    key = key_of(checkup.stack) if checkup.stack else None
    if key is not None:
        yield Check(name=_NAME, run=partial(_usable, checkup, key))


def _usable(checkup: Checkup, key: KmsKey) -> Sequence[Diagnosis]:
    """Check that the caller can use the key. For a key that does not exist, Google returns no permissions."""
    try:
        answer = checkup.google.post(API, f"v1/{key.name}:testIamPermissions", {"permissions": [_DECRYPT, _ENCRYPT]})
    except GoogleListError as error:
        if error.is_api_off:
            detail = f"API {API} is off in project {checkup.project}, so the engine cannot decrypt"
            return (_missing(detail, checkup.enable(API)),)
        return (checkup.refused(_NAME, API, ROLE, error),)
    held = set(as_sequence(answer.get("permissions")))
    if _DECRYPT in held:
        can = (
            "can encrypt and decrypt" if _ENCRYPT in held else f"can decrypt; creating or changing a stack needs {ROLE}"
        )
        return (Diagnosis(check=_NAME, state="ok", detail=f"{key.name}: you {can}"),)
    return _reasons(checkup, key)


def _reasons(checkup: Checkup, key: KmsKey) -> Sequence[Diagnosis]:
    """Return why the key cannot be used, one line per command to run."""
    grant = key.grant(checkup.member, ROLE)
    if not isinstance(lookup(checkup.google, API, f"v1/{key.name}"), Absent):
        return (_missing(f"{key.name} does not exist or you do not have permission to decrypt with it", grant),)
    lines = [
        _missing(f"{key.name} does not exist", key.make),
        _missing("a new key has no account with permission to decrypt", grant),
    ]
    if isinstance(lookup(checkup.google, API, f"v1/{key.ring}"), Absent):
        lines.insert(0, _missing(f"{key.ring} does not exist", key.make_ring))
    return lines


def _missing(detail: str, fix: str) -> Diagnosis:
    return Diagnosis(check=_NAME, state="missing", detail=detail, fix=fix)
