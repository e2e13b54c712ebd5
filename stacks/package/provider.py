"""The plugin of the package: it serves the components to programs in any language."""

import json
import sys
from collections.abc import Mapping
from typing import Any

import pulumi
from pulumi.provider import ConstructResult, Provider
from pulumi.provider import main as serve

from gemma_serving import VERSION
from gemma_serving.stacks.package.constructing import construct
from gemma_serving.stacks.package.schema import package_schema


class PackageProvider(Provider):
    """Constructs the real components, so a program may change between import and package without a replacement.

    The SDK's experimental provider passes aliases as messages and drops options such as `ignoreChanges` (pulumi 3.272), so this is the other one.
    Only the plugin's process imports it: the SDK's provider and Google's packages register the same message types.
    """

    def __init__(self) -> None:
        super().__init__(VERSION, json.dumps(package_schema()))

    def construct(
        self,
        name: str,
        resource_type: str,
        inputs: Mapping[str, Any],
        options: pulumi.ResourceOptions | None = None,
    ) -> ConstructResult:
        """Declare a component and its resources. Raises InputPropertiesError before it declares any."""
        made = construct(resource_type.rpartition(":")[2], name, inputs, options)
        return ConstructResult(made.component.urn, dict(made.outputs))


def main() -> None:
    """Serve the package until the engine ends the process."""
    serve(PackageProvider(), sys.argv[1:])


if __name__ == "__main__":
    main()
