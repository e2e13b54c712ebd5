"""`python -m scripts.connect`: reach a deployed server from this machine as a plain OpenAI endpoint."""
