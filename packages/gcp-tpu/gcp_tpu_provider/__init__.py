"""Pulumi provider `gcp-tpu`: queued resources of the Cloud TPU API v2alpha1, with flex-start, several zones and in-place changes.

Any Pulumi program can use it. It imports nothing from the repository around it.
"""

VERSION = "0.1.0"
TOKEN = "gcp-tpu:index:QueuedResource"  # noqa: S105 - a resource type's token
