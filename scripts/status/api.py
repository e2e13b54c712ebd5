"""Public interface of `scripts.status` for other commands: what a stack serves, and facts from Google Cloud about its server."""

from gemma_serving.scripts.status.cloud import CAPACITY, DeployedServer, cloud_facts, facts_within, serving
from gemma_serving.scripts.status.judge import after_locks, lock_sentence
from gemma_serving.scripts.status.report import INCOMPLETE, CloudFacts
from gemma_serving.scripts.status.serves import read_served, serves_now, up_command

__all__ = [
    "CAPACITY",
    "INCOMPLETE",
    "CloudFacts",
    "DeployedServer",
    "after_locks",
    "cloud_facts",
    "facts_within",
    "lock_sentence",
    "read_served",
    "serves_now",
    "serving",
    "up_command",
]
