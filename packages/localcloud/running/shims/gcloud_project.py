"""An owner's gcloud commands on a project: enable APIs, grant roles, create custom roles, request quota. Each makes gcloud's calls.

The arguments come from gcloud 528.0.0. Its login is the project's owner, regardless of the environment's other credentials.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

_POLL_S: Final = 0.05

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
            options[name] = value if has_value else next(rest, "")
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


def create_role(api: Api, words: Words) -> None:
    """`iam roles create ID --project=P|--organization=N --title=T --permissions=A,B`: create a custom role."""
    kind = "organization" if "organization" in words.options else "project"
    _, token = owner(api.admin)
    permissions = words.options.get("permissions", "")
    role = {
        "title": words.options.get("title", ""),
        "includedPermissions": permissions.split(",") if permissions else [],
    }
    (role_id,) = words.names
    api.call(f"/iam/v1/{kind}s/{words.options[kind]}/roles", body={"roleId": role_id, "role": role}, token=token)
    print(f"Created role [{role_id}].", file=sys.stderr)


COMMANDS: Final[Mapping[tuple[str, ...], Callable[[Api, Words], None]]] = {
    ("services", "enable"): enable_services,
    ("projects", "add-iam-policy-binding"): add_binding,
    ("iam", "roles", "create"): create_role,
    ("beta", "quotas", "preferences", "create"): prefer_quota,
}
"""Commands that change a project."""
