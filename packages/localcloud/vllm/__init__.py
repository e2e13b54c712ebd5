"""A simulated vLLM server: vLLM's command line, startup, endpoints, metrics and errors, without a model.

dev/docs/simulated-server.md lists the real and the simulated parts, and the sources of the figures.
"""

from typing import Final

VERSION = "0.31.0"
"""The vLLM release whose flags, log lines and messages this server follows."""
PLANNED_MARK: Final = "[simulated] start planned:"
"""The first line of the log. A runtime reads three facts from it: the state of the process, the container's port, the duration of its start."""
KILLED_MARK: Final = "[simulated] memory:"
"""The last log line of a container that exceeds its memory."""
