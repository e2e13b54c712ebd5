"""`python -m judges.real` (`make -C judges real`): judge the simulated parts with real Docker, gcsfuse, vLLM and provider plugins.

Each part gets what it needs on this machine, runs, and ends what it started. A judge that this machine cannot have is "not judged".
"""

import argparse
import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from judges.real.answers import judge_answers
from judges.real.docker import judge_docker
from judges.real.docker_plugin import docker_plugin
from judges.real.docker_server import judge_tpu_server
from judges.real.docker_start import judge_start
from judges.real.gcp_plugin import gcp_plugin
from judges.real.home import DEFAULT_FOLDER, RealHome
from judges.real.images import images
from judges.real.mount import judge_mount
from judges.real.rows import DifferenceError, NotJudgedError, Row, RowVerdict, documents, markdown, print_progress
from judges.real.server import judge_server

Part = Callable[[RealHome], Sequence[Row]]


PARTS: Final[Mapping[str, Part]] = {
    "docker": judge_docker,
    "start": judge_start,
    "tpu-server": judge_tpu_server,
    "server": judge_server,
    "answers": judge_answers,
    "mount": judge_mount,
    "docker-plugin": docker_plugin,
    "images": images,
    "gcp-plugin": gcp_plugin,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if nothing failed, 1 if something failed, 2 if nothing could be judged, 130 if interrupted."""
    options = _parser().parse_args(arguments)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    home = RealHome(folder=options.folder.resolve())
    shutil.rmtree(home.results, ignore_errors=True)
    home.results.mkdir(parents=True)
    rows: list[Row] = []
    try:
        for name in options.part or PARTS:
            print_progress(f"part {name}")
            rows += run_part(name, home)
    except KeyboardInterrupt:
        print_progress("interrupted. Everything that the run started was stopped.")
        return 130
    text = markdown(rows)
    (home.results / "report.md").write_text(text + "\n", encoding="utf-8")
    print(json.dumps({"rows": documents(rows)}, indent=2) if options.json else text)
    if target := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(target).open("a", encoding="utf-8") as stream:
            stream.write(text + "\n")
    return exit_code(rows)


def run_part(name: str, home: RealHome) -> Sequence[Row]:
    """Run one part. If its judge is missing, or the part breaks off, that is its only row. The lines of progress have the others."""
    try:
        return PARTS[name](home)
    except NotJudgedError as reason:
        return [Row(judge=name, version="", judged="everything", verdict=RowVerdict.NOT_JUDGED, note=str(reason))]
    except DifferenceError as difference:
        return [Row(judge=name, version="", judged="the part", verdict=RowVerdict.FAILED, note=str(difference))]
    except Exception as error:  # noqa: BLE001 - one part's own fault must not lose the rows of the others
        traceback.print_exc()
        return [Row(judge=name, version="", judged="the part", verdict=RowVerdict.FAILED, note=repr(error))]


def exit_code(rows: Sequence[Row]) -> int:
    """Return the exit code of a run."""
    verdicts = {row.verdict for row in rows}
    return 1 if RowVerdict.FAILED in verdicts else 0 if RowVerdict.PASSED in verdicts else 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m judges.real", description=__doc__)
    parser.add_argument("--part", action="append", choices=tuple(PARTS), help="only this part; repeatable")
    parser.add_argument("--folder", type=Path, default=DEFAULT_FOLDER, help="folder of the installed parts and results")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
