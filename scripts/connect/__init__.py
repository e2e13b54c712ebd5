"""`gemma connect`: a local OpenAI endpoint. Other commands connect through `scripts.stack.access` and `scripts.stack.connection_errors`."""
