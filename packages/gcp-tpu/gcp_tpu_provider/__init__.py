"""Pulumi provider `gcp-tpu`: queued resources of the Cloud TPU API v2alpha1, with flex-start, several zones and in-place changes.

It does not import the repository around it, so any Pulumi program can use it.
"""

VERSION = "0.4.0"
TOKEN = "gcp-tpu:index:QueuedResource"  # noqa: S105 - a resource type's token
