"""`python -m authors.nightly`: run every stack with the stand-in of the gcp plugin and with the real plugin, and compare the requests sent.

Each run has a separate local cloud and copy of the project. The engine downloads the real plugin from the network.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from authors import sent

ROOT: Final = Path(__file__).resolve().parents[1]
_KINDS: Final = ("standin", "real")
_LIMIT_S: Final = 3600
_HIDDEN: Final = ("PULUMI_", "GOOGLE_", "CLOUDSDK_")
"""Prefixes of variables that must not reach the stacks, because they refer to a real project."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NightlyOutcome:
    """Comparison of one stack. If `differences` is None, a run failed and `detail` is the end of its output."""

    stack: str
    seconds: float
    compared: int = 0
    differences: tuple[str, ...] | None = None
    detail: str = ""

    @property
    def is_same(self) -> bool:
        """Return whether both runs succeeded and sent the same."""
        return self.differences == ()


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if nothing differs, 1 if something does or a stack failed, 2 if the command line is rejected."""
    options = _parser().parse_args(arguments)
    known = stacks()
    unknown = [name for name in options.stack if name not in known]
    if unknown:
        print(f"nightly: stack '{unknown[0]}' not found. Stacks: {', '.join(known)}.", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    outcomes: list[NightlyOutcome] = []
    for stack in options.stack or known:
        print(f"nightly: {stack}, {options.first} and {options.second}", file=sys.stderr, flush=True)
        outcomes.append(drive(stack, (options.first, options.second), options.out))
        print(line(outcomes[-1]), file=sys.stderr, flush=True)
    text = summary(outcomes, options.first, options.second)
    print(json.dumps([as_json(each) for each in outcomes], indent=1) if options.json else text)
    target = os.environ.get("GITHUB_STEP_SUMMARY")
    if target:
        with Path(target).open("a", encoding="utf-8") as stream:
            stream.write(text + "\n")
    return 0 if all(each.is_same for each in outcomes) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m authors.nightly", description=__doc__)
    parser.add_argument("--stack", action="append", default=[], metavar="NAME", help="only this stack; repeatable")
    parser.add_argument(
        "--first", choices=_KINDS, default="standin", help="the plugin of the first run (default: standin)"
    )
    parser.add_argument("--second", choices=_KINDS, default="real", help="the plugin of the second run (default: real)")
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / ".work" / "nightly",
        help="folder for request logs and output (default: .work/nightly)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON list instead of a table")
    return parser


def stacks() -> list[str]:
    """Return the names of all stacks."""
    return sorted(path.name.removeprefix("Pulumi.").removesuffix(".yaml") for path in ROOT.glob("Pulumi.*.yaml"))


def drive(stack: str, kinds: tuple[str, str], out: Path) -> NightlyOutcome:
    """Run the lifecycle of a stack with both plugins and compare the requests sent."""
    began = time.monotonic()
    logs: list[Path] = []
    for number, kind in enumerate(kinds, start=1):
        requests = out / f"{stack}.{number}-{kind}.json"
        log = out / f"{stack}.{number}-{kind}.log"
        requests.unlink(missing_ok=True)
        code = _live(stack, kind, requests, log)
        if code != 0:
            tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-40:])
            seconds = time.monotonic() - began
            return NightlyOutcome(stack=stack, seconds=seconds, detail=f"{kind}: exit code {code}, {log}\n{tail}")
        logs.append(requests)
    return _compared(stack, logs[0], logs[1], began)


def _live(stack: str, kind: str, log_of_requests: Path, log: Path) -> int:
    python = sys.executable
    with tempfile.TemporaryDirectory(prefix="nightly-") as folder, log.open("w", encoding="utf-8") as stream:
        copy = Path(folder) / "project"
        copy_project(copy)
        command = [python, "-m", "localcloud", "run", "--providers", kind, "--scenario", "prepared", "--"]
        command += [str(copy / "authors" / "stack_life.sh"), stack, str(log_of_requests.resolve())]
        environment = {key: value for key, value in os.environ.items() if not key.startswith(_HIDDEN)}
        done = subprocess.run(
            command, cwd=copy, env=environment, stdout=stream, stderr=stream, check=False, timeout=_LIMIT_S
        )
    return done.returncode


def copy_project(target: Path) -> None:
    """Copy the project's working tree without ignored files."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        source = ROOT / name
        if source.is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_bytes(source.read_bytes())
            (target / name).chmod(source.stat().st_mode)
    (target / ".venv").symlink_to(Path(sys.prefix))


def _compared(stack: str, first: Path, second: Path, began: float) -> NightlyOutcome:
    one, two = (json.loads(path.read_text(encoding="utf-8")) for path in (first, second))
    compared, found = sent.compare(one, two)
    seconds = time.monotonic() - began
    return NightlyOutcome(stack=stack, seconds=seconds, compared=compared, differences=tuple(map(str, found)))


def line(outcome: NightlyOutcome) -> str:
    """Return the outcome of one stack as a line."""
    if outcome.differences is None:
        said = "failed"
    else:
        count = len(outcome.differences)
        said = f"{outcome.compared} changes, " + (f"{count} differences" if count else "no difference")
    return f"nightly: {outcome.stack}: {said} ({outcome.seconds:.0f} s)"


def summary(outcomes: Sequence[NightlyOutcome], first: str, second: str) -> str:
    """Return all outcomes as Markdown."""
    lines = [f"### What {first} and {second} sent", "", "| stack | changes | result |", "| --- | --- | --- |"]
    for each in outcomes:
        count = None if each.differences is None else len(each.differences)
        result = "failed" if count is None else f"{count} differences" if count else "the same"
        lines.append(f"| {each.stack} | {each.compared} | {result} |")
    for each in outcomes:
        if not each.is_same:
            lines += ["", f"{each.stack}:", "", "```", *(each.differences or (each.detail,)), "```"]
    return "\n".join(lines)


def as_json(outcome: NightlyOutcome) -> dict[str, object]:
    """Return the outcome as a JSON object."""
    differences = None if outcome.differences is None else list(outcome.differences)
    return {
        "stack": outcome.stack,
        "same": outcome.is_same,
        "changes": outcome.compared,
        "differences": differences,
        "detail": outcome.detail,
    }


if __name__ == "__main__":
    sys.exit(main())
