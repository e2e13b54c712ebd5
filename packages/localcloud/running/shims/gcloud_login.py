"""Credentials that gcloud uses: `--account`, a workload identity federation, or an impersonated account.

google-github-actions/auth writes the federation's file and names it in CLOUDSDK_AUTH_CREDENTIAL_FILE_OVERRIDE. gcloud treats every
credential of type `external_account` as third-party, even for a service account, and cannot log in through OS Login with it. With
an impersonated account it can (googlecloudsdk/command_lib/util/ssh/ssh.py of SDK 528: GetOsloginState, IsThirdPartyUser).
"""

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ACCOUNT: Final = "CLOUDSDK_CORE_ACCOUNT"
CREDENTIALS: Final = "CLOUDSDK_AUTH_CREDENTIAL_FILE_OVERRIDE"
IMPERSONATED: Final = "CLOUDSDK_AUTH_IMPERSONATE_SERVICE_ACCOUNT"
_GET_TOKEN: Final = "iam.serviceAccounts.getAccessToken"  # noqa: S105 - a permission
_REPORT: Final = """

If you would like to report this issue, please run the following command:
  gcloud feedback

To check gcloud for common problems, please run the following command:
  gcloud info --run-diagnostics"""
NO_INSTANCE: Final = f"gcloud crashed (AttributeError): 'NoneType' object has no attribute 'id'{_REPORT}"
"""`gcloud alpha compute tpus tpu-vm ssh` signs a key for an instance, and a TPU VM has none."""
NOT_IN_GA: Final = (
    "gcloud crashed (NotImplementedError): SSH using federated workforce identities is not yet generally available (GA). "
    f"Please use `gcloud beta compute ssh` to SSH using a third-party identity.{_REPORT}"
)
"""`gcloud compute ssh`, with the message of SDK 528."""


class LoginError(Exception):
    """gcloud cannot use the credentials. The message is gcloud's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """The account of gcloud's calls."""

    account: str
    """Empty for the operator."""
    third_party: bool = False
    """True if gcloud treats the credentials as third-party."""


def federated_account() -> str | None:
    """Return the service account of a federation's file, or None if no such file is set. Raises LoginError."""
    path = os.environ.get(CREDENTIALS)
    if not path:
        return None
    try:
        found: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LoginError(f"{CREDENTIALS} names {path}, which cannot be read: {error}") from None
    if found.get("type") != "external_account":
        return None
    named = re.search(
        r"/serviceAccounts/([^/:]+):generateAccessToken$", found.get("service_account_impersonation_url", "")
    )
    if named is None:
        raise LoginError(f"the stand-in only supports federations with a service account, but {path} names none.")
    return named[1]


def current(account: str, call: Callable[..., dict[str, Any]], call_admin: Callable[..., dict[str, Any]]) -> Login:
    """Return the account whose credentials gcloud uses. `account` is `--account`; a credentials file takes precedence. Raises LoginError."""
    federated = federated_account()
    source = federated or account or os.environ.get(ACCOUNT, "")
    wanted = os.environ.get(IMPERSONATED)
    if not wanted:
        return Login(account=source, third_party=federated is not None)
    token = str(call_admin("/admin/tokens", body={"email": source} if source else {})["accessToken"])
    path = f"/iam/v1/projects/-/serviceAccounts/{wanted}:testIamPermissions"
    if _GET_TOKEN not in call(path, body={"permissions": [_GET_TOKEN]}, token=token).get("permissions", ()):
        raise LoginError(
            f"Failed to impersonate [{wanted}]. Make sure the account that's trying to impersonate it has access to the service account "
            'itself and the "roles/iam.serviceAccountTokenCreator" role.'
        )
    return Login(account=wanted)
