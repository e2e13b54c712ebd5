"""Thresholds of the smoke checks."""

from pydantic import Field

from stacks.settings.block import Block
from stacks.settings.text import Positive, PositiveNumber
from stacks.units import DurationS


class SmokeSettings(Block):
    """Thresholds of the smoke checks that you set yourself (`contracts.outputs.SmokeThresholds`). The plan gives all others."""

    max_ttft_s: PositiveNumber | None = None
    min_decode_tok_per_s: PositiveNumber | None = None
    min_burst_tok_per_s: PositiveNumber | None = None
    burst_requests: Positive = 8
    startup_budget_s: DurationS | None = Field(default=None, alias="startupBudget")
