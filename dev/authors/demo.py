"""Run both baseline stacks through their full lifecycle on the local cloud, with the real Pulumi engine.

The cloud is simulated. Everything else is this project: settings, planner, components, provider, commands. The demo works in a copy
in `.work/demo` and does not change the checkout.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast

from dev.authors.in_local_cloud import copy_project, inside_folder, run_inside
from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.engine import runner
from gemma_serving.engine.children import ended
from gemma_serving.engine.exported_state import read_deployment
from gemma_serving.engine.state import outputs_in
from gemma_serving.scripts.cli.command import Command, run_command
from gemma_serving.scripts.stack.settings import stack_settings
from gemma_serving.stacks.apis import apis_of

STACKS = ("tpu-v6e4", "l4-qat")
NEW_MAX_MODEL_LEN = 8192
"""Serving option that is changed in place."""
_CHANGE = ("config", "set", "--path", "gemma-serving:vllm.maxModelLen", str(NEW_MAX_MODEL_LEN))

EMPTY_ZONE = "us-east5-a"
_FLEX_START_ZONES = (EMPTY_ZONE, "us-east5-b", "europe-west4-a", "asia-northeast1-b", "southamerica-west1-a")
_LOST, _BUSY = "tpu.projects.locations.queuedResources.create", "run.projects.locations.services.create"
WORLD: Final = {
    "tpu": {
        "zones": {
            zone: {
                "accelerator_types": ["v6e-1", "v6e-4", "v6e-8"],
                "flex_start": True,
                "capacity": {"v6e-4": 0} if zone == EMPTY_ZONE else {},
            }
            for zone in _FLEX_START_ZONES
        }
    },
    "services": {"lag_s": 0},
    "faults": [
        {"method": _LOST, "nth": 2, "action": "reset", "when": "after"},
        {"method": _BUSY, "status": 503},
    ],
}
"""Differences of the demo's cloud from a new project: no capacity in the first zone, APIs that respond immediately, one 503, one lost response."""
_CHIPS: Final = 4
_QUOTA: Final = "TPUV6EPreemptiblePerProjectPerZoneForTPUAPI"

_WAIT_PER_ZONE = "2s"
"""The provider waits in real time. Two seconds are almost seven minutes in the demo's cloud."""
_SPEED: Final = "4"
"""Servers serve this many times as fast as planned, and checks and sweeps measure with clocks as fast (dev/authors/faster)."""
_STEP_LIMIT_S = 300.0
_CALL_LIMIT_S = 30.0
_SHOWN_LINES = 30
_SHOWN_STACK: Final = "l4-qat"
"""The stack whose `pulumi preview` and `pulumi up` are shown as the engine prints them."""
_PROGRESS: Final = re.compile(r"@ |.* creating \(|.*:pulumi:Stack \S+ +\w+ +\S|$")
"""Lines of the engine about what is not done yet, the program's messages, and empty lines."""
_SERVER_ERROR = 500
_MODELS = """
import os, urllib.request
url, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
print(urllib.request.urlopen(urllib.request.Request(f"{url}/models", headers={"Authorization": f"Bearer {key}"})).read().decode())
"""
"""Program that prints the server's models with the access that `connect` sets."""
_TOKEN = "hf_simulated_token_of_the_demo"  # noqa: S105 - sent only to the local cloud


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """Options of the command: none."""


class StepError(Exception):
    """A failed step. The message states the observation."""


