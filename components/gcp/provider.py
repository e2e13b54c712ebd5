"""The gcp provider itself, and the one function of it that a stack calls."""

import os
from collections.abc import Mapping
from typing import Final

import pulumi

from components.gcp.resource import PROVIDER_VERSION

_ZONE_VARIABLES: Final = ("GOOGLE_ZONE", "GCLOUD_ZONE", "CLOUDSDK_COMPUTE_ZONE")
"""Where the SDK looks for a default zone, in this order."""


class Provider(pulumi.ProviderResource):
    """The gcp provider with settings of its own."""

    def __init__(self, name: str, *, project: str, region: str, billing_project: str) -> None:
        """Declare the provider; `billing_project` is whose quota its calls use (X-Goog-User-Project)."""
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


def get_project(project: str, provider: Provider) -> None:
    """Read a project through the provider. Raises what the SDK raises for a function that failed: a plain exception."""
    options = pulumi.InvokeOptions(provider=provider, version=PROVIDER_VERSION)
    pulumi.runtime.invoke("gcp:organizations/getProject:getProject", {"projectId": project}, options)
