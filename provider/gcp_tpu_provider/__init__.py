"""Pulumi provider `gcp-tpu`: queued resources of the Cloud TPU API (v2alpha1), with flex-start, zones in order and serving changes in place.

It stands alone: it imports nothing of the project around it and any Pulumi program can use it.
"""

VERSION = "0.1.0"
TOKEN = "gcp-tpu:index:QueuedResource"  # noqa: S105 - a resource type's token
