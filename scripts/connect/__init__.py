"""`gemma connect`: a local OpenAI endpoint for a deployed server.

Other commands connect to a server through `scripts.cli.access` and `scripts.cli.reach`.
"""
