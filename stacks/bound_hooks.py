"""Bind engine hooks to the resources of a stack by their type."""

from collections.abc import Callable
from collections.abc import Set as AbstractSet

import pulumi

HookBinding = Callable[[str], pulumi.ResourceHookBinding | None]
"""Return the hooks of a resource by its type, or None."""


def bind(binding: HookBinding) -> None:
    """Apply hooks to every resource that is declared from now on."""

    def apply(args: pulumi.ResourceTransformationArgs) -> pulumi.ResourceTransformationResult | None:
        hooks = binding(args.type_)
        if hooks is None:
            return None
        opts = pulumi.ResourceOptions.merge(args.opts, pulumi.ResourceOptions(hooks=hooks))
        return pulumi.ResourceTransformationResult(props=args.props, opts=opts)

    pulumi.runtime.register_stack_transformation(apply)


def bind_types(types: AbstractSet[str], hooks: pulumi.ResourceHookBinding) -> None:
    """Apply hooks to every resource of some types that is declared from now on."""
    bind(lambda type_: hooks if type_ in types else None)
