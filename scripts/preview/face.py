"""Public interface of `scripts.preview` for other commands: the effect of a preview on a deployed stack."""

from scripts.preview.upcoming import Upcoming, deployed_usd_per_hour, headline, upcoming

__all__ = ["Upcoming", "deployed_usd_per_hour", "headline", "upcoming"]
