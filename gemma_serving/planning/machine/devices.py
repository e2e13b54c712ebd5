"""A GPU by its specifications: `memory=24GiB,bandwidth=936GB/s,tflops=71,count=2`.

The result is an `Accelerator` as in `planning.machine.hardware`, on no Google platform.
"""

import re
from collections.abc import Mapping
from typing import Final

from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.machine.hardware import Accelerator

PLATFORM: Final = "own"
USABLE_SHARE: Final = 0.989
"""Fraction of the specified memory that the driver shows to a process: 0.989 to 0.992 for the RTX PRO 6000, A100, H100 and H200 of
`planning.machine.hardware`, whose specifications count GB of 2^30 bytes; the minimum of them. Memory with error correction (L4: 0.915)
and memory shared with the processor (GB10: 0.951) show less: set `usable`."""
LARGE_GIB: Final = 70.0
"""Memory from which vLLM uses larger batches, except on an A100 (engine/arg_utils.py)."""
_PCIE_GB_PER_S: Final = 31.5
"""PCIe 4.0 x16, one way: the most common link."""

_NUMBER: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z/]*)")
_KEYS: Final[Mapping[str, tuple[Mapping[str, float], float, float]]] = {
    # Specifications write GB and mean 2^30 bytes.
    "memory": ({"GiB": 1, "GB": 1, "TiB": 1024, "TB": 1024}, 1, 4_096),
    "usable": ({"GiB": 1, "MiB": 1 / 1024}, 1, 4_096),
    "bandwidth": ({"GB/s": 1, "TB/s": 1000}, 1, 100_000),
    "tflops": ({"": 1, "TFLOPS": 1}, 0.1, 100_000),
    "link": ({"GB/s": 1}, 0.1, 2_000),
    "count": ({"": 1}, 1, 16),
    "usd": ({"/h": 1, "": 1}, 0.001, 10_000),
}
"""By key, the accepted units, each in the unit of the field (GiB, GB/s, TFLOPS, US dollars per hour), and the plausible range. `link` is one way,
to the host; `usable` is the memory that the driver shows; `usd` is for all devices."""
_REQUIRED: Final = ("memory", "bandwidth", "tflops")
_EXAMPLE: Final = "memory=24GiB,bandwidth=936GB/s,tflops=71"


def parse_device(text: str) -> Accelerator:
    """Return the accelerator of `memory=24GiB,bandwidth=936GB/s,tflops=71,name=RTX 3090`, optionally with the other keys of `_KEYS`.

    Raises PlanningError for a key that is unknown, missing or repeated, and a value without its unit or out of range.
    """
    given = _pairs(text)
    name = given.pop("name", "this device")
    figures = {key: _figure(key, value) for key, value in given.items()}
    missing = [key for key in _REQUIRED if key not in figures]
    if missing:
        raise PlanningError(f"--device requires {' and '.join(missing)}, for example --device {_EXAMPLE}.")
    memory = figures["memory"]
    usable = figures.get("usable", memory * USABLE_SHARE)
    if usable > memory:
        raise PlanningError(f"--device usable is {given['usable']}, more than the memory of {given['memory']}.")
    count = int(figures.get("count", 1))
    return Accelerator(
        name=f"{count} x {name}" if count > 1 else name,
        kind="gpu",
        devices=count,
        usable_gib=usable,
        bandwidth_gb_per_s=figures["bandwidth"],
        bf16_tflops=figures["tflops"],
        host_link_gb_per_s=figures.get("link", _PCIE_GB_PER_S),
        platforms=(PLATFORM,),
        is_large=memory >= LARGE_GIB and "a100" not in name.lower(),
        usd_per_hour=figures.get("usd"),
    )


def _pairs(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in text.split(","):
        key, equals, value = (part.strip() for part in pair.partition("="))
        if key not in {*_KEYS, "name"}:
            raise PlanningError(f'--device key "{key}" is unknown. Allowed: {", ".join((*_KEYS, "name"))}.')
        if not equals or not value:
            raise PlanningError(f"--device {key} has no value. Write {key}=VALUE.")
        if key in found:
            raise PlanningError(f"--device has {key} twice. Remove one of them.")
        found[key] = value
    return found


def _figure(key: str, text: str) -> float:
    units, least, most = _KEYS[key]
    match = _NUMBER.fullmatch(text.removeprefix("$"))
    if match is None or match[2] not in units:
        spelled = " or ".join(f"{key}=NUMBER{unit}" for unit in units)
        raise PlanningError(f'--device {key} is "{text}". Write {spelled}.')
    value = float(match[1]) * units[match[2]]
    if not least <= value <= most or (key == "count" and value != int(value)):
        unit = "" if key == "usd" else next(iter(units))
        raise PlanningError(f'--device {key} is "{text}". Allowed: {least:g} to {most:g} {unit}'.rstrip() + ".")
    return value
