"""The plugin of the package: it serves the components to programs in any language."""

import asyncio
import json
import sys
from collections.abc import Mapping
from typing import Any, Final

import pulumi
from pulumi.errors import InputPropertiesError
from pulumi.provider import ConstructResult, Provider
from pulumi.provider import main as serve

from gemma_serving import VERSION
from gemma_serving.stacks.package.constructing import construct
from gemma_serving.stacks.package.schema import package_schema

_OTHERS_S: Final = 2.0
"""Time for other components, whose requests come with this one's, to log their problems. A plan takes about a second."""


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
        """Declare a component and its resources. A refused component logs its problems and declares none."""
        kind = resource_type.rpartition(":")[2]
        try:
            made = construct(kind, name, inputs, options)
        except InputPropertiesError as error:
            problems = (f"  {one['property_path']}: {one['reason']}" for one in error.errors or ())
            pulumi.log.error("\n".join([f'{kind} "{name}":', *problems]))
            return ConstructResult(pulumi.Output.from_input(_refused(error.message)), {})
        return ConstructResult(made.component.urn, dict(made.outputs))


async def _refused(message: str) -> str:
    """Raise an error without the problems, which are logged.

    The engine ends the program at the first error of a component (pulumi/pulumi 3.256.0, pkg/resource/deploy/source_eval.go). Others that it
    has sent get time to log theirs.
    """
    await asyncio.sleep(_OTHERS_S)
    raise InputPropertiesError(message, [])


def main() -> None:
    """Serve the package until the engine ends the process."""
    serve(PackageProvider(), sys.argv[1:])


if __name__ == "__main__":
    main()
