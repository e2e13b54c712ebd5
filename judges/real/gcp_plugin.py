"""The real pulumi-gcp runs every stack that builds no image: the tests of tests/nightly, one row for each stack and project."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from contracts.settings_files import shipped_files
from judges.real.home import ROOT, RealHome
from judges.real.junit import pytest_results
from judges.real.plugins import get_plugin, pulumi_home
from judges.real.rows import NotJudgedError, Row, RowVerdict, print_progress
from planning.data.images import IMAGES

JUDGE: Final = "pulumi-gcp"
TESTS: Final = "tests/nightly"
CLAIMS: Final = {
    "test_both_plugins_send_the_same": "{}, prepared project: up, no changes, a change, teardown; requests as the stand-in's",
    "test_a_stack_lives_in_a_new_project_by_the_printed_commands_alone": "{}, new project: up by the printed commands alone, teardown",
    "test_gemma_up_is_refused_without_quota_before_anything_is_created": "{}, new project without quota: refused, nothing created",
    "test_what_the_real_plugin_refuses_is_refused_here": "each changed field that it refuses is refused by the stand-in or the local cloud",
}
"""Claim of each test. `{}` is the stack's name."""
STACK_TESTS: Final = tuple(name for name, claim in CLAIMS.items() if "{}" in claim)
WORKERS: Final = 2
LIMIT_S: Final = 3 * 3600
_END_LIMIT_S: Final = 60
_NOTE_LIMIT: Final = 400


def gcp_plugin(home: RealHome) -> Sequence[Row]:
    """Run the tests of tests/nightly with the real plugin, without the stacks that need Docker to build their image."""
    version = get_plugin(home, "gcp")
    stacks = unbuilt_stacks()
    print_progress(f"{len(stacks)} stacks in two projects with {JUDGE} {version}, log: {home.results / 'nightly.log'}")
    results = home.results / "nightly.xml"
    results.unlink(missing_ok=True)
    _run_tests([*_chosen(stacks), "-n", str(WORKERS), f"--junitxml={results}"], home.results / "nightly.log")
    if not results.is_file():
        raise NotJudgedError(f"pytest wrote no results: {_last_line(home.results / 'nightly.log')}")
    return list(rows_of(results.read_text(encoding="utf-8"), version))


def unbuilt_stacks() -> list[str]:
    """Return the stacks of this repository whose image is not built."""
    built = re.compile(rf"^ *gemma-serving:image: ({'|'.join(_built_images())})\s*$", re.MULTILINE)
    files = shipped_files(ROOT)
    return [path.name.split(".")[1] for path in files if not built.search(path.read_text(encoding="utf-8"))]


def rows_of(results: str, version: str) -> Iterator[Row]:
    """Yield the row of each test in pytest's results (JUnit XML). A skipped test was not judged."""
    for result in pytest_results(results):
        name, _, stack = result.name.removesuffix("]").partition("[")
        if name not in CLAIMS:
            continue
        is_skipped = result.skipped is not None
        verdict = RowVerdict.FAILED if result.failures else RowVerdict.NOT_JUDGED if is_skipped else RowVerdict.PASSED
        yield Row(
            judge=JUDGE,
            version=version,
            judged=CLAIMS[name].format(stack),
            verdict=verdict,
            note=_reason(result.failures[0] if result.failures else result.skipped or ""),
            took_s=round(result.took_s, 1),
        )


def _reason(message: str) -> str:
    """Return the first error of the engine in a test's message, or else its start."""
    errors = re.findall(r"error: (?!update failed|preview failed).*", message)
    return " ".join((errors[0] if errors else message).split())[:_NOTE_LIMIT]


def _built_images() -> list[str]:
    return [re.escape(name) for name, image in IMAGES.items() if image.build_context]


def _chosen(stacks: Sequence[str]) -> list[str]:
    """Return the tests to run, as pytest names them."""
    return [
        *(f"{TESTS}/test_real_plugin.py::{name}[{stack}]" for name in STACK_TESTS for stack in stacks),
        f"{TESTS}/test_refusals.py::test_what_the_real_plugin_refuses_is_refused_here",
    ]


def _run_tests(arguments: Sequence[str], log: Path) -> None:
    """Run pytest to its end. If interrupted or too slow, it gets Ctrl-C, so that its tests end their local clouds."""
    environment = {**os.environ, "GEMMA_SERVING_NIGHTLY": "1", "PULUMI_HOME": str(pulumi_home())}
    command = [sys.executable, "-m", "pytest", "-c", "pyproject.toml", "-v", *arguments]
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
        try:
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=LIMIT_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=_END_LIMIT_S)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "no output"
