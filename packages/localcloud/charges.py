"""Log of a machine's simulated costs: each wait that the simulator adds, with its simulated seconds and the bytes that it represents.

The programs of a machine append one JSON object per line to a file. The file outlives the machine, so a test can find repeated
downloads.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

FILE: Final = "charges.jsonl"
VARIABLE: Final = "VLLM_SIM_CHARGES"
"""Environment variable of the simulated server: path of the file that it appends to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """One wait. `what` is boot, image, process, hub, bucket, load, compile or cached; `bytes` is 0 if nothing is transferred."""

    what: str
    name: str
    seconds: float
    bytes: int = 0


def append(path: Path, charge: Charge) -> None:
    """Append a line."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(charge)) + "\n")


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a file. Yield nothing if the file does not exist."""
    if path.exists():
        yield from (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
