"""The gateway: Envoy's image, and the size of an instance."""

from typing import Final

ENVOY_REPOSITORY: Final = "envoyproxy/envoy"
"""Repository on Docker Hub."""
ENVOY_DIGEST: Final = "sha256:eb2c01c13125d1629637cb4e4cce7207009fb7cc2c8027f9742758549d15b6f4"
"""distroless-v1.39.1. Ten public files of several projects name the tag with this digest (2026-11). No registry has confirmed it here."""
ENVOY_COMMAND: Final = "/usr/local/bin/envoy"
"""Program of that image."""
GATEWAY_VCPU: Final = 1
GATEWAY_MIB: Final = 512
"""Memory of each instance."""
LONGEST_REQUEST_S: Final = 3600
"""Cloud Run's longest request (docs.cloud.google.com/run/docs/configuring/request-timeout)."""


def backend_path(stack: str) -> str:
    """Return the prefix of a backend's own `/health` and `/metrics` at the gateway."""
    return f"/-/{stack}"
