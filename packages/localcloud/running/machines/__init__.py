"""Simulated virtual machines: each has a metadata server and runs its startup script; docker and systemd are simulated."""

from localcloud.running.machines.runtime import SimulatedMachines

__all__ = ["SimulatedMachines"]
