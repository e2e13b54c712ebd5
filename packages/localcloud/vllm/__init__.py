"""A simulated vLLM server: vLLM's command line, startup, endpoints, metrics and errors, without a model.

docs/authors/simulated-server.md lists the real and the simulated parts, and the sources of the figures.
"""

VERSION = "0.28.0"
"""The vLLM release whose flags, log lines and messages this server follows."""
