"""Cost of a preview: CPU seconds compared with a bare program with the same resources, by process and stage.

    python -m authors.benchmarks.preview_cost [--runs N] [--stack S ...] [--engine FILE] [--json | --write]

Both previews run alternately on one local cloud with one engine. Counts the CPU seconds of the whole process tree and takes the least of the runs, because a
busy computer slows a run down but hardly changes its computation. `--write` updates docs/authors/preview-cost.md.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, cast

from authors.benchmarks.bare_program import program
from authors.benchmarks.pages import write_tables
from authors.benchmarks.process_tree import UNSEEN, TreeCost, measured
from contracts.exit_codes import ExitCode

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs" / "authors" / "preview-cost.md"
STACKS: Final = {"tpu-v6e1": 1.1, "l4-12b-qat": 1.3}
"""Stacks, with the maximum CPU seconds of a preview as a multiple of the bare program's."""
DEFAULT_RUNS: Final = 5
IMPORTED: Final = (
    "pulumi",
    "grpc",
    "google",
    "opentelemetry",
    "pydantic",
    "pydantic_core",
    "yaml",
    "planning",
    "stacks",
    "components",
    "contracts",
    "cloud",
)
"""Packages listed separately in the import times."""
NOT_COPIED: Final = ("docs", "tests")
PARTS: Final = (
    ("program", re.compile(r"pulumi-language-python-exec --monitor")),
    ("language host", re.compile(r"language_host\.py|pulumi-language-python ")),
    ("provider gcp-tpu", re.compile(r"gcp-tpu")),
    ("engine", re.compile(r"pulumi .*preview|pulumi preview")),
)
"""Parts and patterns of their command lines. The first match counts."""
_INSIDE: Final = "GEMMA_SERVING_PREVIEW_COST"
"""Folder of the run, set in the process that `localcloud run` starts."""
_STAGES: Final = "GEMMA_SERVING_STAGES"
_LEAST_SHOWN_S: Final = 0.0005

STAGED: Final = '''\
"""The project's program with a note of the CPU seconds after each of its stages."""

import atexit, json, os, time
notes = [("interpreter and SDK", time.process_time())]

def note(stage):
    notes.append((stage, time.process_time()))

def noted(function, stage):
    def call(*args, **kwargs):
        note("between")
        try:
            return function(*args, **kwargs)
        finally:
            note(stage)
    return call

@atexit.register
def write():
    note("the rest: messages to the engine, responses, outputs")
    with open(os.environ["GEMMA_SERVING_STAGES"], "w") as file:
        json.dump(notes, file)

import pulumi
from stacks import program
note("imports before the target is known")
program.loading.from_pulumi = noted(program.loading.from_pulumi, "settings")
program.to_deployment = noted(program.to_deployment, "settings")
program.plan = noted(program.plan, "planning")
deploy = program._deploy
def timed_deploy(context):
    note("findings")
    if context.settings.target == "tpu":
        from stacks import tpu
    else:
        from stacks import cloud_run
    note("imports of the target")
    deploy(context)
    note("declarations")
program._deploy = timed_deploy
program.run()
'''
"""Program that records the stages of a run. A function's time is counted where it is called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackCost:
    """Cost of the preview of one stack."""

    stack: str
    resources: int
    ours: Mapping[str, float]
    """CPU seconds by part, of the run with the least."""
    bare: Mapping[str, float]
    least: Mapping[str, float]
    """CPU seconds of the bare program with the classes of `components.gcp`."""
    stages: Mapping[str, float]
    """CPU seconds of our program by stage."""
    imports: Mapping[str, float]
    """Seconds of our program's imports by package, excluding nested imports."""
    limit: float

    @property
    def ratio(self) -> float:
        """Return our CPU seconds as a multiple of the bare program's."""
        return sum(self.ours.values()) / sum(self.bare.values())


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print. Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m authors.benchmarks.preview_cost", description="A preview's CPU.")
    parser.add_argument("--runs", type=int, default=DEFAULT_RUNS, help="runs of each program; the least one counts")
    parser.add_argument("--stack", action="append", choices=STACKS, help="only this stack; may be repeated")
    parser.add_argument("--engine", type=Path, default=Path(sys.prefix) / "bin" / "pulumi", help="the Pulumi CLI")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="one JSON object on stdout")
    shown.add_argument("--write", action="store_true", help="write the tables to docs/authors/preview-cost.md")
    args = parser.parse_args(argv)
    if args.runs < 1:
        parser.error("--runs must be 1 or more")
    inside = os.environ.get(_INSIDE)
    if inside is None:
        return _outside(list(sys.argv[1:] if argv is None else argv))
    costs = [_stack_cost(Path(inside), stack, args.engine, args.runs) for stack in args.stack or STACKS]
    if args.json:
        print(json.dumps([{**asdict(cost), "ratio": cost.ratio} for cost in costs], indent=2))
    elif args.write:
        write_tables(PAGE, "preview-cost", report(costs))
    else:
        print(report(costs))
    return ExitCode.DONE


