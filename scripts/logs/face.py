"""What other commands may use of `scripts.logs`: the log of a stack, and the cause of a failure that its lines show."""

from scripts.logs.causes import known_cause
from scripts.logs.place import log_of_settings

__all__ = ["known_cause", "log_of_settings"]
