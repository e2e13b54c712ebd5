"""Run the local cloud's own modules as processes."""

import os
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
"""The folder that contains the package `localcloud`; it is the PYTHONPATH of the processes."""
ENVIRONMENT: Final = {"PATH": os.defpath, "PYTHONPATH": str(ROOT), "SSL_CERT_FILE": os.devnull}
"""The whole environment of a process that inherits nothing. aiohttp reads the certificates, a third of a server's imports, and only HTTP is used."""
_SIMULATOR: Final = ("VLLM_SIM_SPEED", "VLLM_SIM_TTFT_S", "VLLM_SIM_TPOT_S", "VLLM_SIM_FAULTS")


def command(module: str, *arguments: str) -> list[str]:
    """Return the command line that runs a module of this package. -P prevents imports from the current folder."""
    return [sys.executable, "-P", "-m", module, *arguments]


def simulator_variables() -> dict[str, str]:
    """Return the simulator's variables that every server inherits from the local cloud, unless its container sets them."""
    return {name: os.environ[name] for name in _SIMULATOR if name in os.environ}


def planted(faults: str) -> dict[str, str]:
    """Return the variable of a server with a scenario's faults; none if it has none."""
    return {"VLLM_SIM_FAULTS": faults} if faults else {}
