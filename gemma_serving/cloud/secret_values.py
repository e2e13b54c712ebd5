"""Read and write secret values in Secret Manager. No argument list, message or exception has a value."""

import base64
from typing import Final

from gemma_serving.cloud import google_api
from gemma_serving.cloud.google_api import GoogleApi, GoogleListError, lookup
from gemma_serving.contracts.errors import ScriptError
from gemma_serving.contracts.fields import as_mapping
from gemma_serving.contracts.secret_payload import UnusableSecretError, decoded_secret, store_command
from gemma_serving.contracts.three_answers import Absent

_API: Final = "secretmanager"


class UnusableVersionError(ScriptError):
    """A version whose value no header and no environment variable can have. `fix` is the command that adds a usable one."""

    def __init__(self, error: UnusableSecretError, version: str) -> None:
        self.finding, self.fix = str(error).rstrip("."), store_command(version)
        super().__init__(f"{error} Run `{self.fix}`, then set the version that it prints in the stack's file.")


def read_secret(version: str, *, project: str, api: GoogleApi | None = None) -> str:
    """Return the value of `projects/P/secrets/S/versions/N`.

    Raises UnusableVersionError, and ScriptError if the value is unknown, with the command that grants access.
    """
    try:
        answer = (api or google_api.connect(project)).get(_API, f"v1/{version}:access")
        return decoded_secret(as_mapping(answer.get("payload")).get("data"), version)
    except GoogleListError as error:
        _, owner, _, secret, *_ = version.split("/")
        fix = (
            f" To allow it, run: gcloud secrets add-iam-policy-binding {secret} --project={owner} "
            '--member="user:$(gcloud config get account)" --role=roles/secretmanager.secretAccessor'
            if error.is_denied
            else ""
        )
        raise ScriptError(f"{version} cannot be read: {error.said(project)}{fix}") from None
    except UnusableSecretError as error:
        raise UnusableVersionError(error, version) from None


def store_secret(project: str, secret: str, value: str, api: GoogleApi | None = None) -> str:
    """Add a version to a secret, which is created if it does not exist, and return the version's name.

    Raises ScriptError if Google rejects it. The message does not contain the value.
    """
    google = api or google_api.connect(project)
    name = f"projects/{project}/secrets/{secret}"
    body = {"payload": {"data": base64.b64encode(value.encode()).decode()}}
    try:
        if isinstance(lookup(google, _API, f"v1/{name}"), Absent):
            google.post(_API, f"v1/projects/{project}/secrets?secretId={secret}", {"replication": {"automatic": {}}})
        return str(google.post(_API, f"v1/{name}:addVersion", body)["name"])
    except GoogleListError as error:
        raise ScriptError(f"{name} cannot be written: {error}") from None
