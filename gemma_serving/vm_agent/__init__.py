"""Agent on the TPU VM, as modules that `components.startup_script` joins into one program.

Uses only Python 3.10, its standard library, and the `contracts` modules that the program includes.
Modules import one another with `from gemma_serving.vm_agent.X import NAME`. No two modules define the same top-level name,
because they share one namespace in the joined program.
"""
