"""Public interface of `scripts.logs` for other commands: the cause of a server's log lines."""

from gemma_serving.scripts.logs.place import known_cause, server_log

__all__ = ["known_cause", "server_log"]
