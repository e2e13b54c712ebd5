"""Serve the components as a Pulumi plugin. `python -m hosted.host` prints their schema."""

import inspect
import json
from typing import Any, Final

import pulumi
from pulumi.errors import InputPropertiesError
from pulumi.provider.experimental.component import ComponentProvider
from pulumi.provider.server import ComponentInitError, main

from hosted import NAME, VERSION
from hosted.cloud_run_server import CloudRunServer
from hosted.publication import published
from hosted.server import RefusedError
from hosted.tpu_server import TpuServer
from stacks.secrets import SECRET_KEYS

COMPONENTS: Final[list[type[pulumi.ComponentResource]]] = [TpuServer, CloudRunServer]


class ServerProvider(ComponentProvider):
    """Provider of the components. It reports a refusal without a traceback, and its schema says where the package comes from."""

    def __init__(self) -> None:
        super().__init__(COMPONENTS, NAME, version=VERSION)
        self.schema = package_schema(self.schema or "{}")

    def construct(self, name: str, resource_type: str, inputs: Any, options: Any = None) -> Any:  # noqa: ANN401 - the SDK's types
        """Create a component. Raises InputPropertiesError with the sentences of a refusal."""
        try:
            return super().construct(name, resource_type, inputs, options)
        except ComponentInitError as error:
            if isinstance(error.inner, RefusedError):
                raise InputPropertiesError(
                    str(error.inner), []
                ) from None  # without a list the SDK fails on its own status
            raise


def package_schema(inferred: str) -> str:
    """Return the complete schema of the package: that of the components, and where the package comes from."""
    schema: dict[str, Any] = {**json.loads(inferred), **published()}
    for resource in schema["resources"].values():
        resource["description"] = inspect.cleandoc(resource["description"])
        for name in SECRET_KEYS:
            resource["inputProperties"][name]["secret"] = True
    return json.dumps(schema, indent=2) + "\n"


def serve() -> None:
    """Serve until the engine stops the plugin."""
    main(ServerProvider(), [])


if __name__ == "__main__":
    print(ServerProvider().schema, end="")
