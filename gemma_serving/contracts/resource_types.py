"""Types of the serving resources, of the bucket and of the component around a request, as used by states and the engine."""

from typing import Final

CAPACITY_TYPE: Final = "gcp-tpu:index:QueuedResource"
"""Type of our provider: a queued resource, or a Compute Engine instance."""
CAPACITY_COMPONENT: Final = "gemma-serving:index:TpuQueuedResource"
"""Component around a request for capacity. It is in the state before the request, and after one that failed."""
SERVICE_COMPONENT: Final = "gemma-serving:index:CloudRunGpuService"
"""Component around a service. It is in the state before the service, and after a creation that failed."""
SERVICE_TYPE: Final = "gcp:cloudrunv2/service:Service"
SERVER_TYPES: Final = frozenset({CAPACITY_TYPE, SERVICE_TYPE})
"""Types of what serves: a request for capacity, or a service."""
BUCKET_TYPE: Final = "gcp:storage/bucket:Bucket"
