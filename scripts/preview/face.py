"""What other commands may use of `scripts.preview`: a saved plan, and what a preview does to a deployed stack."""

from scripts.preview.headline import deployed_usd_per_hour, headline
from scripts.preview.saved import PlanRefusedError, SavedPlan, read_plan

__all__ = ["PlanRefusedError", "SavedPlan", "deployed_usd_per_hour", "headline", "read_plan"]
