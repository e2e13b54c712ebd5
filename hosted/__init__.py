"""Two components for programs in any language: `TpuServer` and `CloudRunServer`, Pulumi package `gemma-serving`.

Each is planned, refused and deployed by the code of a stack of the same target.
"""

VERSION = "0.3.0"
NAME = "gemma-serving"
