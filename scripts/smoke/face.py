"""Public interface of `scripts.smoke` for other commands: run all checks."""

from scripts.smoke.context import stack_target
from scripts.smoke.run import run_smoke

__all__ = ["run_smoke", "stack_target"]
