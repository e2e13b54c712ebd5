"""What other commands may use of `scripts.status`: what Google says of a deployed server."""

from scripts.status.cloud import CAPACITY, DeployedServer, cloud_facts, serving

__all__ = ["CAPACITY", "DeployedServer", "cloud_facts", "serving"]
