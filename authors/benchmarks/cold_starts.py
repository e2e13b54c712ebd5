"""Cold starts of the Cloud Run stacks in every weights mode: planned, and simulated by the local cloud's server.

    python -m authors.benchmarks.cold_starts [--write]

Both are computed, in simulated seconds: the planner from `planning.data.overheads`, the simulated server from measured boots
(`packages/localcloud/vllm/data/starts.json`). No clock is read, so the output is the same on every machine. `--write` updates
docs/authors/cold-starts.md.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from authors.benchmarks.pages import write_tables
from contracts.exit_codes import ExitCode
from localcloud.vllm.arguments import parse
from localcloud.vllm.settings import read
from localcloud.vllm.startup import Start
from localcloud.vllm.startup import plan as simulate
from planning.cost.loading_modes import LoadingMode, loading_modes
from planning.cost.subject import examine
from planning.planner import plan
from planning.question.types import Deployment, Plan
from planning.question.vllm_args import vllm_arguments
from stacks.loading import from_file
from stacks.planned import to_deployment

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs" / "authors" / "cold-starts.md"
STACKS: Final = ("l4-12b-qat", "l4-qat", "rtx6000-31b")
BENCHMARK: Final = "cold-starts"
NETWORK_MB_PER_S: Final = "75"
_HEAD: Final = (
    "| stack | weights mode | Direct VPC | start planned | start simulated | with graphs planned | with graphs simulated | host memory planned |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- |"
)


def table() -> str:
    """Return the rows as Markdown."""
    return "\n".join([_HEAD, *(row for stack in STACKS for row in _rows(stack))])


def _rows(stack: str) -> Iterator[str]:
    deployment = to_deployment(from_file(ROOT / f"Pulumi.{stack}.yaml", project="my-project"))
    for way in loading_modes(examine(deployment)):
        if way.memory_gib is None:
            yield _row(stack, way, "does not fit", "does not fit", "")
            continue
        cold, cached = _simulated(deployment, way)
        yield _row(stack, way, f"{cold:.0f} s", f"{cached:.0f} s", f"{way.host_gib:.1f} of {way.memory_gib:g} GiB")


def _row(stack: str, way: LoadingMode, cold: str, cached: str, memory: str) -> str:
    vpc = "yes" if way.direct_vpc else "no"
    cells = (
        stack,
        f"`{way.mode}`",
        vpc,
        f"{way.start_s:.0f} s, at most {way.start_high_s:.0f} s",
        cold,
        f"{way.cached_start_s:.0f} s",
        cached,
        memory,
    )
    return f"| {' | '.join(cells)} |"


def _simulated(deployment: Deployment, way: LoadingMode) -> tuple[float, float]:
    """Return the simulated seconds of a start with an empty compile cache, and of the next start."""
    run = replace(deployment.cloud_run, direct_vpc=way.direct_vpc)
    planned = plan(replace(deployment, weights_mode=way.mode, cloud_run=run))
    with TemporaryDirectory() as folder:
        first = _start(Path(folder), planned, way)
        for step in first.steps:
            if step.cache_file is not None:
                step.cache_file.parent.mkdir(parents=True, exist_ok=True)
                step.cache_file.touch()
        second = _start(Path(folder), planned, way)
    if first.capacity is None or second.capacity is None:
        raise RuntimeError(
            f"{planned.model} with {way.mode} does not start on the local cloud: {first.steps[-1].error}"
        )
    return first.total_s, second.total_s


def _start(folder: Path, planned: Plan, way: LoadingMode) -> Start:
    """Return a start with the properties of the local cloud's revision: volumes, network and memory."""
    name = planned.model.rpartition("/")[2]
    files = {f"{name}/config.json": 1, f"{name}/model.safetensors": 1}
    weights, graphs = folder / "weights", folder / "graphs"
    for file in files if way.mode == "memory" else ():
        (weights / file).parent.mkdir(parents=True, exist_ok=True)
        (weights / file).touch()
    listing = {
        "buckets": {"models": {"files": files, "problem": ""}},
        "mounts": [{"path": "/mnt/models", "files": files, "options": _mount_options(way.mode), "readable": True}],
    }
    for kind, content in listing.items():
        (folder / f"{kind}.json").write_text(json.dumps(content), encoding="utf-8")
    volumes = {str(weights): 1_000_000, str(graphs): 2_048}
    around = read(
        {
            **dict(planned.environment),
            "VLLM_SIM_ACCELERATOR": {"L4": "nvidia-l4"}.get(planned.accelerator, "nvidia-rtx-pro-6000"),
            "VLLM_SIM_MEMORY_LIMIT_MIB": str(round((way.memory_gib or 0) * 1024)),
            "VLLM_SIM_BUCKETS_FILE": str(folder / "buckets.json"),
            "VLLM_SIM_MOUNTS_FILE": str(folder / "mounts.json"),
            "VLLM_SIM_MEMORY_VOLUMES": json.dumps(volumes),
            "VLLM_SIM_PATHS": json.dumps({path: path for path in volumes}),
            "VLLM_CACHE_ROOT": str(graphs / "vllm"),
            **({} if way.direct_vpc else {"VLLM_SIM_NETWORK_MB_PER_S": NETWORK_MB_PER_S}),
        }
    )
    path = {"streamer": f"gs://models/{name}", "memory": str(weights / name)}.get(way.mode, f"/mnt/models/{name}")
    return simulate(parse(["vllm", "serve", *vllm_arguments(planned.vllm, model_or_path=path)]), around)


def _mount_options(mode: str) -> dict[str, str]:
    return {"fuse-buffered": {"enable-buffered-read": "true"}, "fuse-cached": {"cache-dir": "cr-volume:cache"}}.get(
        mode, {}
    )


def main(arguments: Sequence[str]) -> int:
    """Print the table, or write it to the page."""
    if arguments not in ([], ["--write"]):
        print("cold_starts: the only argument is --write", file=sys.stderr)
        return ExitCode.REFUSED
    if not arguments:
        print(table())
        return ExitCode.DONE
    write_tables(PAGE, BENCHMARK, table())
    return ExitCode.DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
