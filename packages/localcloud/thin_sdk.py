"""Pulumi SDK protocol without the SDK: the plugin stand-ins speak gRPC and do not declare resources."""

import sys
import types
from importlib import util


def leave_the_sdk_out() -> None:
    """Allow `pulumi.runtime.proto` to load without its packages, which account for a quarter of the start time of a process that only serves."""
    if "pulumi" in sys.modules:
        return
    for name in ("pulumi", "pulumi.runtime"):
        found = util.find_spec(name)
        if found is None:
            return
        package = types.ModuleType(name)
        package.__path__ = list(found.submodule_search_locations or [])
        sys.modules[name] = package
