"""Environment that points Pulumi, Google's clients and this project at a running local cloud."""

import os
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from localcloud.json_values import packaged, strings

_TABLES = packaged("localcloud", "environment.json")
API_OVERRIDES: dict[str, str] = _TABLES["api_overrides"]
"""gcloud's endpoint override variables, with the path that gcloud expects below the base URL.

gcloud appends the version to each, except to the URLs of Cloud Storage and Compute Engine (googlecloudsdk/generated_clients/apis/apis_map.py).
"""

REMOVED = tuple(strings(_TABLES, "removed"))
"""Variables that no command inherits because they bypass the local cloud."""

CREDENTIALS = f"^({_TABLES['google']}|{_TABLES['secrets']}|{_TABLES['urls']})"
"""Pattern of `NAME=VALUE` that no command inherits, for `re` and `grep -E`, without regard to case.

All variables of Google's clients, names that have a word for a credential, and URLs with a password, of package indexes also with a user alone.
"""
_CREDENTIAL = re.compile(CREDENTIALS, re.IGNORECASE)

LOGINS: dict[str, str] = _TABLES["logins"]
"""Variables that name a client's file or folder of logins, with its name in the state. aiohttp warns of a missing NETRC, so that is empty."""

REAL_PLUGIN_ENDPOINTS: dict[str, str] = _TABLES["real_plugin_endpoints"]
"""Variables that the real pulumi-gcp plugin respects, with the paths that it expects below the base URL."""


HUB_TOKEN = "hf_local"  # noqa: S105 - no secret: see below
"""The hub token of the environment. It is not a secret because the local hub accepts every token that starts with `hf_`."""

PASSPHRASE = "local"  # noqa: S105 - the secrets of a trial are not secret
"""Passphrase of every state, whatever the caller's is: a state that stays must open in the next shell, too."""

_DIRECT = ("127.0.0.1", "localhost")
"""Hosts that bypass any proxy."""


def variables(
    *,
    base_url: str,
    state: Path,
    project: str,
    speed: float,
    access_token: str,
    operator_token: str,
    credentials: Path,
    commands: Path,
    debug_providers: str,
    real_gcp: bool = False,
    inherited: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the variables to set. `access_token` and `credentials` are for Google's clients; the local cloud itself accepts the operator's.

    `debug_providers` are the stand-ins in use; `real_gcp` adds the endpoints for the installed pulumi-gcp. `commands` is the folder with the gcloud
    stand-in.
    """
    given = os.environ if inherited is None else inherited
    found = {
        "PULUMI_BACKEND_URL": f"file://{state / 'pulumi'}",
        "PULUMI_CONFIG_PASSPHRASE": PASSPHRASE,
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        "GOOGLE_OAUTH_ACCESS_TOKEN": access_token,
        "GOOGLE_APPLICATION_CREDENTIALS": str(credentials),
        "GOOGLE_CLOUD_PROJECT": project,
        "GOOGLE_PROJECT": project,
        "LOCALCLOUD_URL": base_url,
        "LOCALCLOUD_STATE": str(state),
        "LOCALCLOUD_SPEED": f"{speed:g}",
        "LOCALCLOUD_TOKEN": operator_token,
        "CLOUD_CLOCK_SPEED": f"{speed:g}",
        "PULUMI_DEBUG_PROVIDERS": debug_providers,
        "HF_ENDPOINT": f"{base_url}/hub",
        "HF_TOKEN": HUB_TOKEN,
        # Simulated files must not get into the cache of the real hub, and a real login must not be sent to this one.
        "HF_HOME": str(state / "huggingface"),
        # What commands remember of a simulated cloud is not about a real one, and no two clouds share it.
        "XDG_STATE_HOME": str(state / "user-state"),
        **{name: str(state / "logins" / path) for name, path in LOGINS.items()},
        **_joined(commands, given),
    }
    for api, path in API_OVERRIDES.items():
        found[f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{api}"] = f"{base_url}/{path}"
    if real_gcp:
        found.update({name: f"{base_url}/{path}" for name, path in REAL_PLUGIN_ENDPOINTS.items()})
        # Otherwise the plugin requests the list of regions from Google, ignoring every endpoint variable.
        found["PULUMI_GCP_SKIP_REGION_VALIDATION"] = "true"
    return found


def has_real_gcp() -> bool:
    """Return whether the engine has the plugin that the installed pulumi-gcp requests, so it does not download another one."""
    from importlib import metadata  # noqa: PLC0415 - when a cloud starts

    try:
        version = metadata.version("pulumi-gcp")
    except metadata.PackageNotFoundError:
        return False
    home = Path(os.environ.get("PULUMI_HOME") or Path.home() / ".pulumi")
    return (home / "plugins" / f"resource-gcp-v{version}" / "pulumi-resource-gcp").is_file()


def in_shell(found: Mapping[str, str], commands: str) -> dict[str, str]:
    """Return the variables of a running cloud for the calling shell. Lists such as PATH extend the shell's own and do not grow on a second call."""
    return {**found, **_joined(Path(commands), os.environ)}


def inherited_variables() -> dict[str, str]:
    """Return the variables of this process that a command inherits: without credentials and what bypasses the local cloud."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in REMOVED and not _CREDENTIAL.match(f"{name}={value}")
    }


def _joined(commands: Path, given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that extend one of the caller's lists: command folders and hosts that bypass the proxy."""
    python = os.path.abspath(sys.executable)  # noqa: PTH100 - a link must stay one, and `..` must go, so a second shell finds the same
    first = [str(Path(python).parent), str(commands)]
    path = given.get("PATH") or os.defpath
    rest = [folder for folder in path.split(os.pathsep) if folder not in first]
    return {"PATH": os.pathsep.join([*first, *rest]), **without_proxy(given)}


def without_proxy(given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that disable proxies between a client and this machine. They do not grow on a second call."""
    found: dict[str, str] = {}
    for name in ("NO_PROXY", "no_proxy"):
        hosts = [host for host in given.get(name, "").split(",") if host not in _DIRECT]
        found[name] = ",".join([*filter(None, hosts), *_DIRECT])
    return found


def exports(values: Mapping[str, str]) -> str:
    """Return lines for a shell: `unset` of what no command inherits, then `export`."""
    named = f"env | grep -iE {shlex.quote(CREDENTIALS)} | sed 's/=.*//' | grep -xE '[A-Za-z_][A-Za-z0-9_]*'"
    return f"unset {' '.join(REMOVED)} $({named})\n" + "\n".join(
        f"export {name}={shlex.quote(value)}" for name, value in sorted(values.items())
    )
