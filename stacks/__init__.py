"""Settings, plan, resources and outputs of a stack.

`gemma_serving/` has a link to this folder, because every import begins with `gemma_serving`.
"""
