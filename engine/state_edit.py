"""Edits to a deployment by recover and teardown before the engine writes it again. Nothing in the cloud changes."""

from typing import Final

from contracts.fields import as_mapping
from engine.deployment import PendingOperation, ResourceState, StackDeployment, parse_deployment

_EMPTY: Final = (
    '{"version": 3, "deployment": {"manifest": {"time": "0001-01-01T00:00:00Z", "magic": "", "version": ""}}}'
)
_BUCKET_TYPE: Final = "gcp:storage/bucket:Bucket"
_PROTECTION: Final = "deletionProtection"
_DELETE_HOOKS: Final = "BeforeDelete"


def empty(stack: str) -> StackDeployment:
    """Return a deployment without resources."""
    return parse_deployment(stack, _EMPTY)


def without_pending(deployment: StackDeployment) -> tuple[StackDeployment, tuple[PendingOperation, ...]]:
    """Return the deployment without its pending operations, and the operations."""
    return deployment.changed(pending=()), deployment.pending


def unprotected(deployment: StackDeployment, *, keep_bucket: bool) -> StackDeployment:
    """Return the deployment without protection and, if requested, with retained buckets."""
    return deployment.changed(resources=[_unprotected(item, keep_bucket=keep_bucket) for item in deployment.resources])


def _unprotected(resource: ResourceState, *, keep_bucket: bool) -> ResourceState:
    changes: dict[str, object] = {"protect": None} if "protect" in resource.raw else {}
    if _DELETE_HOOKS in as_mapping(resource.raw.get("resourceHooks")):  # with one, `destroy` needs the program
        changes["resourceHooks"] = None
    for key, properties in (("inputs", resource.inputs), ("outputs", resource.outputs)):
        if properties.get(_PROTECTION) is True:
            changes[key] = {**properties, _PROTECTION: False}
    if keep_bucket and resource.type == _BUCKET_TYPE:
        changes["retainOnDelete"] = True
    return resource.changed(**changes) if changes else resource
