"""`python -m scripts.connect`: reach a deployed server from this machine as a plain OpenAI endpoint.

Other commands reach a server through `scripts.cli.access` and `scripts.cli.reach`.
"""
