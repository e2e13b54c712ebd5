"""The gateway: Envoy's image, and the size of an instance."""

from typing import Final

ENVOY_REPOSITORY: Final = "envoyproxy/envoy"
ENVOY_VERSION: Final = "1.39.1"
"""The tests run the wheel of this version (requirements/dev.in)."""
ENVOY_DIGEST: Final = "sha256:eb2c01c13125d1629637cb4e4cce7207009fb7cc2c8027f9742758549d15b6f4"
"""distroless-v1.39.1, ENVOY_VERSION, by ten public files of several projects (2026-11). No registry has confirmed it here."""
ENVOY_COMMAND: Final = "/usr/local/bin/envoy"
GATEWAY_VCPU: Final = 1
CONCURRENCY: Final = 1000
"""Concurrent requests of an instance: Cloud Run's maximum."""
BUFFER_KIB: Final = 128
"""Bytes that Envoy keeps of one request, and of one response. A larger body is not kept whole, so it goes to one server only."""
REQUEST_KIB: Final = 3 * BUFFER_KIB
"""Memory of one request at most (Envoy 1.39.1, 1,000 at once): 300 KiB for a body that waits, 365 KiB with an unread response."""
OUTSIDE_HEAP_MIB: Final = 64
"""Memory of Envoy that is not its heap: 50 MiB after the start."""
GATEWAY_MIB: Final = 512
"""Memory of each instance: CONCURRENCY requests of REQUEST_KIB are 84 % of its heap."""
GATEWAY_START_S: Final = 180
"""Time to start and to find a server. An address in the network may take a minute or more (Cloud Run, Direct VPC egress)."""
LONGEST_REQUEST_S: Final = 3600
"""Cloud Run's longest request (docs.cloud.google.com/run/docs/configuring/request-timeout)."""


def backend_path(stack: str) -> str:
    """Return the prefix of a backend's own `/health` and `/metrics` at the gateway."""
    return f"/-/{stack}"
