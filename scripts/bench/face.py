"""What other commands may use of `scripts.bench`: how a load test's refusals become a command's."""

from scripts.bench.refusals import refused

__all__ = ["refused"]
