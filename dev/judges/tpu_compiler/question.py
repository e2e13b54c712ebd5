"""What the judge builds: everything that the answer depends on, and the request that the child process reads."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.planning.machine.hardware import ACCELERATORS, topology_of
from gemma_serving.planning.question.resolved import Resolved


@dataclass(frozen=True, slots=True)
class Topology:
    """A slice as jax.experimental.topologies names it."""

    name: str
    chips_per_host: tuple[int, int, int]


def topologies() -> Mapping[str, Topology]:
    """Return single hosts by accelerator. libtpu 0.0.44 returns each with as many devices as it has chips, and TPU7x with eight."""
    found = {one.name: Topology(*topology_of(one)) for one in ACCELERATORS.values()}
    return {name: topology for name, topology in found.items() if topology.name}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileQuestion:
    """One server to build."""

    arguments: tuple[str, ...]
    """Words after `vllm serve`, as the stack sends them; the first is the model."""
    environment: Mapping[str, str]
    accelerator_type: str
    devices: int
    """Devices of the slice."""
    usable_gib: float
    """Memory of one device as the TPU runtime reports it."""
    config: Mapping[str, Any]
    """The model's config.json."""
    drafter: str = ""
    """Draft model as the arguments name it; empty without one."""
    drafter_config: Mapping[str, Any] | None = None
    programs: str = "default"
    """Programs to compile: `default` (the largest step, the smallest and the sampler), `all`, `none`, or steps by their tokens, such as `512,2048`."""
    copies: int = 1
    """Copies of the model (`--data-parallel-size`). Each is a process with chips of its own, and the judge builds the first."""

    @property
    def topology(self) -> Topology:
        """The slice, or one copy's part of it: a row of chips (tpu-inference, `_setup_dp_chip_isolation`)."""
        whole = topologies()[self.accelerator_type]
        if self.copies == 1:
            return whole
        per_chip = self.devices // math.prod(whole.chips_per_host)
        chips = self.devices // self.copies // per_chip
        return Topology(f"{whole.name.partition(':')[0]}:1x{chips}", (1, chips, 1))

    def material(self) -> dict[str, Any]:
        """Return everything that the answer depends on, in JSON types. It names no folder of this machine."""
        slice_of_copy = {"topology": self.topology.name, "chips_per_host": self.topology.chips_per_host}
        # `vllm serve` sets the variable itself, in a launcher that the judge does not start.
        own = {"TPU_MULTIPROCESS_DP": "1"} if self.copies > 1 else {}
        environment = {**self.environment, **own}
        devices = self.devices // self.copies
        return {**asdict(self), **slice_of_copy, "environment": environment, "devices": devices}

    def write(self, folder: Path) -> Path:
        """Write the request and the models' folders. Return the request's file, the only argument of the child process."""
        request = {key: value for key, value in self.material().items() if key not in _MODELS}
        request["model_dir"] = str(_written(folder / "model", self.config))
        if self.drafter_config is not None:
            place = json.dumps(str(_written(folder / "drafter", self.drafter_config)))
            request["arguments"] = [word.replace(json.dumps(self.drafter), place) for word in self.arguments]
        path = folder / "request.json"
        path.write_text(json.dumps(request, indent=2))
        return path


_MODELS: Final = frozenset({"config", "drafter", "drafter_config"})
"""Parts of the question that the request has as folders."""


def _written(folder: Path, config: Mapping[str, Any]) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    return folder


def require_topology(resolved: Resolved) -> None:
    """Raise CommandRefusedError for a device that the judge cannot describe."""
    name = resolved.accelerator.name
    if not resolved.is_tpu:
        raise CommandRefusedError(f"--compile judges servers on TPU, and {name} is a GPU. Remove --compile.")
    if name not in topologies():
        raise CommandRefusedError(f"--compile has no topology for {name}. Use one of {', '.join(topologies())}.")
