"""Protocol of the Pulumi SDK without the SDK. A provider speaks gRPC and declares no resources."""

import sys
import types
from importlib import util


def leave_the_sdk_out() -> None:
    """Load only `pulumi.runtime.proto`, because the surrounding packages take a quarter of the provider's start-up time."""
    if "pulumi" in sys.modules:
        return
    for name in ("pulumi", "pulumi.runtime"):
        found = util.find_spec(name)
        if found is None:
            return
        package = types.ModuleType(name)
        package.__path__ = list(found.submodule_search_locations or [])
        sys.modules[name] = package
