"""`python -m scripts.demo` (`make demo`): both baseline stacks through their whole life on the local cloud, with the real Pulumi engine.

The cloud is simulated; everything else is the project as it stands: settings, planner, components, provider, scripts. It works in a copy below `.work/demo`, so
that the checkout stays as it was.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from rich.console import Console
from rich.table import Table

from scripts import engine, google_api
from scripts.errors import DONE, FAILED, INTERRUPTED

STACKS = ("tpu-v6e4", "l4-qat")
NEW_MAX_MODEL_LEN = 8192
"""The serving flag that is changed in place."""

_INSIDE = "GEMMA_SERVING_DEMO_FOLDER"
_STEP_LIMIT_S = 300.0
_SHOWN_LINES = 30
_COPIED = ("*.yaml", "*.txt", "*.in", "*.toml", "__main__.py", "Makefile")
_ROOMS = ("components", "localcloud", "planning", "provider", "scripts", "stacks", "tools")
_TOKEN = "hf_simulated_token_of_the_demo"  # noqa: S105  goes to the local cloud only, and nowhere in clear

_console = Console(highlight=False)


class StepError(Exception):
    """A step did not do what it had to; the message says what was seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One line of the summary."""

    stack: str
    name: str
    seconds: float
    result: str


@dataclass(slots=True)
class Demo:
    """Runs steps, times them and keeps their output in files."""

    folder: Path
    steps: list[Step] = field(default_factory=list["Step"])

    def step(self, stack: str, name: str, action: Callable[[], str]) -> None:
        """Run one step and print its line. Raises StepError."""
        started_s = time.monotonic()
        try:
            result = action()
        except StepError as error:
            seconds = time.monotonic() - started_s
            self.steps.append(Step(stack=stack, name=name, seconds=seconds, result="FAILED"))
            _console.print(f"  [red]failed[/red]  {name} ({seconds:.1f} s)", markup=True)
            _console.print(str(error), markup=False)
            raise
        seconds = time.monotonic() - started_s
        self.steps.append(Step(stack=stack, name=name, seconds=seconds, result=result))
        _console.print(f"  {seconds:5.1f} s  {name}: {result}", markup=False)

    def call(
        self, stack: str, name: str, command: Sequence[str], *, stdin: str | None = None, allowed: Sequence[int] = (0,)
    ) -> str:
        """Run a command of the demo and return its stdout; what it printed is kept in a file. Raises StepError with its last lines."""
        log = self.folder / "logs" / f"{len(self.steps):02d}-{stack}-{name.replace(' ', '-')}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        try:
            answer = subprocess.run(
                list(command),
                cwd=self.folder / "project",
                capture_output=True,
                text=True,
                timeout=_STEP_LIMIT_S,
                check=False,
                input=stdin if stdin is not None else "",
            )
        except subprocess.TimeoutExpired:
            raise StepError(
                f"`{' '.join(command[:4])} ...` did not end within {_STEP_LIMIT_S:.0f} s; see {log}"
            ) from None
        log.write_text(
            f"$ {' '.join(command)}\n{answer.stdout}\n{answer.stderr}\nexit code {answer.returncode}\n",
            encoding="utf-8",
        )
        if answer.returncode not in allowed:
            last = "\n".join((answer.stdout + "\n" + answer.stderr).strip().splitlines()[-_SHOWN_LINES:])
            raise StepError(
                f"`{' '.join(command[:4])} ...` ended with exit code {answer.returncode}; its last lines were:\n{last}\nAll of it: {log}"
            )
        return answer.stdout


def main() -> int:
    """Run the demo; exit code 0 when every step did what it had to."""
    inside = os.environ.get(_INSIDE)
    try:
        return _inside(Path(inside)) if inside else _outside()
    except KeyboardInterrupt:
        print("demo: interrupted; the local cloud is gone and with it everything that ran", file=sys.stderr)
        return INTERRUPTED


def _outside() -> int:
    """Make the copy and start the local cloud around the demo itself."""
    root = engine.project_folder()
    folder = root / ".work" / "demo"
    shutil.rmtree(folder, ignore_errors=True)
    _copy(root, folder / "project")
    _console.print(
        "[bold]The cloud of this demo is simulated[/bold]: a local one on this machine. The Pulumi engine, the program and the scripts are real."
    )
    command = [
        sys.executable,
        "-m",
        "localcloud",
        "run",
        "--state",
        str(folder / "cloud"),
        "--",
        sys.executable,
        "-m",
        "scripts.demo",
    ]
    hidden = ("PULUMI_BACKEND_URL", "PULUMI_CONFIG_PASSPHRASE", "GOOGLE_CLOUD_PROJECT", "GOOGLE_PROJECT")
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    process = subprocess.Popen(
        command, cwd=folder / "project", env={**environment, _INSIDE: str(folder)}, stdin=subprocess.DEVNULL
    )
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.wait(timeout=30)
        raise


def _copy(root: Path, target: Path) -> None:
    target.mkdir(parents=True)
    for pattern in _COPIED:
        for path in root.glob(pattern):
            shutil.copy2(path, target / path.name)
    for room in _ROOMS:
        shutil.copytree(root / room, target / room, ignore=shutil.ignore_patterns("__pycache__"))
    (target / ".venv").symlink_to(Path(sys.prefix))


def _inside(folder: Path) -> int:
    demo = Demo(folder)
    started_s = time.monotonic()
    failed = False
    for stack in STACKS:
        _console.print(f"\n[bold]{stack}[/bold]")
        try:
            _life(demo, stack)
        except StepError:
            failed = True
    _summary(demo, time.monotonic() - started_s, failed=failed)
    return FAILED if failed else DONE


def _life(demo: Demo, stack: str) -> None:
    """One stack from nothing to nothing."""
    pulumi = engine.pulumi()
    python = [sys.executable, "-m"]
    shared = ["--non-interactive", "--stack", stack]
    on_tpu = stack.startswith("tpu")

    def run(name: str, command: Sequence[str], *, stdin: str | None = None) -> str:
        return demo.call(stack, name, command, stdin=stdin)

    demo.step(stack, "init", lambda: _init(demo, stack, with_token=on_tpu))
    if not on_tpu:
        demo.step(stack, "stage weights", lambda: _stage(demo, stack))
    demo.step(stack, "preview", lambda: _preview(run("preview", [pulumi, "preview", "--json", *shared])))
    demo.step(stack, "up", lambda: _up(run("up", [pulumi, "up", "--yes", "--skip-preview", "--json", *shared])))
    demo.step(stack, "smoke", lambda: _smoke(run("smoke", [*python, "scripts.smoke", "--stack", stack, "--json"])))
    demo.step(
        stack,
        "up again",
        lambda: (
            "no changes"
            + run("up again", [pulumi, "up", "--yes", "--skip-preview", "--expect-no-changes", *shared])[:0]
        ),
    )
    before = _capacity(demo.folder, stack) if on_tpu else None
    demo.step(stack, "change a flag", lambda: _change(demo, stack))
    if on_tpu:
        demo.step(stack, "capacity untouched", lambda: _untouched(before, _capacity(demo.folder, stack)))
    demo.step(
        stack,
        "new flag serves",
        lambda: _smoke(run("smoke again", [*python, "scripts.smoke", "--stack", stack, "--json"])),
    )
    demo.step(
        stack,
        "teardown",
        lambda: _teardown(run("teardown", [*python, "scripts.teardown", "--stack", stack, "--yes", "--json"])),
    )


def _init(demo: Demo, stack: str, *, with_token: bool) -> str:
    pulumi = engine.pulumi()
    demo.call(stack, "init", [pulumi, "stack", "init", stack, "--non-interactive"])
    if with_token:
        demo.call(
            stack,
            "set token",
            [pulumi, "config", "set", "--secret", "hfToken", "--stack", stack, "--non-interactive"],
            stdin=_TOKEN,
        )
        return "stack made, token stored as a secret"
    return "stack made"


def _stage(demo: Demo, stack: str) -> str:
    """Stage a checkpoint that has the right names and no weights: the simulated server takes its size from the model's name."""
    folder = demo.folder / "checkpoint"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text('{"model_type": "gemma4"}\n')
    (folder / "model.safetensors").write_bytes(b"\0" * 1024)
    command = [sys.executable, "-m", "scripts.stage_model", "--stack", stack, "--from", str(folder), "--json"]
    report = _json(demo.call(stack, "stage", command))
    return f"bucket made, {report['copied']} simulated files in gs://{report['bucket']}/{report['prefix']}"


