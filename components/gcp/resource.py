"""Base of the generated Google resources: provider version, secrets, and an attribute for each output."""

from collections.abc import Sequence
from copy import copy
from inspect import get_annotations
from typing import Final, TypeVar, cast, dataclass_transform

import pulumi

PROVIDER_VERSION: Final = "10.2.0"
"""Version of the gcp provider: the pulumi-gcp version in requirements.txt from which the classes were generated."""

T = TypeVar("T")


@dataclass_transform(kw_only_default=True, field_specifiers=(pulumi.property,))
def input_type(cls: type[T]) -> type[T]:
    """Generate the constructor with Pulumi, in a form that type checkers understand."""
    return pulumi.input_type(cls)


class GoogleResource(pulumi.CustomResource):
    """One resource of the gcp provider, as its SDK registers it."""

    def __init__(
        self,
        type_: str,
        resource_name: str,
        args: object,
        opts: pulumi.ResourceOptions | None,
        *,
        secret_inputs: Sequence[str] = (),
        secret_outputs: Sequence[str] = (),
        earlier_types: Sequence[str] = (),
    ) -> None:
        """Declare a resource of a type such as `gcp:storage/bucket:Bucket`. `args` is an instance of its inputs class."""
        given = vars(args)
        secrets = {name: pulumi.Output.secret(given[name]) for name in secret_inputs if given.get(name) is not None}
        properties = copy(args)
        # Pulumi resolves the outputs named by the properties.
        vars(properties).update({**dict.fromkeys(get_annotations(type(self))), **given, **secrets})
        of_provider = pulumi.ResourceOptions(
            version=PROVIDER_VERSION,
            additional_secret_outputs=list(secret_outputs) or None,
            aliases=[pulumi.Alias(type_=each) for each in earlier_types] or None,
        )
        merged = pulumi.ResourceOptions.merge(of_provider, opts)
        super().__init__(type_, resource_name, cast("pulumi.Inputs", properties), merged)
