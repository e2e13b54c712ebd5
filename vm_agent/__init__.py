"""The agent on the TPU machine, in modules that `components.startup_script` joins to one program.

Python 3.10 and its standard library only, besides the modules of `contracts` that the program includes.
Modules import one another with `from vm_agent.X import NAME`. No two of them define the same name at top
level: in the joined program they share one namespace.
"""
