"""The causes of a server's log lines, for other commands."""

from scripts.logs.place import known_cause as known_cause
from scripts.logs.place import server_log as server_log
