"""A simulated vLLM server: vLLM's command line, start-up, endpoints, metrics and errors, without a model.

See docs/simulated-server.md for what is real, what is simulated and by which figures.
"""

VERSION = "0.28.0"
"""The vLLM release whose flags, log lines and messages this server follows."""
