"""What programs read of a stack and people need not: the engine prints a stack's outputs, and not those of a component."""

from collections.abc import Mapping

import pulumi

from contracts.outputs import DETAILS_TYPE


class StackDetails(pulumi.ComponentResource):
    """Values in the state, written when `after` is known: an `up` that fails keeps those of the last one that did not."""

    def __init__(
        self,
        name: str,
        values: Mapping[str, pulumi.Input[object]],
        *,
        after: pulumi.Input[object],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(DETAILS_TYPE, name, None, opts)
        known = pulumi.Output.all(after=after, **values)
        self.register_outputs({key: known.apply(lambda all_of_them, key=key: all_of_them[key]) for key in values})
