"""Keep the current and the previous version of each secret that a stack sets by value, once a server is ready with the current one."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import pulumi

from gemma_serving.cloud.google_calls import GoogleCallError, call
from gemma_serving.cloud.kinds import SECRET, by_name
from gemma_serving.contracts.fields import as_mapping, as_sequence
from gemma_serving.contracts.proof import Asker, NotOwnedError, Proof
from gemma_serving.contracts.resource_types import SERVER_TYPES
from gemma_serving.planning.settings.secrets import KINDS
from gemma_serving.stacks.base import Context
from gemma_serving.stacks.bound_hooks import bind_types

_API: Final = "secretmanager"
_LIMIT_S: Final = 20.0


def destroy_old_versions(context: Context) -> None:
    """Register the hook that destroys older versions. A failure is a warning, because the server is ready."""
    project, base = context.settings.project, context.names.base
    asker = Asker(project=context.ownership.project, stack=context.ownership.stack)

    async def destroy(args: pulumi.ResourceHookArgs) -> None:
        for secret in [
            f"projects/{project}/secrets/{base}-{kind.name}" for kind in KINDS if kind.key in context.secrets
        ]:
            try:
                await _destroy_old(project, secret, asker, read_version(args.new_inputs, secret))
            except (GoogleCallError, NotOwnedError) as error:
                pulumi.log.warn(
                    f"Old versions of {secret} could not be destroyed ({error}). The next change tries again."
                )

    hook = pulumi.ResourceHook("destroy-old-versions", destroy)
    bind_types(SERVER_TYPES, pulumi.ResourceHookBinding(after_update=[hook]))


def read_version(inputs: Mapping[str, Any] | None, secret: str) -> int:
    """Return the version of a secret that a server reads by its inputs: in the document of a TPU VM, or in a service's variable. 0 without one."""
    identifier = re.escape(secret.rpartition("/")[2])
    text = json.dumps(inputs, sort_keys=True, default=str)
    pattern = rf'secrets/{identifier}/versions/(\d+)|"secret": "(?:[^"]*/)?{identifier}", "version": "(\d+)"'
    return max((int(found[1] or found[2]) for found in re.finditer(pattern, text)), default=0)


async def _destroy_old(project: str, secret: str, asker: Asker, read: int) -> None:
    """Destroy what is older than the version that the server reads, but the newest of them: the previous revision reads it."""
    page = await call(_API, f"v1/{secret}/versions?pageSize=100", project=project, limit_s=_LIMIT_S)
    versions = [as_mapping(version) for version in as_sequence(page.get("versions"))]
    numbers = [int(str(one["name"]).rpartition("/")[2]) for one in versions if one.get("state") != "DESTROYED"]
    older = sorted(number for number in numbers if number < read)[:-1]
    if not older:
        return
    owner = by_name(SECRET).owner(await call(_API, f"v1/{secret}", project=project, limit_s=_LIMIT_S))
    owners = {secret: owner} if owner is not None else {}
    for number in older:
        claim = f"the server reads version {read}, and a newer one than {number} is before it"
        proof = Proof(claim=claim, source=secret, owners=owners)
        await _destroy(project, f"{secret}/versions/{number}", proof, asker)


async def _destroy(project: str, name: str, proof: Proof, asker: Asker) -> None:
    """Destroy a version. Raises NotOwnedError and GoogleCallError."""
    proof.require(asker)
    await call(_API, f"v1/{name}:destroy", project=project, limit_s=_LIMIT_S, body={})
