"""Public interface of `scripts.status` for other commands: facts from Google Cloud about a deployed server."""

from scripts.status.cloud import CAPACITY, DeployedServer, cloud_facts, serving
from scripts.status.report import CloudFacts

__all__ = ["CAPACITY", "CloudFacts", "DeployedServer", "cloud_facts", "serving"]
