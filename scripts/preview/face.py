"""Public interface of `scripts.preview` for other commands: saved plans and the effect of a preview on a deployed stack."""

from scripts.preview.headline import deployed_usd_per_hour, headline
from scripts.preview.saved import PlanRefusedError, SavedPlan, read_plan
from scripts.preview.upcoming import Upcoming, upcoming

__all__ = ["PlanRefusedError", "SavedPlan", "Upcoming", "deployed_usd_per_hour", "headline", "read_plan", "upcoming"]
