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
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import requests
from rich.console import Console
from rich.table import Table

from scripts.client.access import open_access
from scripts.cloud import google_api
from scripts.errors import DONE, FAILED, INTERRUPTED
from scripts.pulumi import engine
from scripts.pulumi.stack import stack_outputs
from stacks.loading import from_file

STACKS = ("tpu-v6e4", "l4-qat")
NEW_MAX_MODEL_LEN = 8192
"""The serving flag that is changed in place."""

_INSIDE = "GEMMA_SERVING_DEMO_FOLDER"
_STEP_LIMIT_S = 300.0
_CALL_LIMIT_S = 30.0
_SHOWN_LINES = 30
_COPIED = ("*.yaml", "*.txt", "*.in", "*.toml", "__main__.py", "Makefile")
_ROOMS = ("components", "contracts", "localcloud", "planning", "provider", "scripts", "stacks", "tools")
_TOKEN = "hf_simulated_token_of_the_demo"  # noqa: S105  goes to the local cloud only, and nowhere in clear

_WIDTH = 140
"""Columns where there is no terminal that has its own."""

_console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else _WIDTH)


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
    """Runs the steps of one stack, times them and keeps their output in files."""

    folder: Path
    stack: str
    steps: list[Step] = field(default_factory=list["Step"])

    def step(self, name: str, action: Callable[[], str]) -> None:
        """Run one step and print its line. Raises StepError."""
        started_s = time.monotonic()
        try:
            result = action()
        except StepError as error:
            self._done(name, time.monotonic() - started_s, "FAILED")
            _say(str(error))
            raise
        self._done(name, time.monotonic() - started_s, result)

    def _done(self, name: str, seconds: float, result: str) -> None:
        self.steps.append(Step(stack=self.stack, name=name, seconds=seconds, result=result))
        _say(f"{self.stack:9} {seconds:5.1f} s  {name}: {result}")

    def call(self, name: str, command: Sequence[str], *, stdin: str = "") -> str:
        """Run a command of the demo and return its stdout; what it printed is kept in a file. Raises StepError with its last lines."""
        log = self.folder / "logs" / f"{self.stack}-{len(self.steps):02d}-{name.replace(' ', '-')}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        try:
            answer = subprocess.run(
                list(command),
                cwd=self.folder / "project",
                capture_output=True,
                text=True,
                timeout=_STEP_LIMIT_S,
                check=False,
                input=stdin,
            )
        except subprocess.TimeoutExpired:
            raise StepError(
                f"`{' '.join(command[:4])} ...` did not end within {_STEP_LIMIT_S:.0f} s; see {log}"
            ) from None
        said = f"$ {' '.join(command)}\n{answer.stdout}\n{answer.stderr}\nexit code {answer.returncode}\n"
        log.write_text(said, encoding="utf-8")
        if answer.returncode != 0:
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
    """Live through all stacks at once: most of the time is waiting, and that of one stack is the work of another."""
    started_s = time.monotonic()
    demos = [Demo(folder, stack) for stack in STACKS]
    with ThreadPoolExecutor(max_workers=len(demos)) as pool:
        succeeded = list(pool.map(_whole_life, demos))
    _summary(demos, time.monotonic() - started_s, failed=not all(succeeded))
    return DONE if all(succeeded) else FAILED


def _whole_life(demo: Demo) -> bool:
    try:
        _life(demo)
    except StepError:
        return False
    return True


def _life(demo: Demo) -> None:
    """One stack from nothing to nothing."""
    stack, step = demo.stack, demo.step
    on_tpu = stack.startswith("tpu")
    up = ("up", "--yes", "--skip-preview")
    step("init", lambda: _init(demo, with_token=on_tpu))
    if not on_tpu:
        step("stage weights", lambda: _stage(demo))
    step("preview", lambda: _preview(_pulumi(demo, "preview", "preview", "--json")))
    step("up", lambda: _up(_pulumi(demo, "up", *up)))
    step("smoke", lambda: _smoke(_script(demo, "smoke", "--stack", stack, "--json")))
    step("quick sweep", lambda: _sweep(demo))
    step("up again", lambda: _up(_pulumi(demo, "up again", *up, "--expect-no-changes")))
    before = _capacity(stack) if on_tpu else None
    step("change a flag", lambda: _change(demo))
    if on_tpu:
        step("capacity untouched", lambda: _untouched(before, _capacity(stack)))
    step("new flag serves", lambda: _served_length(stack))
    step("teardown", lambda: _teardown(_script(demo, "teardown", "--stack", stack, "--yes", "--json")))


def _pulumi(demo: Demo, name: str, *arguments: str, stdin: str = "") -> str:
    return demo.call(name, [engine.pulumi(), *arguments, "--non-interactive", "--stack", demo.stack], stdin=stdin)


def _script(demo: Demo, script: str, *arguments: str) -> str:
    return demo.call(script, [sys.executable, "-m", f"scripts.{script}", *arguments])


def _init(demo: Demo, *, with_token: bool) -> str:
    demo.call("init", [engine.pulumi(), "stack", "init", demo.stack, "--non-interactive", "--no-select"])
    if not with_token:
        return "stack made"
    _pulumi(demo, "set token", "config", "set", "--secret", "hfToken", stdin=_TOKEN)
    return "stack made, token stored as a secret"