@dataclass(slots=True)
class Demo:
    """Steps of one stack, with their times and output files."""

    folder: Path
    stack: str
    steps: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])
    """Name, seconds and result of each step."""

    def step(self, name: str, action: Callable[[], str]) -> None:
        """Run one step and print its line. Raises StepError."""
        started_s = time.monotonic()
        result = "FAILED"
        try:
            result = action()
        finally:
            seconds = f"{time.monotonic() - started_s:.1f}"
            self.steps.append((name, seconds, result))
            _say(f"{self.stack:9} {seconds:>5} s  {name}: {result}")

    def call(self, name: str, command: Sequence[str], *, stdin: str = "") -> str:
        """Run a command and return its stdout. Its output is stored in a file. Raises StepError with its last lines if it fails."""
        log = self.folder / "logs" / f"{self.stack}-{len(self.steps):02d}-{name.replace(' ', '-')}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        shown = f"`{' '.join(command[:4])} ...`"
        try:
            answer = ended(command, folder=self.folder / "project", stdin=stdin, limit_s=_STEP_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise StepError(f"{shown} did not finish within {_STEP_LIMIT_S:.0f} s. Output: {log}") from None
        said = f"$ {' '.join(command)}\n{answer.stdout}\n{answer.stderr}\nexit code {answer.returncode}\n"
        log.write_text(said, encoding="utf-8")
        if answer.returncode != 0:
            last = "\n".join((answer.stdout + "\n" + answer.stderr).strip().splitlines()[-_SHOWN_LINES:])
            raise StepError(
                f"{shown} failed with exit code {answer.returncode}. Last lines:\n{last}\nFull output: {log}"
            )
        return answer.stdout


def _demo(_options: DemoOptions) -> ExitCode:
    """Run the stacks in a local cloud. Outside one, copy the project and run the demo again inside."""
    inside = inside_folder()
    if inside is not None:
        return _inside(inside)
    root = runner.project_folder()
    folder = root / ".work" / "demo"
    shutil.rmtree(folder, ignore_errors=True)
    copy_project(root, folder / "project")
    (folder / "world.json").write_text(json.dumps(WORLD), encoding="utf-8")
    _say(
        "The cloud of this demo is simulated on this machine. The Pulumi engine, the program and the commands are real."
    )
    _say(f"Servers, and the clocks that measure them, run {_SPEED} times as fast.")
    os.environ["VLLM_SIM_SPEED"] = _SPEED
    return run_inside(folder, "dev.authors.demo", scenario=str(folder / "world.json"), project=folder / "project")


def _inside(folder: Path) -> ExitCode:
    """Run all stacks concurrently, because each of them mostly waits."""
    started_s = time.monotonic()
    demos = [Demo(folder, stack) for stack in STACKS]
    with ThreadPoolExecutor(max_workers=len(demos)) as pool:
        succeeded = list(pool.map(_whole_life, demos))
    _summary(demos, time.monotonic() - started_s, _injected_failures(), failed=not all(succeeded))
    return ExitCode.DONE if all(succeeded) else ExitCode.FAILED


def _whole_life(demo: Demo) -> bool:
    try:
        _life(demo)
    except StepError as error:
        _say(f"{demo.stack:9} {error}")
        return False
    return True


def _life(demo: Demo) -> None:
    """Create a stack, use it, change it, and destroy it."""
    stack, step = demo.stack, demo.step
    on_tpu = stack.startswith("tpu")
    up = ("up", "--yes", "--skip-preview")
    step("new project", lambda: _prepare(demo, with_chips=on_tpu))
    step("init", lambda: _init(demo, with_token=on_tpu))
    preview = ("preview", lambda: _engine(demo, "preview"))
    if on_tpu:
        step(*preview)
    else:
        _beside([preview], lambda: step("stage weights", lambda: _stage(demo)), demo)  # a preview takes no lock
    step("up", lambda: _engine(demo, *up) + (f", capacity in {_zone(stack)}" if on_tpu else ""))
    # Refresh first, because Pulumi keeps the error of an attempt that came before its grant took effect, and updates without need.
    read = (*up, "--refresh", "--expect-no-changes")
    # The checks mostly wait for tokens, and neither an `up` without changes nor a preview touches the server.
    _beside(
        [
            ("up again", lambda: _up(_pulumi(demo, "up again", *read))),
            ("preview a change", lambda: _preview_change(demo)),
        ],
        lambda: step("smoke", lambda: _smoke(_timed(demo, "smoke", "--stack", stack, "--json"))),
        demo,
    )
    step("quick sweep", lambda: _sweep(demo))
    before = _capacity(stack) if on_tpu else None
    step("change a flag", lambda: _change(demo))
    if on_tpu:
        step("capacity untouched", lambda: _untouched(before, _capacity(stack)))
    step("new flag in effect", lambda: _served_length(demo))
    step("teardown", lambda: _teardown(_script(demo, "teardown", "--stack", stack, "--yes", "--json")))


def _beside(steps: Sequence[tuple[str, Callable[[], str]]], action: Callable[[], None], demo: Demo) -> None:
    """Run steps in sequence in a thread while an action runs. Raises StepError."""
    with ThreadPoolExecutor(max_workers=1) as beside:
        waiting = [beside.submit(demo.step, *step) for step in steps]
        action()
        for each in waiting:
            each.result()


def _pulumi(demo: Demo, name: str, *arguments: str, stdin: str = "") -> str:
    return demo.call(name, [runner.pulumi(), *arguments, "--non-interactive", "--stack", demo.stack], stdin=stdin)


def _script(demo: Demo, script: str, *arguments: str) -> str:
    return demo.call(script, [sys.executable, "-m", f"scripts.{script}", *arguments])


def _timed(demo: Demo, script: str, *arguments: str) -> str:
    """Run a script that measures the server."""
    clocks = demo.folder / "project" / "dev" / "authors" / "faster"
    return demo.call(script, ["env", f"PYTHONPATH={clocks}", sys.executable, "-m", f"scripts.{script}", *arguments])


def _prepare(demo: Demo, *, with_chips: bool) -> str:
    """Do the owner's part of docs/get-started.md: enable the APIs, and request quota if the stack needs more."""
    apis = [f"{api}.googleapis.com" for api in (*apis_of(stack_settings(demo.stack)), "cloudquotas")]
    project = f"--project={os.environ['GOOGLE_CLOUD_PROJECT']}"
    demo.call("enable", ["gcloud", "services", "enable", *apis, project])
    if not with_chips:
        return "APIs enabled, existing quota is sufficient"
    request = ["gcloud", "beta", "quotas", "preferences", "create", project, "--service=tpu.googleapis.com"]
    request += [f"--quota-id={_QUOTA}", f"--preferred-value={_CHIPS}", "--email=me@example.com"]
    for zone in _FLEX_START_ZONES:
        demo.call("quota", [*request, f"--dimensions=zone={zone}"])
    return f"APIs enabled, {_CHIPS} chips granted in each zone"


def _init(demo: Demo, *, with_token: bool) -> str:
    demo.call("init", [runner.pulumi(), "stack", "init", demo.stack, "--non-interactive", "--no-select"])
    if not with_token:
        return "stack created"
    _pulumi(demo, "set token", "config", "set", "--secret", "hfToken", stdin=_TOKEN)
    _pulumi(demo, "set wait", "config", "set", "--path", "gemma-serving:tpu.waitPerZone", _WAIT_PER_ZONE)
    return f"stack created, token stored as a secret, waitPerZone {_WAIT_PER_ZONE}"


def _stage(demo: Demo) -> str:
    """Stage the stack's checkpoint from the local cloud's hub."""
    report = _json(_script(demo, "stage_model", "--stack", demo.stack, "--json"))
    return f"bucket created, {report['copied']} simulated files in gs://{report['bucket']}/{report['prefix']}"


def _engine(demo: Demo, *arguments: str) -> str:
    """Preview or update a stack with the engine alone, and return its counts. The command of one stack is shown with what it printed."""
    output = _pulumi(demo, arguments[0], *arguments)
    if demo.stack == _SHOWN_STACK:
        resources, _, rest = output.partition("\nDiagnostics:")
        _, _, ends = rest.partition("\n\n")
        lines = [line for line in f"{resources}\n{ends}".splitlines() if not _PROGRESS.match(line)]
        command = f"$ pulumi {' '.join(arguments)} --stack {demo.stack}"
        _say("\n    ".join([f"{demo.stack:9} Plain Pulumi, without its progress and messages:", command, *lines]))
    return _up(output)


def _up(output: str) -> str:
    """Return the counts that `pulumi preview` and `pulumi up` print after `Resources:`, one line per kind of change."""
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
    """Run a short closed-loop sweep with its report. `scripts.bench --preset quick` is the long form."""
    out = demo.folder / "bench" / demo.stack
    sweep = ("--concurrency=1,8,32", "--input-tokens=128", "--output-tokens=16", "--duration=1", "--allow-invalid")
    _timed(demo, "bench", "--stack", demo.stack, *sweep, "--out", str(out))
    points = [json.loads(line) for line in (out / "results.jsonl").read_text(encoding="utf-8").splitlines()]
    rates = [float(point["output_throughput"]) for point in points if "output_throughput" in point]
    if not rates:
        raise StepError(f"The sweep measured no point. Output: {out}")
    return f"{len(rates)} points, {min(rates):.0f} to {max(rates):.0f} tok/s (simulated), report: {out / 'report.html'}"


def _served_length(demo: Demo) -> str:
    """Return the running server's max-model-len, read with the stack's access."""
    answer = _script(demo, "connect", "--stack", demo.stack, "--", sys.executable, "-c", _MODELS)
    found = cast("Sequence[Mapping[str, object]]", _json(answer)["data"])[0].get("max_model_len")
    if found != NEW_MAX_MODEL_LEN:
        raise StepError(f"The server still runs with max-model-len {found}, not {NEW_MAX_MODEL_LEN}")
    return f"the running server reports max_model_len {found}"


def _preview_change(demo: Demo) -> str:
    """Preview another serving flag in a copy of the settings, so the stack's settings stay as deployed."""
    changed = demo.folder / f"{demo.stack}.changed.yaml"
    shutil.copy2(demo.folder / "project" / f"Pulumi.{demo.stack}.yaml", changed)
    of_copy = f"--config-file={changed}"
    _pulumi(demo, "config set", *_CHANGE, of_copy)
    preview = _json(_pulumi(demo, "preview change", "preview", "--json", of_copy))
    summary = cast("Mapping[str, int]", preview.get("changeSummary") or {})
    if set(summary) - {"same", "update"} or not summary.get("update"):
        raise StepError(f"The change of a serving flag does more than update in place: {dict(summary)}")
    return f"max-model-len {NEW_MAX_MODEL_LEN}: {summary['update']} to update in place, nothing to replace"


def _change(demo: Demo) -> str:
    _pulumi(demo, "config set", *_CHANGE)
    return f"max-model-len {NEW_MAX_MODEL_LEN}: {_up(_pulumi(demo, 'up change', 'up', '--yes', '--skip-preview'))}"


def _capacity(stack: str) -> tuple[str, str]:
    """Return the names and creation times of the queued resource and its node."""
    from gemma_serving.cloud import google_api

    settings = stack_settings(stack)
    api = google_api.connect(settings.project)
    made = [
        f"{item['name']} {item['createTime']}"
        for zone in (settings.tpu.zones if settings.tpu else ())
        for kind in ("queuedResources", "nodes")
        for page in api.pages("tpu", f"v2alpha1/projects/{settings.project}/locations/{zone}/{kind}")
        for item in cast("list[dict[str, object]]", page.get(kind) or [])
    ]
    if len(made) != 2:  # noqa: PLR2004 - one queued resource and its node
        raise StepError(f"Expected one queued resource and one node, found: {made}")
    return made[0], made[1]


def _zone(stack: str) -> str:
    """Return the zone that granted the capacity, which must not be the zone without capacity. Raises StepError."""
    zone = outputs_in(stack, read_deployment(stack).resources).zone
    if not zone or zone == EMPTY_ZONE:
        raise StepError(f"Expected capacity in a zone other than {EMPTY_ZONE}, found: {zone}")
    return zone


def _untouched(before: tuple[str, str] | None, after: tuple[str, str]) -> str:
    if before != after:
        raise StepError(f"The capacity was replaced: before {before}, after {after}")
    return f"same createTime {after[0].rpartition(' ')[2]}"


def _teardown(output: str) -> str:
    report = _json(output)
    if report.get("clean") is not True:
        raise StepError(f"Resources leaked: {report}")
    if report.get("held"):
        return "no leaked resources; Google holds the network for up to two hours, $0"
    return "state empty, no leaked resources"


def _json(text: str) -> dict[str, object]:
    try:
        return cast("dict[str, object]", json.loads(text))
    except json.JSONDecodeError as error:
        raise StepError(f"Expected one JSON object, found: {text[:200]!r} ({error})") from None


def _say(text: str) -> None:
    """Print one line in a single write, because two threads print."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _injected_failures() -> str:
    """Return the injected failures that the cloud's log shows."""
    import requests

    answer = requests.get(
        f"{os.environ['LOCALCLOUD_URL']}/admin/requests",
        headers={"Authorization": f"Bearer {os.environ['GOOGLE_OAUTH_ACCESS_TOKEN']}"},
        timeout=_CALL_LIMIT_S,
    )
    answer.raise_for_status()
    calls = cast("list[Mapping[str, object]]", answer.json()["requests"])
    failed = {str(call.get("id")) for call in calls if cast("int", call.get("status") or 0) >= _SERVER_ERROR}
    shown = [f"{EMPTY_ZONE} had no capacity", "every grant took two minutes to take effect"]
    shown += ["one call got a 503"] if _BUSY in failed else []
    shown += ["one response was lost after the call took effect"] if _LOST in failed else []
    return f"Injected failures (simulated): {', '.join(shown)}."


def _summary(demos: Sequence[Demo], elapsed_s: float, failures: str, *, failed: bool) -> None:
    from gemma_serving.scripts.cli.tables import FittedTable, console, paragraph

    shown = FittedTable(
        "Demo results (simulated cloud)", ("stack", "step", "s", "result"), whole=("stack", "step"), numbers=("s",)
    )
    for demo in demos:
        for step in demo.steps:
            shown.add_row(demo.stack, *step)
    out = console(sys.stdout)
    out.print()
    out.print(shown)
    paragraph(out, failures)
    verdict = "with failures" if failed else "all steps succeeded"
    paragraph(out, f"{elapsed_s:.0f} s in total, {verdict}. Output of every step: {demos[0].folder / 'logs'}")
    paragraph(
        out,
        "To deploy on Google Cloud, run `gcloud auth application-default login`, `pulumi login`, "
        "`export GOOGLE_CLOUD_PROJECT=YOUR_PROJECT`, then `gemma doctor tpu-v6e4`, `gemma up tpu-v6e4`, `gemma smoke tpu-v6e4`, "
        "`gemma teardown tpu-v6e4`. See docs/get-started.md.",
    )


COMMAND: Final = Command(
    name="demo",
    room="dev.authors",
    help=__doc__,
    options=DemoOptions,
    run=_demo,
    after_interrupt="The local cloud and everything in it is stopped.",
)


if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
