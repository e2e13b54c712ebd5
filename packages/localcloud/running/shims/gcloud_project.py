"""An owner's gcloud commands on a project: enable APIs, grant roles, create buckets and custom roles, request quota. Each makes gcloud's calls.

The arguments come from gcloud 528.0.0. Its login is the project's owner, regardless of the environment's other credentials.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

_POLL_S: Final = 0.05
_SWITCHES: Final = frozenset({"public-access-prevention", "uniform-bucket-level-access", "versioning"})
"""Options without a value."""

Call = Callable[..., dict[str, Any]]
"""`call(path, body=, token=)` sends a request to the local cloud. Raises the error of its caller."""


@dataclass(frozen=True, slots=True)
class Api:
    """Access to the local cloud: Google's APIs with a token, and the admin API."""

    call: Call
    admin: Call


@dataclass(frozen=True, slots=True)
class Words:
    """The words of a command line: positional ones, and options, `--name=value` or `--name value`."""

    names: Sequence[str]
    options: Mapping[str, str]

    @classmethod
    def of(cls, words: Sequence[str]) -> "Words":
        """Split a command line."""
        names: list[str] = []
        options: dict[str, str] = {}
        rest = iter(words)
        for word in rest:
            if not word.startswith("--"):
                names.append(word)
                continue
            name, has_value, value = word.removeprefix("--").partition("=")
            options[name] = value if has_value or name in _SWITCHES else next(rest, "")
        return cls(names, options)


def owner(admin: Call) -> tuple[str, str]:
    """Return the email address and an access token of the project's owner."""
    known = admin("/admin/tokens", body={"owner": True})
    return str(known["email"]), str(known["accessToken"])


def enable_services(api: Api, words: Words) -> None:
    """`services enable API... --project=P`: return when the operation is done. The API itself may respond later."""
    _, token = owner(api.admin)
    for name in words.names:
        path = f"/serviceusage/v1/projects/{words.options['project']}/services/{name}:enable"
        operation = api.call(path, body={}, token=token)
        while not operation.get("done"):
            time.sleep(_POLL_S)
            operation = api.call(f"/serviceusage/v1/{operation['name']}", token=token)
        print(f'Operation "{operation["name"]}" finished successfully.', file=sys.stderr)


def add_binding(api: Api, words: Words) -> None:
    """`projects add-iam-policy-binding P --member=M --role=R`: read the policy, add the grant, write it."""
    _, token = owner(api.admin)
    (project,) = words.names
    path = f"/cloudresourcemanager/v1/projects/{project}"
    policy = api.call(f"{path}:getIamPolicy", body={}, token=token)
    grant = {"role": words.options["role"], "members": [words.options["member"]]}
    policy["bindings"] = [*policy.get("bindings", []), grant]
    api.call(f"{path}:setIamPolicy", body={"policy": policy}, token=token)
    print(f"Updated IAM policy for project [{project}].", file=sys.stderr)


def prefer_quota(api: Api, words: Words) -> None:
    """`beta quotas preferences create --service= --quota-id= --dimensions=KEY=VALUE[,KEY=VALUE] --preferred-value= --email=`: request quota."""
    options = words.options
    dimensions = dict(part.split("=", 1) for part in options["dimensions"].split(","))
    preference = {
        "project": options["project"],
        "service": options["service"],
        "quotaId": options["quota-id"],
        "dimensions": dimensions,
        "preferredValue": options["preferred-value"],
        **({"contactEmail": options["email"]} if options.get("email") else {}),
    }
    print(json.dumps(api.admin("/admin/quota", body=preference), indent=1))


def create_bucket(api: Api, words: Words) -> None:
    """`storage buckets create gs://B --project=P --location=L --uniform-bucket-level-access`: create a bucket."""
    _, token = owner(api.admin)
    options, (url,) = words.options, words.names
    uniform = {"uniformBucketLevelAccess": {"enabled": "uniform-bucket-level-access" in options}}
    body = {"name": url.removeprefix("gs://"), "location": options["location"], "iamConfiguration": uniform}
    print(f"Creating {url}/...", file=sys.stderr)
    api.call(f"/storage/storage/v1/b?project={options['project']}", body=body, token=token)


def update_bucket(api: Api, words: Words) -> None:
    """`storage buckets update gs://B --versioning --public-access-prevention`: keep old versions, and refuse grants to the public."""
    _, token = owner(api.admin)
    (url,) = words.names
    body: dict[str, Any] = {"versioning": {"enabled": True}} if "versioning" in words.options else {}
    if "public-access-prevention" in words.options:
        body["iamConfiguration"] = {"publicAccessPrevention": "enforced"}
    print(f"Updating {url}/...", file=sys.stderr)
    api.call(f"/storage/storage/v1/b/{url.removeprefix('gs://')}", body=body, token=token, verb="PATCH")


def create_role(api: Api, words: Words) -> None:
    """`iam roles create ID --project=P|--organization=N --title=T --permissions=A,B`: create a custom role."""
    parent, token = _parent(api, words)
    permissions = words.options.get("permissions", "")
    role = {
        "title": words.options.get("title", ""),
        "includedPermissions": permissions.split(",") if permissions else [],
    }
    (role_id,) = words.names
    api.call(f"/iam/v1/{parent}/roles", body={"roleId": role_id, "role": role}, token=token)
    print(f"Created role [{role_id}].", file=sys.stderr)


def undelete_role(api: Api, words: Words) -> None:
    """`iam roles undelete ID --project=P|--organization=N`: restore a deleted custom role."""
    parent, token = _parent(api, words)
    (role_id,) = words.names
    role = api.call(f"/iam/v1/{parent}/roles/{role_id}:undelete", body={}, token=token)
    print(json.dumps(role, indent=1))


def update_role(api: Api, words: Words) -> None:
    """`iam roles update ID --project=P|--organization=N [--add-permissions=A,B] [--stage=S]`: change a custom role."""
    parent, token = _parent(api, words)
    (role_id,) = words.names
    path = f"/iam/v1/{parent}/roles/{role_id}"
    role = api.call(path, token=token)
    changed: dict[str, Any] = {"stage": words.options["stage"]} if "stage" in words.options else {}
    if "add-permissions" in words.options:
        held = [*role.get("includedPermissions", []), *words.options["add-permissions"].split(",")]
        changed["includedPermissions"] = list(dict.fromkeys(held))
    mask = ",".join(changed)
    role = api.call(f"{path}?updateMask={mask}", body={**changed, "etag": role["etag"]}, token=token, verb="PATCH")
    print(json.dumps(role, indent=1))


def _parent(api: Api, words: Words) -> tuple[str, str]:
    """Return the parent of a custom role, and a token of the owner."""
    options = words.options
    kind = "organization" if "organization" in options else "project"
    return f"{kind}s/{options[kind]}", owner(api.admin)[1]


COMMANDS: Final[Mapping[tuple[str, ...], Callable[[Api, Words], None]]] = {
    ("services", "enable"): enable_services,
    ("projects", "add-iam-policy-binding"): add_binding,
    ("storage", "buckets", "create"): create_bucket,
    ("storage", "buckets", "update"): update_bucket,
    ("iam", "roles", "create"): create_role,
    ("iam", "roles", "undelete"): undelete_role,
    ("iam", "roles", "update"): update_role,
    ("beta", "quotas", "preferences", "create"): prefer_quota,
}
"""Commands that change a project."""