def _stage(demo: Demo) -> str:
    """Stage a checkpoint that has the right names and no weights: the simulated server takes its size from the model's name."""
    folder = demo.folder / "checkpoint"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text('{"model_type": "gemma4"}\n')
    (folder / "model.safetensors").write_bytes(b"\0" * 1024)
    report = _json(_script(demo, "stage_model", "--stack", demo.stack, "--from", str(folder), "--json"))
    return f"bucket made, {report['copied']} simulated files in gs://{report['bucket']}/{report['prefix']}"


def _preview(output: str) -> str:
    summary = cast("Mapping[str, int]", _json(output).get("changeSummary") or {})
    return ", ".join(f"{count} to {op}" for op, count in sorted(summary.items())) or "nothing to do"


def _up(output: str) -> str:
    """Take the counts from the end of what `pulumi up` prints: `Resources:` and a line for each kind of change."""
    _, _, counts = output.rpartition("Resources:")
    lines = [line.strip() for line in counts.splitlines()]
    return (
        ", ".join(line.lstrip("+-~ ") for line in lines if line.startswith(("+", "~", "-")) or "unchanged" in line)
        or "done"
    )


def _smoke(output: str) -> str:
    report = _json(output)
    checks = cast("Sequence[Mapping[str, object]]", report.get("checks") or [])
    verdicts = Counter(str(check.get("verdict")) for check in checks)
    counted = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common())
    speed = next((str(check.get("measured")) for check in checks if check.get("name") == "single stream"), "")
    return f"{counted}; {speed} (simulated)"


def _sweep(demo: Demo) -> str:
    """A short closed-loop sweep with its report: what `scripts.bench --preset quick` does at length."""
    out = demo.folder / "bench" / demo.stack
    sweep = ("--concurrency", "1,16,64", "--input-tokens", "128", "--output-tokens", "32", "--duration", "2")
    _script(demo, "bench", "--stack", demo.stack, *sweep, "--out", str(out))
    points = [json.loads(line) for line in (out / "results.jsonl").read_text(encoding="utf-8").splitlines()]
    rates = [float(point["output_throughput"]) for point in points if "output_throughput" in point]
    if not rates:
        raise StepError(f"The sweep measured nothing, see {out}")
    return f"{len(rates)} points, {min(rates):.0f} to {max(rates):.0f} tok/s (simulated), report: {out / 'report.html'}"


def _served_length(stack: str) -> str:
    """Ask the running server for its max-model-len, by the stack's own way in."""
    outputs = stack_outputs(stack)
    with open_access(endpoint=outputs.endpoint, auth=outputs.auth, tunnel=outputs.tunnel) as access:
        answer = requests.get(f"{access.base_url}/v1/models", headers=dict(access.headers()), timeout=_CALL_LIMIT_S)
    answer.raise_for_status()
    found = answer.json()["data"][0]["max_model_len"]
    if found != NEW_MAX_MODEL_LEN:
        raise StepError(f"The server still runs with max-model-len {found}, not {NEW_MAX_MODEL_LEN}")
    return f"the running server says max_model_len {found}"


def _change(demo: Demo) -> str:
    _pulumi(demo, "config set", "config", "set", "--path", "gemma-serving:vllm.maxModelLen", str(NEW_MAX_MODEL_LEN))
    preview = _json(_pulumi(demo, "preview change", "preview", "--json"))
    summary = cast("Mapping[str, int]", preview.get("changeSummary") or {})
    if set(summary) - {"same", "update"} or not summary.get("update"):
        raise StepError(f"The change of a serving flag would do more than update in place: {dict(summary)}")
    _pulumi(demo, "up change", "up", "--yes", "--skip-preview")
    return f"max-model-len {NEW_MAX_MODEL_LEN}: {summary['update']} updated in place, nothing replaced"


def _capacity(stack: str) -> tuple[str, str]:
    """Return when the queued resource and its node were made."""
    api = google_api.connect()
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


def _say(text: str) -> None:
    """Print one line in one write: two stacks talk at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _summary(demos: Sequence[Demo], elapsed_s: float, *, failed: bool) -> None:
    table = Table(title="What happened (cloud simulated)", title_justify="left")
    table.add_column("stack")
    table.add_column("step")
    table.add_column("s", justify="right")
    table.add_column("result", overflow="fold")
    for step in (step for demo in demos for step in demo.steps):
        table.add_row(step.stack, step.name, f"{step.seconds:.1f}", step.result)
    _console.print()
    _console.print(table)
    verdict = "with failures" if failed else "everything did what it had to"
    _console.print(
        f"{elapsed_s:.0f} s in all, {verdict}. Output of every step: {demos[0].folder / 'logs'}", markup=False
    )
    _console.print(
        "For real: `gcloud auth application-default login`, `pulumi login`, `pulumi stack init tpu-v6e4`, "
        "`pulumi config set gcp:project YOUR_PROJECT`, then `pulumi preview`, `pulumi up`, `python -m scripts.smoke --stack tpu-v6e4`, "
        "`python -m scripts.teardown --stack tpu-v6e4` (README.md, section 'On Google Cloud').",
        markup=False,
    )


if __name__ == "__main__":
    sys.exit(main())
