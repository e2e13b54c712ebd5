"""Cost of a preview: CPU seconds compared with a bare program with the same resources, by process.

    python -m dev.judges.benchmarks.preview_cost [--runs N] [--write]

The bare program corresponds to a handwritten one with all values known in advance: plain `pulumi` and `pulumi_gcp`, no plan, settings or hooks.

Both previews run alternately on one local cloud with one engine. Counts the CPU seconds of the whole process tree and takes the least of the runs, because a
busy computer slows a run down but hardly changes its computation. `--write` updates dev/docs/measurements.md. Exit code 1 above a maximum.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, cast

from dev.authors.in_local_cloud import copy_project, inside_folder, run_inside
from dev.authors.tables import table
from dev.judges.benchmarks.process_tree import UNSEEN, TreeCost, measure_process_tree
from dev.judges.planted import refuse_planted
from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.contracts.resource_types import CAPACITY_TYPE
from gemma_serving.contracts.settings_files import shipped_files
from gemma_serving.engine.exported_state import SECRET_SIGNATURE, UNKNOWN

ROOT: Final = Path(__file__).resolve().parents[3]
PAGE: Final = ROOT / "dev" / "docs" / "measurements.md"
STACKS: Final = {"tpu-v6e1": 1.45, "l4-12b-qat": 1.45}
"""Stacks, with the maximum CPU seconds of a preview as a multiple of the bare program's. Both programs load the SDK's modules; ours also plans."""
DEFAULT_RUNS: Final = 5
_ENVIRONMENT: Final = {**os.environ, "PULUMI_SKIP_UPDATE_CHECK": "true"}
ENGINE: Final = str(Path(sys.prefix) / "bin" / "pulumi")
PARTS: Final = {
    "program": r"pulumi-language-python-exec --monitor",
    "language host": r"language_host\.py|pulumi-language-python ",
    "provider gcp-tpu": r"gcp-tpu",
    "engine": r"pulumi .*preview|pulumi preview",
}
"""Patterns of command lines by part."""
_HEAD: Final = """\
import pulumi
import pulumi_gcp as gcp

made = {}
"""
_COMPONENT: Final = "gemma-serving:"
_PROVIDER: Final = "pulumi:providers:gcp"
_STACK: Final = "pulumi:pulumi:Stack"
_LATER: Final = "known-after-up"

Step = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StackCost:
    """Cost of the preview of one stack."""

    stack: str
    resources: int
    ours: Mapping[str, float]
    """CPU seconds by part, of the run with the least."""
    bare: Mapping[str, float]

    @property
    def ratio(self) -> float:
        """Our CPU seconds as a multiple of the bare program's."""
        return sum(self.ours.values()) / sum(self.bare.values())


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print. Return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m dev.judges.benchmarks.preview_cost", description="A preview's CPU."
    )
    parser.add_argument("--runs", type=int, default=DEFAULT_RUNS, help="runs of each program; the least one counts")
    parser.add_argument("--write", action="store_true", help="write the table to dev/docs/measurements.md")
    args = parser.parse_args(argv)
    planted_lie()
    inside = inside_folder()
    if inside is None:
        arguments = sys.argv[1:] if argv is None else argv
        with tempfile.TemporaryDirectory(prefix="preview-cost-") as folder:
            here = "dev.judges.benchmarks.preview_cost"
            return run_inside(Path(folder), here, *arguments, scenario="prepared", project=ROOT)
    costs = [_stack_cost(inside, stack, args.runs) for stack in STACKS]
    tables = report(costs, by_process=not args.write)
    code = ExitCode.FAILED if above_maximum(costs) else ExitCode.DONE
    if not args.write:
        print(tables)
        return code
    before, mark, rest = PAGE.read_text(encoding="utf-8").partition("<!-- benchmark: preview-cost -->")
    _, end, after = rest.partition("<!-- end -->")
    PAGE.write_text(f"{before}{mark}\n\n{tables}\n{end}{after}", encoding="utf-8")
    return code


