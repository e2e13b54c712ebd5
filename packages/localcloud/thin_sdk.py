"""The protocol of the Pulumi SDK without the SDK: the stand-ins of the plugins speak gRPC and declare no resources."""

import sys
import types
from importlib import util


def leave_the_sdk_out() -> None:
    """Let `pulumi.runtime.proto` load alone, for a process that serves and nothing else: the packages around it are a quarter of its start."""
    if "pulumi" in sys.modules:
        return
    for name in ("pulumi", "pulumi.runtime"):
        found = util.find_spec(name)
        if found is None:
            return
        package = types.ModuleType(name)
        package.__path__ = list(found.submodule_search_locations or [])
        sys.modules[name] = package
