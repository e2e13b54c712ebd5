"""Public interface of `scripts.status` for other commands: facts from Google Cloud about a deployed server."""

from scripts.status.cloud import CAPACITY, DeployedServer, cloud_facts, serving

__all__ = ["CAPACITY", "DeployedServer", "cloud_facts", "serving"]
