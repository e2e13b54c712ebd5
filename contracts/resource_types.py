"""Types of the serving resources and of the bucket, as used by states and the engine."""

from typing import Final

CAPACITY_TYPE: Final = "gcp-tpu:index:QueuedResource"
"""Type of our provider: a queued resource, or a Compute Engine instance."""
SERVICE_TYPE: Final = "gcp:cloudrunv2/service:Service"
BUCKET_TYPE: Final = "gcp:storage/bucket:Bucket"
