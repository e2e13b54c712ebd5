"""`gemma connect`: a local OpenAI endpoint. Other commands connect through `scripts.cli.access` and `scripts.cli.connection_errors`."""
