"""Stand-ins for the pulumi-gcp and pulumi-docker plugins: the same requests and the same diffs, without the plugins.

`async with serve(base_url) as ports:` starts both; `ports.debug_providers` is the value for PULUMI_DEBUG_PROVIDERS.
"""

from localcloud.plugins.serve import Ports, serve

__all__ = ["Ports", "serve"]
