"""Remove grants of a deleted service account that block a new account with the same e-mail.

Google keeps the grants of a deleted account as `deleted:serviceAccount:EMAIL?uid=N` for a time, and rejects a policy that also names a new
account with that e-mail (GoogleCloudPlatform/k8s-config-connector#279). The old grants have no effect, so they are removed, and the grant is
created again.
"""

import re
from collections.abc import Mapping
from typing import Final

from cloud.google_calls import GoogleCallError, call
from cloud.kinds import POLICIES, PolicyCall, bindings_of, last_segments, members_of

LIMIT_S: Final = 30.0
MOST_TRIES: Final = 5
"""Attempts per grant: others may change the same policy at the same time."""

_CONFLICTS: Final = frozenset({409, 412})
_CLASH: Final = re.compile(
    r"Inconsistent representation of deleted member: '(?P<deleted>deleted:[^']+)' and '(?P<member>serviceAccount:[^']+)'"
)


def deleted_member(message: str, type_: str, inputs: Mapping[str, object]) -> str | None:
    """Return the deleted account, `deleted:serviceAccount:EMAIL?uid=N`, that blocks a grant, or None."""
    found = _CLASH.search(message) if type_ in POLICIES else None
    return found["deleted"] if found is not None and found["member"] == inputs.get("member") else None


async def remove_grants(deleted: str, type_: str, inputs: Mapping[str, object], *, project: str) -> str | None:
    """Remove a deleted account from the policy of a grant, and return the name of the policy's resource.

    Returns None if the policy changed in the meantime.

    Raises:
        GoogleCallError: if the policy cannot be read or written.
    """
    of, given = POLICIES[type_], {"project": project, **inputs}
    name = of.name_of(given)
    policy = await _ask(of.api, of.read(name), project)
    bindings = [
        {**binding, "members": kept}
        for binding in bindings_of(policy)
        if (kept := [one for one in members_of(binding) if one != deleted])
    ]
    try:
        await _ask(of.api, of.write(name, {**policy, "bindings": bindings}), project)
    except GoogleCallError as error:
        if error.status in _CONFLICTS:
            return None
        raise
    return name


def removal_command(deleted: str, type_: str, inputs: Mapping[str, object], *, project: str) -> str:
    """Return the command that removes a deleted account's grant of the same role."""
    words = POLICIES[type_].command.format_map(last_segments({"project": project, **inputs}))
    return f"gcloud {words} --member='{deleted}' --role={inputs.get('role')}"


async def _ask(api: str, asked: PolicyCall, project: str) -> Mapping[str, object]:
    return await call(api, asked.path, project=project, limit_s=LIMIT_S, body=asked.body, verb=asked.verb)
