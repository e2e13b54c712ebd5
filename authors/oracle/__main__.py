"""`python -m authors.oracle`: compare our benchmark and smoke checks with a real vLLM and its benchmark, check its exposure and the simulated metrics.

The first run installs vLLM (6 GB) below .oracle. docs/authors/oracle.md describes the comparison and its results.
"""

import argparse
import datetime as dt
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from authors.oracle.clients import check_chat, check_smoke
from authors.oracle.copies import preloaded_vllm
from authors.oracle.environment import DEFAULT_FOLDER, OracleError, OracleHome, OracleRefusedError, prepare
from authors.oracle.exposure import check_exposure
from authors.oracle.fault import buffering_proxy
from authors.oracle.features import check_features
from authors.oracle.judge import FEWEST_ROUNDS, OracleRun
from authors.oracle.measure import POINTS, Bench, OraclePoint
from authors.oracle.metric_shapes import check_metrics
from authors.oracle.render import OracleMeasured, OracleReport, as_json, as_markdown
from authors.oracle.rounds import check_command, measure_planted, measure_point, processor_name
from authors.oracle.server import OracleCores, free_port, running_server, split_cores

NAMES: Final = tuple(point.name for point in POINTS)
BENCHMARK: Final = "benchmark"
EXPOSURE: Final = "exposure"
METRICS: Final = "metrics"
FEATURES: Final = "features"
PARTS: Final = (BENCHMARK, EXPOSURE, METRICS, FEATURES)


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if all agrees, 1 if something differs or could not be measured, 2 if rejected, 130 if interrupted."""
    options = _parser().parse_args(arguments)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        report = run_oracle(options)
    except OracleRefusedError as error:
        print(f"oracle: {error}", file=sys.stderr)
        return 2
    except OracleError as error:
        print(f"oracle: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("oracle: interrupted. The server was stopped. Run `make oracle` to start over.", file=sys.stderr)
        return 130
    text = as_markdown(report)
    print(json.dumps(as_json(report), indent=1) if options.json else text)
    target = os.environ.get("GITHUB_STEP_SUMMARY")
    if target:
        with Path(target).open("a", encoding="utf-8") as stream:
            stream.write(text + "\n")
    return 1 if report.faults else 0


def run_oracle(options: argparse.Namespace) -> OracleReport:
    """Prepare, measure and judge. Raises OracleError."""
    if options.rounds < FEWEST_ROUNDS:
        raise OracleRefusedError(
            f"--rounds is {options.rounds}, but a result needs at least {FEWEST_ROUNDS} rounds. Remove the option or raise it.",
        )
    began_s = time.monotonic()
    load = os.getloadavg()[0]
    home = OracleHome(folder=options.folder.resolve())
    port = free_port(options.port)
    if not prepare(home, _say):
        _say(f"{home.folder} is ready")
    shutil.rmtree(home.results, ignore_errors=True)
    home.results.mkdir()
    cores = split_cores(tuple(os.sched_getaffinity(0)))
    parts = options.part or PARTS
    exposure = check_exposure(home, cores, _say) if EXPOSURE in parts else None
    metrics = check_metrics(home, cores, _say) if METRICS in parts else None
    features = check_features(home, cores, _say) if FEATURES in parts else None
    measured = _measured(options, home, port, cores) if BENCHMARK in parts else None
    report = OracleReport(
        date=dt.datetime.now(dt.UTC).date().isoformat(),
        machine=f"{os.cpu_count()} cores of {processor_name()}",
        load=(load, os.getloadavg()[0]),
        measured=measured,
        exposure=exposure,
        metrics=metrics,
        features=features,
        elapsed_s=time.monotonic() - began_s,
    )
    (home.results / "report.json").write_text(json.dumps(as_json(report), indent=1) + "\n", encoding="utf-8")
    (home.results / "report.md").write_text(as_markdown(report) + "\n", encoding="utf-8")
    _say(f"results of every run: {home.results}")
    return report


def _measured(options: argparse.Namespace, home: OracleHome, port: int, cores: OracleCores) -> OracleMeasured:
    """Run the benchmarks, the smoke checks and the chat. Raises OracleError."""
    points = tuple(point for point in POINTS if point.name in (options.point or NAMES))
    _say(f"starting vLLM on core {min(cores.server)}, port {port}, log: {home.results / 'server.log'}")
    with running_server(home, port, cores, _say) as url, preloaded_vllm(home, cores, _say) as copies:
        bench = Bench(home=home, url=url, cores=cores, copies=copies)
        faults = check_chat(bench)
        smoke, smoke_faults = check_smoke(bench)
        _say(f"smoke: {smoke} checks as expected, {len(smoke_faults)} not")
        faults += [*smoke_faults, *check_command(POINTS[-1], bench, _say)]
        outcomes = tuple(measure_point(point, options.rounds, bench.ours, bench.theirs, _say) for point in points)
        with buffering_proxy(port) as through:

            def behind(point: OraclePoint, label: str) -> OracleRun:
                return bench.ours(point, label, through=through)

            planted = measure_planted(outcomes[-1], behind, _say)
    return OracleMeasured(points=outcomes, planted=planted, smoke_checks=smoke, client_faults=tuple(faults))


def _say(text: str) -> None:
    print(f"oracle: {text}", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m authors.oracle", description=__doc__)
    parser.add_argument(
        "--rounds",
        type=int,
        default=FEWEST_ROUNDS,
        help=f"valid rounds per point (default and minimum: {FEWEST_ROUNDS})",
    )
    parser.add_argument(
        "--part", action="append", default=[], choices=PARTS, help="run only this part; repeatable (default: all)"
    )
    parser.add_argument(
        "--point", action="append", default=[], choices=NAMES, help="measure only this point; repeatable (default: all)"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=DEFAULT_FOLDER,
        help="folder for vLLM, the model and the results (default: .oracle)",
    )
    parser.add_argument("--port", type=int, default=0, help="port of vLLM on 127.0.0.1 (default: a free one)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of Markdown")
    return parser


if __name__ == "__main__":
    sys.exit(main())
