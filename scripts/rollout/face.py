"""Public interface of `scripts.rollout` for other commands: the Cloud Run service and the price of a revision."""

from scripts.rollout.look import most_usd_per_hour, service_region
from scripts.rollout.service import IMAGE_PULL_S, ServiceAtGoogle

__all__ = ["IMAGE_PULL_S", "ServiceAtGoogle", "most_usd_per_hour", "service_region"]
