"""Where the resources and hooks of a server belong: to a stack of this project, or to a component of another program.

A stack has one server, and its resources have fixed names. A program with components may have several, so their names start with the
component's, and hooks only apply to the component's own resources.
"""

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import pulumi

from contracts.labels import PRODUCT
from stacks.planned import doctor_hint

Binding = Callable[[str], pulumi.ResourceHookBinding | None]
"""Return the hooks of a resource by its type, or None."""


@dataclass(slots=True)
class BoundHooks:
    """Hooks that later resources get when they are declared."""

    _bindings: list[Binding] = field(default_factory=list[Binding])

    def add(self, binding: Binding) -> None:
        """Apply a binding to every resource that is declared from now on."""
        self._bindings.append(binding)

    def apply(self, args: pulumi.ResourceTransformationArgs) -> pulumi.ResourceTransformationResult | None:
        """Return a resource's options with its hooks, or None without any. Pulumi calls it for each resource of the component."""
        bound = [hooks for binding in self._bindings if (hooks := binding(args.type_)) is not None]
        if not bound:
            return None
        opts = args.opts
        for hooks in bound:
            opts = pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(hooks=hooks))
        return pulumi.ResourceTransformationResult(props=args.props, opts=opts)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerScope:
    """The stack, or one component of another program."""

    component: str = ""
    """Name of the component as a Pulumi resource; empty for a stack."""
    parent: pulumi.Resource | None = None
    """The component; None for a stack."""
    hooks: BoundHooks | None = None
    """Hooks of the component's resources; None for a stack."""
    words: Callable[[str], str] = str
    """Return a message with the names that the caller uses for settings; unchanged for a stack."""

    def named(self, name: str) -> str:
        """Return the name of a resource or hook of a stack in this scope."""
        return f"{self.component}-{name}" if self.component else name

    @property
    def options(self) -> pulumi.ResourceOptions | None:
        """Options of a resource directly in this scope; None for a stack."""
        return None if self.parent is None else pulumi.ResourceOptions(parent=self.parent)

    def with_options(self, options: pulumi.ResourceOptions) -> pulumi.ResourceOptions:
        """Return options for a resource directly in this scope."""
        return pulumi.ResourceOptions.merge(self.options, options)

    def bind(self, binding: Binding) -> None:
        """Apply hooks to every resource that is declared from now on."""
        if self.hooks is not None:
            self.hooks.add(binding)
            return
        own = BoundHooks()
        own.add(binding)
        pulumi.runtime.register_stack_transformation(own.apply)

    def bind_types(self, types: AbstractSet[str], hooks: pulumi.ResourceHookBinding) -> None:
        """Apply hooks to every resource of some types that is declared from now on."""
        self.bind(lambda type_: hooks if type_ in types else None)

    def doctor_hint(self) -> str:
        """Return the sentence that names the way to missing APIs and permissions."""
        if self.component:
            return "Compare the enabled APIs (`gcloud services list`) and the roles of your account with those that gemma-serving's docs/components.md lists."
        return doctor_hint(pulumi.get_stack())

    def exists_hint(self) -> str:
        """Return the sentences about a resource that already exists."""
        if self.component:
            return (
                f"A resource of {self.component} already exists. If an earlier run was interrupted, import the resource with `pulumi import`, "
                "or delete it. Otherwise choose another name for the component."
            )
        return (
            "A resource of this stack already exists. If a previous run was interrupted or the state was lost, run "
            f"`python -m scripts.recover --stack {pulumi.get_stack()}` to import resources with this stack's labels and list the others."
        )

    def setting(self, key: str, value: str) -> str:
        """Return the words that change a setting, such as "run `pulumi config set ...`"."""
        if self.component:
            return f"set settings.{key}: {value} of {self.component}"
        return f"run `pulumi config set --path {PRODUCT}:{key} {value} --stack {pulumi.get_stack()}`"


STACK = ServerScope()
"""The scope of a stack's own program."""
