"""One word for all commands: the launcher `gemma`."""
