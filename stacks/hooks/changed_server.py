"""Show in a preview what changes about a deployed server."""

from typing import Final

import pulumi

from gemma_serving.contracts.fields import as_mapping
from gemma_serving.contracts.resource_types import CAPACITY_TYPE, SERVER_TYPES
from gemma_serving.contracts.server_change import ServerChange, server_change
from gemma_serving.planning.question.types import Plan
from gemma_serving.stacks.base import Context
from gemma_serving.stacks.bound_hooks import bind_types

_MOST_SHOWN: Final = 5


def show_changes(context: Context) -> None:
    """Register the hook, in a preview only."""
    if not pulumi.runtime.is_dry_run():
        return

    def show(args: pulumi.ResourceHookArgs) -> None:
        found = server_change(args.type, as_mapping(args.old_inputs), as_mapping(args.new_inputs))
        text = change_text(args.type, found, context.plan)
        if text:
            pulumi.log.info(text)

    hook = pulumi.ResourceHook("changed-server", show, pulumi.ResourceHookOptions(on_dry_run=True))

    bind_types(SERVER_TYPES, pulumi.ResourceHookBinding(before_update=[hook]))


def change_text(kind: str, change: ServerChange | None, plan: Plan) -> str:
    """Return each value before and after, the effect and its duration. Empty if the server stays."""
    if change is None:
        effect = _effect(kind, plan, compiles=None)
        return f"The server may change during `up`; it then {effect}."
    if not change.values:
        return ""
    rest = len(change.values) - _MOST_SHOWN
    shown = [value.text() for value in change.values[:_MOST_SHOWN]] + ([f"{rest} more"] if rest > 0 else [])
    return f"{', '.join(shown)}, {_effect(kind, plan, compiles=change.compiles)}"


def _effect(kind: str, plan: Plan, *, compiles: bool | None) -> str:
    startup = plan.startup
    if kind == CAPACITY_TYPE:
        pause = _minutes(startup.pause_s(compiles=compiles is True))
        longer = f", or {_minutes(startup.pause_s(compiles=True))} if it compiles again" if compiles is None else ""
        return f"restarts in place, about {pause}{longer}"
    return f"creates a new revision, ready in about {_minutes(startup.ready_s)}"


def _minutes(seconds: float) -> str:
    return f"{max(1, round(seconds / 60))} min"
