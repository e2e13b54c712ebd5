"""Keep the current and the previous version of each secret that a stack sets by value, once a server is ready with the current one."""

from typing import Final

import pulumi

from gemma_serving.cloud.google_calls import GoogleCallError, call
from gemma_serving.contracts.fields import as_mapping, as_sequence
from gemma_serving.contracts.proof import Proof
from gemma_serving.contracts.resource_types import SERVER_TYPES
from gemma_serving.planning.settings.secrets import KINDS
from gemma_serving.stacks.base import Context
from gemma_serving.stacks.bound_hooks import bind_types

_API: Final = "secretmanager"
_KEPT: Final = 2
"""The current version, and the one that the previous revision of a service reads."""
_LIMIT_S: Final = 20.0


def destroy_old_versions(context: Context) -> None:
    """Register the hook that destroys older versions. A failure is a warning, because the server is ready."""
    project, base = context.settings.project, context.names.base

    async def destroy(_args: pulumi.ResourceHookArgs) -> None:
        for secret in [
            f"projects/{project}/secrets/{base}-{kind.name}" for kind in KINDS if kind.key in context.secrets
        ]:
            try:
                await _destroy_old(project, secret)
            except GoogleCallError as error:
                pulumi.log.warn(
                    f"Old versions of {secret} could not be destroyed ({error}). The next change tries again."
                )

    hook = pulumi.ResourceHook("destroy-old-versions", destroy)
    bind_types(SERVER_TYPES, pulumi.ResourceHookBinding(after_update=[hook]))


async def _destroy_old(project: str, secret: str) -> None:
    page = await call(_API, f"v1/{secret}/versions?pageSize=100", project=project, limit_s=_LIMIT_S)
    versions = [as_mapping(version) for version in as_sequence(page.get("versions"))]
    names = [str(version["name"]) for version in versions if version.get("state") != "DESTROYED"]
    for name in sorted(names, key=lambda name: int(name.rpartition("/")[2]))[:-_KEPT]:
        proof = Proof(claim=f"{secret} has {_KEPT} newer versions than {name}", source=f"GET v1/{secret}/versions")
        await _destroy(project, name, proof)


async def _destroy(project: str, name: str, _proof: Proof) -> None:
    await call(_API, f"v1/{name}:destroy", project=project, limit_s=_LIMIT_S, body={})