def _preview(output: str) -> str:
    summary = cast("Mapping[str, int]", _json(output).get("changeSummary") or {})
    return ", ".join(f"{count} to {op}" for op, count in sorted(summary.items())) or "nothing to do"


def _up(output: str) -> str:
    """`pulumi up --json` prints one event or object a line; the summary's counts are all that is shown."""
    changes = 0
    for line in output.splitlines():
        changes += '"resOutputsEvent"' in line
    return f"{changes} resources done" if changes else "done"


def _smoke(output: str) -> str:
    report = _json(output)
    return str(report.get("summary") or report.get("verdict") or "all checks passed")


def _change(demo: Demo, stack: str) -> str:
    pulumi = engine.pulumi()
    shared = ["--non-interactive", "--stack", stack]
    key = "gemma-serving:vllm.maxModelLen"
    demo.call(
        stack,
        "config set",
        [pulumi, "config", "set", "--path", key, str(NEW_MAX_MODEL_LEN), "--stack", stack, "--non-interactive"],
    )
    preview = _json(demo.call(stack, "preview change", [pulumi, "preview", "--json", *shared]))
    summary = cast("Mapping[str, int]", preview.get("changeSummary") or {})
    moved = {op: count for op, count in summary.items() if op not in {"same", "update"}}
    if moved or not summary.get("update"):
        raise StepError(f"The change of a serving flag would do more than update in place: {dict(summary)}")
    demo.call(stack, "up change", [pulumi, "up", "--yes", "--skip-preview", *shared])
    return f"max-model-len {NEW_MAX_MODEL_LEN}: {summary['update']} updated in place, nothing replaced"


