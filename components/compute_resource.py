"""Compute Engine resources without `pulumi_gcp.compute`, whose modules of 20 MB cost 1.3 CPU seconds at each start of a program.

Five of its 280 types are used, each with a few properties. The tests register the generated classes beside these and compare what the
engine is sent.
"""

from importlib.metadata import version

import pulumi


class GoogleComputeResource(pulumi.CustomResource):
    """One resource of the gcp provider's `compute` module."""

    name: pulumi.Output[str]
    """The name that Google has; known during a preview only if it is given."""

    def __init__(self, kind: str, resource_name: str, properties: pulumi.Inputs, opts: pulumi.ResourceOptions) -> None:
        """Declare a resource.

        `kind` is the last part of its type token, such as `network:Network`; `properties` have the provider's names, in camelCase.
        """
        of_provider = pulumi.ResourceOptions(version=version("pulumi-gcp"))
        given = {"name": None, **properties}  # an attribute for each key, also of what the provider chooses
        super().__init__(f"gcp:compute/{kind}", resource_name, given, pulumi.ResourceOptions.merge(of_provider, opts))