def _outside(arguments: Sequence[str]) -> int:
    """Run this command again inside a local cloud."""
    with tempfile.TemporaryDirectory(prefix="preview-cost-") as folder:
        cloud = ["run", "--state", f"{folder}/cloud", "--scenario", "prepared"]
        again = [sys.executable, "-m", "authors.benchmarks.preview_cost", *arguments]
        command = [sys.executable, "-m", "localcloud", *cloud, "--", *again]
        hidden = ("PULUMI_", "GOOGLE_", "CLOUDSDK_")
        environment = {key: value for key, value in os.environ.items() if not key.startswith(hidden)}
        return subprocess.run(command, cwd=ROOT, env={**environment, _INSIDE: folder}, check=False).returncode


def _stack_cost(folder: Path, stack: str, engine: Path, runs: int) -> StackCost:
    ours = _our_project(folder / stack / "ours")
    bare, least = ours.with_name("bare"), ours.with_name("least")
    _pulumi(engine, ours, "stack", "init", stack)
    steps = _json(_pulumi(engine, ours, "preview", "--stack", stack, "--json"))["steps"]
    _bare_project(bare, ours, program(steps))
    _bare_project(least, ours, program(steps, thin=True))
    for project in (ours, bare, least):
        again = _json(_pulumi(engine, project, "preview", "--stack", stack, "--json"))["steps"]
        if (found := _kinds(again)) != (meant := _kinds(steps)):
            raise RuntimeError(f"{project.name}: {sorted(set(found) ^ set(meant))} differ")
    best: dict[Path, TreeCost] = {}
    stages: Mapping[str, float] = {}
    for run in range(runs):
        for project in (ours, bare, least):
            print(f"preview_cost: {stack}, run {run + 1} of {runs}, {project.name}", file=sys.stderr, flush=True)
            cost = _preview(engine, project, stack)
            if project not in best or cost.cpu_s < best[project].cpu_s:
                best[project] = cost
                stages = _stages(ours) if project == ours else stages
    return StackCost(
        stack=stack,
        resources=len(steps),
        ours=best[ours].by_part,
        bare=best[bare].by_part,
        least=best[least].by_part,
        stages=stages,
        imports=_imports(stack, runs),
        limit=STACKS[stack],
    )


def _our_project(target: Path) -> Path:
    """Create a project from this checkout. Settings are copied because the engine writes to them; packages are links."""
    target.mkdir(parents=True)
    for path in ROOT.glob("Pulumi*.yaml"):
        shutil.copy2(path, target)
    for room in ROOT.iterdir():
        if room.is_dir() and not room.name.startswith(".") and room.name not in NOT_COPIED:
            (target / room.name).symlink_to(room)
    (target / ".venv").symlink_to(Path(sys.prefix))
    (target / "__main__.py").write_text(STAGED)
    return target


def _bare_project(target: Path, ours: Path, source: str) -> None:
    target.mkdir()
    (target / "Pulumi.yaml").write_text(
        "name: gemma-serving\nruntime:\n  name: python\n  options:\n    virtualenv: .venv\n"
        "plugins:\n  providers:\n    - name: gcp-tpu\n      path: ./packages/gcp-tpu\n"
    )
    for settings in ours.glob("Pulumi.*.yaml"):
        text = settings.read_text()
        (target / settings.name).write_text("".join(re.findall(r"^(?:encryption|secrets).*\n", text, re.MULTILINE)))
    for name in ("components", "packages", ".venv"):
        (target / name).symlink_to(ours / name)
    shutil.copy2(ROOT / "components" / "gcp_tpu.py", target / "queued_resource.py")
    (target / "__main__.py").write_text(source)


