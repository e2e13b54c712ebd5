"""`python -m dev.judges.real_vllm`: compare our benchmark and smoke checks with a real vLLM and its benchmark, and check its exposure and its scheduler.

The first run installs vLLM (6 GB) below .oracle. dev/docs/benchmark-internals.md#comparison-with-a-real-vllm describes the comparison and its results.
"""

import argparse
import datetime as dt
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from dev.judges.planted import PlantedLieError
from dev.judges.real_vllm import cache_pages, exposure, judge, scheduler, smoke
from dev.judges.real_vllm.bench import POINTS, BenchMeasurement, measure_point
from dev.judges.real_vllm.cache_pages import check_pages
from dev.judges.real_vllm.environment import DEFAULT_FOLDER, RealVllmError, RealVllmHome, prepare, print_progress
from dev.judges.real_vllm.exposure import check_exposure
from dev.judges.real_vllm.judge import FEWEST_ROUNDS, RealVllmPart
from dev.judges.real_vllm.scheduler import check_scheduler
from dev.judges.real_vllm.server import RealVllmCores, running_server, split_cores
from dev.judges.real_vllm.smoke import check_chat, check_features, check_smoke

NAMES: Final = tuple(point.name for point in POINTS)
BENCHMARK: Final = "benchmark"
PARTS: Final[Mapping[str, Callable[[RealVllmHome, RealVllmCores], RealVllmPart]]] = {
    "exposure": check_exposure,
    "features": check_features,
    "pages": check_pages,
    "scheduler": check_scheduler,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if all agrees, 1 if something differs or could not be measured, 2 if rejected, 130 if interrupted."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.rounds < FEWEST_ROUNDS:
        parser.error(f"--rounds is {options.rounds}, but a result needs at least {FEWEST_ROUNDS} rounds")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        text, faults = run_comparison(options)
    except (RealVllmError, PlantedLieError) as error:
        print_progress(str(error))
        return 1
    except KeyboardInterrupt:
        print_progress("interrupted. The server was stopped. Run `make -C dev/judges oracle` to start over.")
        return 130
    print(text)
    if target := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(target).open("a", encoding="utf-8") as stream:
            stream.write(text + "\n")
    return 1 if faults else 0


def run_comparison(options: argparse.Namespace) -> tuple[str, Sequence[str]]:
    """Prepare, measure and judge. Return the report and its faults. Raises RealVllmError."""
    for judging in (cache_pages, exposure, judge, scheduler, smoke):
        judging.planted_lie()
    began_s, load = time.monotonic(), os.getloadavg()[0]
    home = RealVllmHome(folder=options.folder.resolve())
    prepare(home)
    shutil.rmtree(home.results, ignore_errors=True)
    home.results.mkdir()
    cores = split_cores(tuple(os.sched_getaffinity(0)))
    asked = options.part or (*PARTS, BENCHMARK)
    parts = [check(home, cores) for name, check in PARTS.items() if name in asked]
    if BENCHMARK in asked:
        parts += measure_server(home, cores, options.rounds, options.point or NAMES)
    took = f"load {load:.1f} to {os.getloadavg()[0]:.1f}, {(time.monotonic() - began_s) / 60:.0f} minutes"
    text = report(f"{dt.datetime.now(dt.UTC).date()}, {os.cpu_count()} cores, {took}.", parts)
    (home.results / "report.md").write_text(text + "\n", encoding="utf-8")
    print_progress(f"results of every run: {home.results}")
    return text, [fault for part in parts for fault in part.faults]


def measure_server(home: RealVllmHome, cores: RealVllmCores, rounds: int, names: Sequence[str]) -> list[RealVllmPart]:
    """Run the chat, the smoke checks and the points. Raises RealVllmError."""
    with running_server(home, cores, "server") as url:
        bench = BenchMeasurement(home=home, url=url, cores=cores)
        chat = check_chat(home, url, cores)
        smoke = check_smoke(home, url, cores, "smoke")
        points = [measure_point(point, rounds, bench.ours, bench.theirs) for point in POINTS if point.name in names]
        return [chat, smoke, *points]


def report(heading: str, parts: Sequence[RealVllmPart]) -> str:
    """Return the results of all parts as Markdown: a verdict, the lines of each part, and the faults."""
    faults = [f"- FAULT: {fault}" for part in parts for fault in part.faults]
    title = "### The comparison FAILED" if faults else "### The real vLLM agrees"
    return "\n".join([title, "", heading, *(line for part in parts for line in ("", *part.lines)), "", *faults]).strip()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m dev.judges.real_vllm", description=__doc__)
    parser.add_argument(
        "--rounds", type=int, default=FEWEST_ROUNDS, help=f"valid rounds per point (minimum: {FEWEST_ROUNDS})"
    )
    parser.add_argument("--part", action="append", choices=(*PARTS, BENCHMARK), help="only this part; repeatable")
    parser.add_argument("--point", action="append", choices=NAMES, help="measure only this point; repeatable")
    parser.add_argument("--folder", type=Path, default=DEFAULT_FOLDER, help="folder of vLLM, the model and the results")
    return parser


if __name__ == "__main__":
    sys.exit(main())
