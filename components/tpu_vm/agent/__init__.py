"""The agent on the virtual machine, in modules that `components.tpu_vm.script` joins to one program.

Python 3.10 and its standard library only. Modules import one another with `from components.tpu_vm.agent.X import NAME`,
and no two of them define the same name at top level: in the joined program they share one namespace.
"""