def _pulumi(engine: Path, project: Path, *arguments: str) -> str:
    command = [str(engine), *arguments, "--non-interactive"]
    answer = subprocess.run(
        command, cwd=project, env=_environment(project), capture_output=True, text=True, check=False
    )
    if answer.returncode != 0:
        raise RuntimeError(f"{command} in {project}: {answer.stdout[-3000:]}{answer.stderr[-2000:]}")
    return answer.stdout


def _environment(project: Path) -> Mapping[str, str]:
    return {**os.environ, _STAGES: str(project.parent / "stages.json"), "PULUMI_SKIP_UPDATE_CHECK": "true"}


def _json(text: str) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", json.loads(text[text.index("{") :]))


def _kinds(steps: Sequence[Mapping[str, Any]]) -> Sequence[str]:
    return sorted(step["urn"] for step in steps)


def _preview(engine: Path, project: Path, stack: str) -> TreeCost:
    command = [str(engine), "preview", "--stack", stack, "--json", "--non-interactive"]
    cost = measured(command, folder=project, environment=_environment(project), part=_part)
    if cost.code != 0:
        raise RuntimeError(f"{command} in {project}: {cost.output[-3000:]}")
    return cost


def _part(command: str) -> str:
    return next((part for part, pattern in PARTS if pattern.search(command)), "shells and others")


def _stages(ours: Path) -> Mapping[str, float]:
    """Return the CPU seconds of each stage from the clock's readings after each stage."""
    taken: dict[str, float] = {}
    before_s = 0.0
    for stage, at_s in json.loads((ours.parent / "stages.json").read_text()):
        taken[stage] = taken.get(stage, 0.0) + at_s - before_s
        before_s = at_s
    return {stage: seconds for stage, seconds in taken.items() if seconds >= _LEAST_SHOWN_S}


def _imports(stack: str, runs: int) -> Mapping[str, float]:
    """Return the `-X importtime` results for the program's modules by package, the least of the runs."""
    target = "tpu" if stack.startswith("tpu") else "cloud_run"
    command = [
        sys.executable,
        "-X",
        "importtime",
        "-c",
        f"import stacks.program, stacks.{target}, components.gcp.storage",
    ]
    best: dict[str, float] = {}
    for _ in range(runs):
        answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        found: dict[str, float] = {}
        for microseconds, module in re.findall(r"import time: +(\d+) \| +\d+ \| +(\S+)", answer.stderr):
            package = module.partition(".")[0]
            part = package if package in IMPORTED else "Python itself and its imports"
            found[part] = found.get(part, 0.0) + int(microseconds) / 1e6
        if not best or sum(found.values()) < sum(best.values()):
            best = found
    return dict(sorted(best.items(), key=lambda item: -item[1]))


def report(costs: Sequence[StackCost]) -> str:
    """Return the tables as Markdown."""
    lines = [f"Measured on {datetime.now(UTC):%Y-%m-%d}.", ""]
    lines += ["| stack | resources | our preview | bare program | ratio | maximum | least program | ratio to it |"]
    lines += ["| --- |" + " --- |" * 7]
    for cost in costs:
        ours, bare, least = (sum(each.values()) for each in (cost.ours, cost.bare, cost.least))
        lines.append(
            f"| {cost.stack} | {cost.resources} | {ours:.2f} s | {bare:.2f} s | {cost.ratio:.2f} | {cost.limit} "
            f"| {least:.2f} s | {ours / least:.2f} |"
        )
    for cost in costs:
        lines += ["", f"CPU seconds of `{cost.stack}` by process:", ""]
        lines += ["| process | our preview | bare program | least program |", "| --- |" + " --- |" * 3]
        trees = (cost.ours, cost.bare, cost.least)
        for part in dict.fromkeys([*(part for part, _ in PARTS), *cost.ours, *cost.bare, UNSEEN]):
            if any(part in tree for tree in trees):
                lines.append(f"| {part} | {' | '.join(f'{tree.get(part, 0.0):.2f}' for tree in trees)} |")
        lines += ["", f"CPU seconds of the program of `{cost.stack}` by stage:", "", "| stage | seconds |"]
        lines += ["| --- | --- |", *(f"| {stage} | {seconds:.3f} |" for stage, seconds in cost.stages.items())]
        lines += ["", "Seconds of that program's imports by package, in a separate interpreter (`-X importtime`):", ""]
        lines += ["| package | seconds |", "| --- | --- |"]
        lines += [f"| {package} | {seconds:.3f} |" for package, seconds in cost.imports.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
