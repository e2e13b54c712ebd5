"""Contracts between packages: one frozen type per contract, used by its writer and by every reader.

Standard library only, and Python 3.10, because the program of a machine includes some modules (components.startup_script).
`localcloud` and `provider` do not import it; tests compare their texts.
"""
