"""`localcloud compare`: replay a recording against a fresh local cloud, or compare it with another recording."""

import argparse
import asyncio
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import aiohttp

from localcloud.recording.beginnings import Beginning, beginning, prepare
from localcloud.recording.differences import Report
from localcloud.recording.recordings import Recording, read
from localcloud.recording.replay import Limits, Replay
from localcloud.recording.sent import compare_sent
from localcloud.running.simulated import simulated_runtimes
from localcloud.server.app import Options, RuntimeFactory, open_cloud
from localcloud.world.clock import Clock
from localcloud.world.cloud import Cloud, Runtimes
from localcloud.world.scenario import Scenario, Services
from localcloud.world.scenario import load as load_scenario

_SPEED: Final = 10.0
"""Simulated seconds in one real second while requests pass. The clock is advanced to the recorded times besides."""
_PROCESS_SPEED: Final = 200.0
"""The same for the servers that services and machines start."""
_HOME: Final = "replay-home"
_WIDTHS: Final = (6, 52)


def compare_files(options: argparse.Namespace) -> int:
    """Follow the command line: print the differences and return 1 if there are any. Raises RecordingError and ScenarioError."""
    recording = read(options.file)
    if options.other is not None:
        report = compare_sent(recording, read(options.other))
    else:
        scenario = load_scenario(options.scenario) if options.scenario else None
        report = asyncio.run(compare(recording, scenario))
    print(json.dumps(report.as_json(), indent=1) if options.json else table(report))
    return 1 if report.found else 0


async def compare(
    recording: Recording,
    scenario: Scenario | None = None,
    *,
    runtimes: RuntimeFactory | None = None,
    limits: Limits | None = None,
) -> Report:
    """Return how a fresh local cloud differs from what was recorded. Without a scenario, it has the APIs enabled that the recording shows."""
    found = beginning(recording.exchanges)
    with TemporaryDirectory(prefix="localcloud-", ignore_cleanup_errors=True) as folder:
        wanted = Options(project=_HOME, speed=_SPEED, scenario=scenario or _scenario(found))
        opened = await open_cloud(Path(folder), wanted, runtimes or _fast_runtimes)
        try:
            prepare(opened.cloud, found)
            async with aiohttp.ClientSession(auto_decompress=True) as session:
                return await Replay(opened.cloud, recording, session, limits or Limits()).run()
        finally:
            await opened.close()


def table(report: Report) -> str:
    """Return the report as text for people."""
    lines: list[str] = []
    method = ""
    for key, each in sorted(report.found.items()):
        if each.method != method:
            method = each.method
            lines.append(f"{method} ({report.compared.get(method, 0)} exchanges)")
        times = f" ({report.counts[key]} times)" if report.counts[key] > 1 else ""
        lines.append(
            f"  {each.what:<{_WIDTHS[0]}} {each.where:<{_WIDTHS[1]}} recorded: {each.recorded} | here: {each.here}{times}"
        )
    count = len(report.found)
    total = f"{sum(report.compared.values())} exchanges of {len(report.compared)} methods compared"
    lines.append(
        f"{total}: {f'{count} differences' if count != 1 else '1 difference'}." if count else f"{total}: no difference."
    )
    lines += [f"Not compared: {number} {reason}." for reason, number in sorted(report.left_out.items())]
    return "\n".join(lines)


def _scenario(found: Beginning) -> Scenario:
    return Scenario() if found.services is None else Scenario(services=Services(enabled=found.services))


def _fast_runtimes(cloud: Cloud) -> Runtimes:
    return simulated_runtimes(cloud, clock=Clock(speed=_PROCESS_SPEED))
