"""Commands to run with `pulumi`: `gemma NAME --help`.

`gemma_serving/` has a link to this folder, because every import begins with `gemma_serving`.
Each command is a folder; `cli/` and `stack/` are shared code. Another command may import only a command's `api.py`.
"""
