"""Public interface of `scripts.preview` for other commands."""

from scripts.preview.upcoming import Upcoming, deployed_usd_per_hour, headline, upcoming

__all__ = ["Upcoming", "deployed_usd_per_hour", "headline", "upcoming"]
