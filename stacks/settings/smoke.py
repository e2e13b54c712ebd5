"""Thresholds of the smoke checks."""

from pydantic import Field

from stacks.settings.block import Block
from stacks.settings.text import Positive, PositiveNumber
from stacks.units import DurationS


class SmokeSettings(Block):
    """Custom thresholds of the smoke checks (`contracts.outputs.SmokeThresholds`). All others come from the plan."""

    max_ttft_s: PositiveNumber | None = None
    min_decode_tok_per_s: PositiveNumber | None = None
    min_burst_tok_per_s: PositiveNumber | None = None
    burst_requests: Positive = 8
    startup_budget_s: DurationS | None = Field(default=None, alias="startupBudget")
