"""A simulated vLLM server: vLLM's command line, start-up, endpoints, metrics and errors, without a model.

docs/authors/simulated-server.md says what is real, what is simulated, and gives the sources of the figures.
"""

VERSION = "0.28.0"
"""The vLLM release whose flags, log lines and messages this server follows."""
