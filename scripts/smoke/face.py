"""Public interface of `scripts.smoke` for other commands: run all checks."""

from scripts.smoke.run import run_smoke
from scripts.smoke.target import stack_target

__all__ = ["run_smoke", "stack_target"]
