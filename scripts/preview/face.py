"""Public interface of `scripts.preview` for other commands."""

from scripts.preview.upcoming import deployed_usd_per_hour, headline, upcoming

__all__ = ["deployed_usd_per_hour", "headline", "upcoming"]
