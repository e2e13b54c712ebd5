"""Public interface of `scripts.logs` for other commands: the log of a stack, and known causes in it."""

from scripts.logs.place import known_cause, log_of_settings

__all__ = ["known_cause", "log_of_settings"]
