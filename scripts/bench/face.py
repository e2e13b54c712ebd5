"""Public interface of `scripts.bench` for other commands: convert load test refusals to command refusals."""

from scripts.bench.refusals import refused

__all__ = ["refused"]
