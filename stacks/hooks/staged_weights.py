"""Detect missing weights before the service is created, instead of in a container that searches for them for minutes.

The Pulumi engine calls the hook when it is about to create or change a service.
"""

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor

import pulumi

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.fields import as_mapping
from gemma_serving.contracts.resource_types import SERVER_TYPES, SERVICE_TYPE
from gemma_serving.contracts.staged_weights import STAGING_VARIABLE
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.stacks.base import Context
from gemma_serving.stacks.bound_hooks import bind_types
from gemma_serving.stacks.bucket_weights import StagedWeights, staged_weights
from gemma_serving.stacks.deployed.home_region import Resources


def require_staged_weights(context: Context) -> None:
    """Register a hook that fails the deployment of a service without complete weights."""
    checks = staged_weights(context.settings, context.names.stack)
    if not checks:
        return

    async def require(_args: pulumi.ResourceHookArgs) -> None:
        for check in checks:
            await require_complete(check)

    hook = pulumi.ResourceHook("weights-staged", require, pulumi.ResourceHookOptions(on_dry_run=True))

    bind_types({SERVICE_TYPE}, pulumi.ResourceHookBinding(before_create=[hook], before_update=[hook]))


def require_weights_of_new_server(settings: Settings, stack: str, deployed: Resources) -> None:
    """Raise CommandRefusedError if `up` would create a server whose weights are known to be missing. A preview only warns (the hook).

    `deployed`: the resources in the state. `gemma stage_model` creates only the bucket, so it needs no weights.
    """
    has_server = any(as_mapping(each).get("type") in SERVER_TYPES for each in deployed.values())
    if has_server or pulumi.runtime.is_dry_run() or STAGING_VARIABLE in os.environ:
        return
    with ThreadPoolExecutor(max_workers=1) as pool:  # the program itself runs in an event loop
        for check in staged_weights(settings, stack):
            fault = pool.submit(asyncio.run, check.fault()).result()
            if fault is not None and fault.blocks and fault.is_known:
                raise CommandRefusedError(f"{fault.sentence} Google Cloud is unchanged.")


async def require_complete(weights: StagedWeights) -> None:
    """Raise CommandRefusedError unless a complete checkpoint is staged. A preview only warns."""
    preview, fault = pulumi.runtime.is_dry_run(), await weights.fault()
    if fault is None or (preview and not fault.is_known):  # a preview may run without any access
        return
    if fault.blocks and not preview:
        raise CommandRefusedError(fault.sentence)
    pulumi.log.warn(fault.sentence)