def _capacity(folder: Path, stack: str) -> tuple[str, str]:
    """Return when the queued resource and its node were made."""
    del folder
    api = google_api.connect()
    from stacks.loading import from_file  # noqa: PLC0415

    settings = from_file(engine.project_folder() / f"Pulumi.{stack}.yaml")
    made: list[str] = []
    for zone in settings.tpu.zones if settings.tpu else ():
        for kind in ("queuedResources", "nodes"):
            for page in api.pages("tpu", f"v2alpha1/projects/{settings.project}/locations/{zone}/{kind}"):
                made += [
                    f"{item['name']} {item['createTime']}"
                    for item in cast("list[dict[str, object]]", page.get(kind) or [])
                ]
    if len(made) != 2:  # noqa: PLR2004  one queued resource and its node
        raise StepError(f"One queued resource and one node should be there, found: {made}")
    return made[0], made[1]


def _untouched(before: tuple[str, str] | None, after: tuple[str, str]) -> str:
    if before != after:
        raise StepError(f"The capacity was replaced: before {before}, after {after}")
    return f"same createTime {after[0].rpartition(' ')[2]}"


def _teardown(output: str) -> str:
    report = _json(output)
    if report.get("clean") is not True:
        raise StepError(f"Something is left: {report}")
    return f"{report['destroyed']} resources destroyed, state empty, nothing with our labels left"


def _json(text: str) -> dict[str, object]:
    try:
        return cast("dict[str, object]", json.loads(text))
    except json.JSONDecodeError as error:
        raise StepError(f"Expected one JSON object, found: {text[:200]!r} ({error})") from None


def _summary(demo: Demo, elapsed_s: float, *, failed: bool) -> None:
    table = Table(title="What happened (cloud simulated)", title_justify="left")
    table.add_column("stack")
    table.add_column("step")
    table.add_column("s", justify="right")
    table.add_column("result", overflow="fold")
    for step in demo.steps:
        table.add_row(step.stack, step.name, f"{step.seconds:.1f}", step.result)
    _console.print()
    _console.print(table)
    verdict = "with failures" if failed else "everything did what it had to"
    _console.print(f"{elapsed_s:.0f} s in all, {verdict}. Output of every step: {demo.folder / 'logs'}", markup=False)
    _console.print(
        "For real: `gcloud auth application-default login`, `pulumi login`, `pulumi stack init tpu-v6e4`, "
        "`pulumi config set gcp:project YOUR_PROJECT`, then `pulumi preview`, `pulumi up`, `python -m scripts.smoke --stack tpu-v6e4`, "
        "`python -m scripts.teardown --stack tpu-v6e4` (README.md, section 'On Google Cloud').",
        markup=False,
    )


if __name__ == "__main__":
    sys.exit(main())
