"""Values for programs, not for users. The engine prints a stack's outputs, but not a component's."""

from collections.abc import Mapping

import pulumi

from gemma_serving.contracts.outputs import DETAILS_TYPE


class StackDetails(pulumi.ComponentResource):
    """Values in the state, written when `after` is known, so a failed `up` keeps the values of the last successful one."""

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
