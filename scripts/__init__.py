"""Commands to run with `pulumi`: `gemma NAME --help`.

Each command is a folder; `cli/` and `stack/` are shared code. Another command may import only a command's `api.py`.
"""
