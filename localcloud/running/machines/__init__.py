"""Virtual machines of the local cloud: a metadata server each, their start-up script executed, docker and systemd simulated."""

from localcloud.running.machines.runtime import SimulatedMachines

__all__ = ["SimulatedMachines"]
