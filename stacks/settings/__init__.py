"""The file of a stack: one frozen model for both targets with a server, another for a gateway (`stacks.settings.gateway`).

Keys in the file are camelCase and quantities have a unit (`maxRunDuration: 4h`, `memory: 32Gi`). Here they are numbers with the unit in
the name (`max_run_duration_s`, `memory_mib`). The blocks are those of `planning.settings`. `stacks.loading` converts each error into one
sentence.
"""

from gemma_serving.stacks.settings.stack import NAMESPACES, NOT_IN_FILE, Settings, SmokeSettings

__all__ = ["NAMESPACES", "NOT_IN_FILE", "Settings", "SmokeSettings"]