def above_maximum(costs: Sequence[StackCost]) -> Sequence[str]:
    """Return the stacks whose preview costs more than its maximum."""
    return [cost.stack for cost in costs if cost.ratio > STACKS[cost.stack]]


def planted_lie() -> None:
    """Refuse the claim that a preview costs no more than its maximum if it takes twice the bare program's time."""
    costs = [StackCost(stack=stack, resources=1, ours={"": 2.0}, bare={"": 1.0}) for stack in STACKS]
    refuse_planted("twice the bare program is below the maximum", lambda: above_maximum(costs))


def _stack_cost(folder: Path, stack: str, runs: int) -> StackCost:
    ours = folder / stack / "ours"
    copy_project(ROOT, ours)
    bare = ours.with_name("bare")
    _pulumi(ours, "stack", "init", stack)
    steps = _steps(ours, stack)
    _bare_project(bare, ours, program(steps))
    found = {step["urn"] for step in _steps(bare, stack)}
    meant = {step["urn"] for step in steps}
    if found != meant:
        raise RuntimeError(f"{sorted(found ^ meant)} differ")
    best: dict[Path, TreeCost] = {}
    for run in range(runs):
        for project in (ours, bare):
            print(f"preview_cost: {stack}, run {run + 1} of {runs}, {project.name}", file=sys.stderr, flush=True)
            cost = _preview(project, stack)
            if project not in best or cost.cpu_s < best[project].cpu_s:
                best[project] = cost
    parts = {project.name: cost.by_part for project, cost in best.items()}
    return StackCost(stack=stack, resources=len(steps), **parts)


def _bare_project(target: Path, ours: Path, source: str) -> None:
    target.mkdir()
    (target / "Pulumi.yaml").write_text(
        "name: gemma-serving\nruntime:\n  name: python\n  options:\n    virtualenv: .venv\n"
        "plugins:\n  providers:\n    - name: gcp-tpu\n      path: ./packages/gcp-tpu\n"
    )
    for settings in shipped_files(ours):
        text = settings.read_text()
        (target / settings.name).write_text("".join(re.findall(r"^(?:encryption|secrets).*\n", text, re.MULTILINE)))
    for name in ("components", "packages", ".venv"):
        (target / name).symlink_to(ours / name)
    (target / "__main__.py").write_text(source)


