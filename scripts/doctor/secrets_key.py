"""Check of the Cloud KMS key that encrypts a stack's secrets, if its settings file names one."""

from collections.abc import Iterator
from functools import partial
from typing import Final

from gemma_serving.cloud.google_api import GoogleListError
from gemma_serving.contracts.fields import as_sequence
from gemma_serving.engine.secrets_provider import key_of
from gemma_serving.scripts.doctor.diagnosis import Checkup, Diagnosis, DoctorCheck, missing, ok

API: Final = "cloudkms"
ROLE: Final = "roles/cloudkms.cryptoKeyEncrypterDecrypter"
_DECRYPT, _ENCRYPT = "cloudkms.cryptoKeyVersions.useToDecrypt", "cloudkms.cryptoKeyVersions.useToEncrypt"


def checks(checkup: Checkup) -> Iterator[DoctorCheck]:
    """Yield the check of a stack whose secrets are encrypted with a Cloud KMS key; none for other stacks."""
    key = key_of(checkup.stack) if checkup.stack else None
    if key is not None:
        yield checkup.calling("secrets key", API, ROLE, partial(_usable, checkup, key))


def _usable(checkup: Checkup, key: str) -> Iterator[Diagnosis]:
    """Check that the caller can use the key. For a key that does not exist, Google returns no permissions."""
    try:
        answer = checkup.google.post(API, f"v1/{key}:testIamPermissions", {"permissions": [_DECRYPT, _ENCRYPT]})
    except GoogleListError as error:
        if not error.is_api_off:
            raise
        detail = f"API {API} is off in project {checkup.project}, so the engine cannot decrypt"
        yield missing(detail, checkup.enable(API))
        return
    held = as_sequence(answer.get("permissions"))
    if _DECRYPT in held:
        can = "encrypt and decrypt" if _ENCRYPT in held else f"decrypt; creating or changing a stack needs {ROLE}"
        yield ok(f"{key}: you can {can}")
    else:
        grant = f"gcloud kms keys add-iam-policy-binding {key} --member={checkup.member} --role={ROLE}"
        yield missing(
            f"{key} does not exist (docs/ci.md creates one) or you do not have permission to decrypt with it", grant
        )
