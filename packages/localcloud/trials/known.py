"""Values of the environment and its credential files that no written answer may contain."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from localcloud.json_values import as_object
from localcloud.trials.placeholders import Kind

_PROJECTS: Final = ("GOOGLE_CLOUD_PROJECT", "GOOGLE_PROJECT", "GCLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT")
_SECRETIVE: Final = re.compile(r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIALS|API_?KEY|PRIVATE_?KEY")
_FILES: Final = ("PULUMI_CONFIG_PASSPHRASE_FILE", "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE", "GOOGLE_APPLICATION_CREDENTIALS")
_CREDENTIAL_FIELDS: Final = {
    "private_key": Kind.KEY,
    "private_key_id": Kind.KEY,
    "client_id": Kind.KEY,
    "client_secret": Kind.SECRET,
    "refresh_token": Kind.TOKEN,
    "project_id": Kind.PROJECT,
    "quota_project_id": Kind.PROJECT,
}
_MOST_FILE_BYTES: Final = 1 << 16


def known_secrets(environment: Mapping[str, str]) -> Iterator[tuple[Kind, str]]:
    """Yield each value with its kind."""
    for name in _PROJECTS:
        yield Kind.PROJECT, environment.get(name, "")
    yield Kind.PERSON, environment.get("CLOUDSDK_CORE_ACCOUNT", "")
    for name, value in environment.items():
        if _SECRETIVE.search(name) and "/" not in value[:1]:
            yield (Kind.TOKEN if "TOKEN" in name else Kind.SECRET), value
    for name in _FILES:
        yield from _in_file(environment.get(name, ""))


def _in_file(name: str) -> Iterator[tuple[Kind, str]]:
    path = Path(name)
    try:
        text = path.read_text(encoding="utf-8") if name and path.stat().st_size <= _MOST_FILE_BYTES else ""
    except (OSError, UnicodeDecodeError):
        return
    try:
        document = as_object(json.loads(text))
    except ValueError:
        yield Kind.SECRET, text.strip()
        return
    for key, kind in _CREDENTIAL_FIELDS.items():
        yield kind, str(document.get(key) or "")