def _pulumi(project: Path, *arguments: str) -> str:
    command = [ENGINE, *arguments, "--non-interactive"]
    answer = subprocess.run(command, cwd=project, env=_ENVIRONMENT, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise RuntimeError(f"{command} in {project}: {answer.stdout[-3000:]}{answer.stderr[-2000:]}")
    return answer.stdout


def _steps(project: Path, stack: str) -> Sequence[Step]:
    text = _pulumi(project, "preview", "--stack", stack, "--json")
    return json.loads(text[text.index("{") :])["steps"]


def _preview(project: Path, stack: str) -> TreeCost:
    command = [ENGINE, "preview", "--stack", stack, "--json", "--non-interactive"]
    cost = measure_process_tree(command, folder=project, environment=_ENVIRONMENT, parts=PARTS)
    if cost.code != 0:
        raise RuntimeError(f"{command} in {project}: {cost.output[-3000:]}")
    return cost


def program(steps: Sequence[Step]) -> str:
    """Return the source of the program for the steps of `pulumi preview --json`."""
    resources = [step["newState"] for step in steps if step["newState"]["type"] != _STACK]
    lines = [_HEAD, *(line for resource in resources for line in _declared(resource))]
    return "\n".join(lines) + "\n"


def _declared(resource: Mapping[str, Any]) -> Iterator[str]:
    """Yield the statement that declares one resource."""
    type_, urn = resource["type"], resource["urn"]
    name = urn.rpartition("::")[2]
    inputs = _given(resource.get("inputs", {}))
    options = f"opts=pulumi.ResourceOptions({', '.join(_options(resource))})"
    if type_.startswith(_COMPONENT):
        yield f"made[{urn!r}] = pulumi.ComponentResource({type_!r}, {name!r}, None, {options})"
        return
    if type_ == CAPACITY_TYPE:
        yield f"made[{urn!r}] = pulumi.CustomResource({type_!r}, {name!r}, {inputs!r}, {options})"
        return
    if type_ == _PROVIDER:
        inputs.pop("version", None)
        # The engine keeps a provider's settings as JSON texts.
        inputs = {key: json.loads(value) if value in ("true", "false") else value for key, value in inputs.items()}
    arguments = ", ".join(f"{_snake_case(key)}={value!r}" for key, value in sorted(inputs.items()))
    class_ = _class(type_)
    given = arguments if type_ == _PROVIDER else f"{class_}Args({arguments})"
    yield f"made[{urn!r}] = {class_}({', '.join(filter(None, (repr(name), given, options)))})"


def _options(resource: Mapping[str, Any]) -> Iterator[str]:
    parent = resource.get("parent", "")
    if parent and f"::{_STACK}::" not in parent:
        yield f"parent=made[{parent!r}]"
    provider = str(resource.get("provider", "")).rpartition("::")[0]
    if provider and "default" not in provider:
        yield f"provider=made[{provider!r}]"
    if resource.get("protect"):
        yield "protect=True"


def _class(type_: str) -> str:
    """Return the SDK's class of a type: `gcp:storage/bucket:Bucket` is `gcp.storage.Bucket`."""
    if type_ == _PROVIDER:
        return "gcp.Provider"
    package, module, name = type_.split(":")
    if package != "gcp":
        raise ValueError(f"no bare declaration exists for the type {type_}")
    return f"gcp.{module.partition('/')[0]}.{name}"


def _given(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs of the program, without those that the provider added."""
    added = inputs.get("__defaults", [])
    return {key: _value(value) for key, value in inputs.items() if key not in added and not key.startswith("__")}


def _value(value: Any) -> Any:  # noqa: ANN401  JSON
    """Return a value that the program can use, with another text if the engine only reports a secret or an unknown value."""
    if isinstance(value, dict):
        entries = cast("Mapping[str, Any]", value)
        return _LATER if SECRET_SIGNATURE[0] in entries else _given(entries)
    if isinstance(value, list):
        return [_value(item) for item in cast("Sequence[Any]", value)]
    return _LATER if value in (UNKNOWN, "[secret]") else value


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])[A-Z]", lambda letter: f"_{letter.group()}", name).lower()


def report(costs: Sequence[StackCost], *, by_process: bool) -> str:
    """Return the table of all stacks as Markdown, and with `by_process` one for each."""
    head = "stack | resources | our preview | bare program | ratio | maximum"
    rows: list[Sequence[object]] = []
    parts: list[str] = []
    for cost in costs:
        trees = (cost.ours, cost.bare)
        ours = sum(cost.ours.values())
        bare = sum(cost.bare.values())
        ratios = (f"{bare:.2f} s", f"{cost.ratio:.2f}", STACKS[cost.stack])
        rows.append((cost.stack, cost.resources, f"{ours:.2f} s", *ratios))
        names = dict.fromkeys([*PARTS, *cost.ours, *cost.bare, UNSEEN])
        processes = [
            (name, *(f"{tree.get(name, 0.0):.2f}" for tree in trees))
            for name in names
            if any(name in tree for tree in trees)
        ]
        parts += [
            f"CPU seconds of `{cost.stack}` by process:\n",
            table("process | our preview | bare program", processes),
        ]
    return "\n".join(
        [f"Measured on {datetime.now(UTC):%Y-%m-%d}.\n", table(head, rows), *(parts if by_process else ())]
    )


if __name__ == "__main__":
    sys.exit(main())
