"""Types of the resources that serve, as a state and the engine name them."""

from typing import Final

CAPACITY_TYPE: Final = "gcp-tpu:index:QueuedResource"
"""Our provider's: a queued resource, or an instance of Compute Engine."""
SERVICE_TYPE: Final = "gcp:cloudrunv2/service:Service"
