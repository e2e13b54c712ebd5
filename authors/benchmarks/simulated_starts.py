"""Measured starts for the local cloud's server: the loading and compile times of the corpus, as data of a package that imports nothing.

    python -m authors.benchmarks.simulated_starts [--write]

The simulator reads them from packages/localcloud/vllm/data/starts.json. They are figures of real servers, not the planner's estimates, so the
simulator can disagree with the plan. `--write` updates the file from authors/accuracy/corpus; a test fails if it is out of date.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from authors.accuracy.corpus.measured import Boot, Measurements, load, subject_of
from contracts.exit_codes import ExitCode
from localcloud.vllm.models import find_accelerator, find_model
from planning.cost.subject import Subject
from planning.question.releases import STARTS_FASTER_ON_TPU, is_known_from
from planning.speed.startup import xla_programs

COMMAND: Final = "python -m authors.benchmarks.simulated_starts --write"
FILE: Final = Path(__file__).resolve().parents[2] / "packages" / "localcloud" / "vllm" / "data" / "starts.json"
_ABOUT: Final = (
    "Starts of real servers with an empty compile cache. compile_s: from the loaded weights to the end of the warm-up; programs: XLA programs "
    "that it compiled; layers: of the model; load_s: download from the hub and reading, on a TPU. "
    f"Written by {COMMAND} from authors/accuracy/corpus; do not edit."
)
_NAMES: Final = {"v5e-1": "v5litepod-1", "v5e-4": "v5litepod-4", "v5e-8": "v5litepod-8", "L4": "nvidia-l4"}
"""Google's names of accelerators, which the simulator uses; the others are equal."""


def document(measurements: Measurements) -> dict[str, Any]:
    """Return the file's contents."""
    return {"about": _ABOUT, "boots": list(_rows(measurements))}


def text(measurements: Measurements) -> str:
    """Return the file's text, one boot a line."""
    made = document(measurements)
    rows = ",\n".join(f"    {json.dumps(row)}" for row in made["boots"])
    return f'{{\n  "about": {json.dumps(made["about"])},\n  "boots": [\n{rows}\n  ]\n}}\n'


def _rows(measurements: Measurements) -> Iterator[dict[str, Any]]:
    for boot in measurements.boots:
        if boot.outcome != "runs" or find_accelerator(_accelerator(boot)) is None:
            continue
        subject = subject_of(boot)
        figures = _figures(boot, subject)
        if figures and find_model(subject.resolved.model_id) is not None:
            yield {
                "id": boot.id,
                "model": subject.resolved.model_id,
                "scheme": subject.resolved.scheme.name,
                "accelerator": _accelerator(boot),
                "layers": subject.resolved.spec.layers,
                **figures,
                "source": boot.sources[0].citation,
            }


def _figures(boot: Boot, subject: Subject) -> dict[str, float]:
    """Return a boot's seconds. A TPU of an older release reads its weights more slowly, so its loading time is left out."""
    found = {figure.key: figure.measured for figure in boot.figures if not figure.beyond}
    resolved, rows = subject.resolved, dict[str, float]()
    if "compile" in found:
        rows["compile_s"] = found["compile"]
        if resolved.is_tpu:
            rows["programs"] = xla_programs(resolved)
    if "load" in found and resolved.is_tpu and is_known_from(resolved, STARTS_FASTER_ON_TPU):
        rows["load_s"] = found["load"]
    return rows


def _accelerator(boot: Boot) -> str:
    name = boot.deployment.accelerator
    return _NAMES.get(name, name)


def main(arguments: Sequence[str]) -> int:
    """Print the file, or write it."""
    if arguments not in ([], ["--write"]):
        print("simulated_starts: the only argument is --write", file=sys.stderr)
        return ExitCode.REFUSED
    made = text(load())
    if arguments:
        FILE.write_text(made, encoding="utf-8")
    else:
        print(made, end="")
    return ExitCode.DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
