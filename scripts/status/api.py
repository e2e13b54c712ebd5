"""Public interface of `scripts.status` for `up`."""

from gemma_serving.contracts.stack_facts import CloudFacts
from gemma_serving.scripts.stack.deployed_server import CAPACITY, facts_within, serving
from gemma_serving.scripts.stack.serves import read_served

__all__ = ["CAPACITY", "CloudFacts", "facts_within", "read_served", "serving"]
