"""The gcp provider."""

import os
from collections.abc import Mapping
from typing import Final

import pulumi

from components.gcp.resource import PROVIDER_VERSION

_ZONE_VARIABLES: Final = ("GOOGLE_ZONE", "GCLOUD_ZONE", "CLOUDSDK_COMPUTE_ZONE")
"""Environment variables in which the SDK searches for a default zone, in order."""


class Provider(pulumi.ProviderResource):
    """The gcp provider with explicit settings."""

    def __init__(self, name: str, *, project: str, region: str, billing_project: str) -> None:
        """Declare the provider. Calls use the quota of `billing_project` (X-Goog-User-Project)."""
        zone = next((os.environ[name] for name in _ZONE_VARIABLES if name in os.environ), None)
        properties: Mapping[str, pulumi.Input[str] | None] = {
            "project": project,
            "region": region,
            "zone": zone,
            "billingProject": billing_project,
            "userProjectOverride": "true",
        }
        opts = pulumi.ResourceOptions(version=PROVIDER_VERSION, additional_secret_outputs=["accessToken"])
        super().__init__("gcp", name, properties, opts)
