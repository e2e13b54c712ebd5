"""Install each artefact of a release as a user does, and use it. No checkout and no cloud account is needed.

Usage: python rehearse.py FOLDER [--only STEP ...] [--complete] [--list]

FOLDER has the artefacts. Requirements: Python 3.11 to 3.13, `pulumi` on PATH, and the package registries. Google is simulated by the
local cloud of the release. Environments, plugins and stacks are made in a temporary folder, which is deleted at the end.

Exit code 0: every step succeeded or was skipped, 1: a step failed (with --complete also: was skipped), 2: the command line is invalid.
"""

# This file is copied to the artefacts as rehearse.py, so it imports the standard library alone.

import argparse
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_LIMIT_S: Final = 1800
_READY_S: Final = 120
_LINES: Final = 25
"""Lines of a failed command's output that are shown."""
_HIDDEN: Final = (
    "PULUMI_",
    "GOOGLE_",
    "GCLOUD_",
    "CLOUDSDK_",
    "LOCALCLOUD_",
    "PYTHON",
    "VIRTUAL_ENV",
    "PIP_REQUIRE",
    "HF_",
    "HUGGING",
)
"""Prefixes of variables that a step does not inherit: credentials, real projects, and the environment of the caller."""
_GIVEN: Final = ("PULUMI_PYTHON_CMD",)


class FailedError(Exception):
    """A step failed. The message says what, with the end of the output."""


class SkippedError(Exception):
    """A step cannot run here. The message is the reason."""


@dataclass(frozen=True, slots=True)
class Artefacts:
    """The artefacts in a folder, by the manifest."""

    folder: Path
    kinds: Mapping[str, str]
    """Kind of each file, by its name."""
    version: str

    def one(self, pattern: str) -> Path:
        """Return the only artefact whose name matches. Raises SkippedError if the release has none."""
        found = [name for name in sorted(self.kinds) if re.fullmatch(pattern, name)]
        if len(found) > 1:
            raise FailedError(f"several artefacts match {pattern}: {', '.join(found)}")
        if not found:
            raise SkippedError(f"the release has no {pattern}")
        return self.folder / found[0]


@dataclass(slots=True)
class Workplace:
    """A temporary folder with the environments that steps share."""

    artefacts: Artefacts
    folder: Path
    environments: dict[str, Path] = field(default_factory=dict[str, Path])

    @property
    def variables(self) -> dict[str, str]:
        """Return the variables of every command."""
        kept = {name: value for name, value in os.environ.items() if name in _GIVEN or not name.startswith(_HIDDEN)}
        return {
            **kept,
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PULUMI_CONFIG_PASSPHRASE": "rehearsal",
            "PULUMI_HOME": str(self.folder / "pulumi-home"),
            "PULUMI_SKIP_UPDATE_CHECK": "true",
            "PYTHONNOUSERSITE": "1",
        }

    def run(
        self, *command: object, cwd: Path | None = None, expect: int = 0, env: Mapping[str, str] | None = None
    ) -> str:
        """Run a command and return its output. Raises FailedError for another exit code."""
        words = [str(word) for word in command]
        shown = " ".join(words).partition("\n")[0]
        try:
            done = subprocess.run(
                words,
                cwd=cwd or self.folder,
                env={**self.variables, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise FailedError(f"`{shown}` took longer than {_LIMIT_S} s") from error
        except OSError as error:
            raise FailedError(f"`{shown}` did not start: {error}") from error
        if done.returncode != expect:
            end = "\n".join(done.stdout.splitlines()[-_LINES:])
            raise FailedError(f"`{shown}` ended with {done.returncode}, not {expect}:\n{end}")
        return done.stdout

    def environment(self, name: str, *wanted: object) -> Path:
        """Return the folder of programs of a virtual environment with these packages, which is made once."""
        if name not in self.environments:
            home = self.folder / "environments" / name
            self.run(sys.executable, "-m", "venv", home)
            programs = home / "bin"
            source = ("--find-links", self.artefacts.folder)
            self.run(programs / "python", "-m", "pip", "install", "--quiet", *source, *wanted)
            self.environments[name] = programs
        return self.environments[name]

    def localcloud(self) -> Path:
        """Return the folder of programs of an environment with the local cloud."""
        return self.environment("localcloud", self.artefacts.one(r"localcloud_google-.*\.whl"), "pulumi", "pulumi-gcp")

    def project(self, name: str, files: Mapping[str, str]) -> Path:
        """Return a new folder with these files."""
        folder = self.folder / name
        folder.mkdir(parents=True)
        for path, text in files.items():
            (folder / path).write_text(text, encoding="utf-8")
        return folder

    def in_cloud(self, folder: Path, commands: Sequence[str]) -> str:
        """Run shell commands of a Pulumi program on a new local cloud, and return their output."""
        python = self.localcloud() / "python"
        script = "\n".join(["set -e", *commands])
        cloud = (python, "-m", "localcloud", "run", "--scenario", "prepared", "--")
        return self.run(*cloud, "sh", "-c", script, cwd=folder)


@dataclass(frozen=True, slots=True)
class RehearsalStep:
    """One use of the release. `act` returns a short result."""

    name: str
    title: str
    act: Callable[[Workplace], str]


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """Result of a step: ok, skipped or failed."""

    step: RehearsalStep
    result: str
    detail: str
    seconds: float


def read_artefacts(folder: Path) -> Artefacts:
    """Return the artefacts of a folder. Raises FailedError if it has no manifest."""
    file = folder / "manifest.json"
    if not file.is_file():
        raise FailedError(f"{folder} has no manifest.json. Pass the folder of a release's artefacts")
    listed = json.loads(file.read_text(encoding="utf-8"))["artefacts"]
    kinds = {item["name"]: item["kind"] for item in listed}
    (version,) = {item["version"] for item in listed}
    return Artefacts(folder.resolve(), kinds, version)


def checksums(at: Workplace) -> str:
    """Compare every artefact with SHA256SUMS."""
    folder = at.artefacts.folder
    lines = (folder / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    listed = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    missing = sorted({*at.artefacts.kinds} - {*listed})
    if missing:
        raise FailedError(f"SHA256SUMS does not list {', '.join(missing)}")
    for name, digest in listed.items():
        if not (folder / name).is_file():
            raise FailedError(f"{name} is missing")
        if hashlib.sha256((folder / name).read_bytes()).hexdigest() != digest:
            raise FailedError(f"{name} is not the file that SHA256SUMS lists")
    return f"{len(listed)} files"


WHEELS: Final = {
    "gcp_tpu_provider": ("gcp_tpu_provider-.*", ("pulumi-resource-gcp-tpu", "--help")),
    "localcloud": ("localcloud_google-.*", ("python", "-m", "localcloud", "--help")),
    "loadtest": ("loadtest_openai-.*", ("loadtest", "--help")),
}
"""Import name of each wheel: its file and a command that it installs."""


def _wheel_alone(module: str) -> Callable[[Workplace], str]:
    def act(at: Workplace) -> str:
        pattern, (program, *words) = WHEELS[module]
        programs = at.environment(f"{module}-alone", at.artefacts.one(rf"{pattern}\.whl"))
        others = sorted({*WHEELS} - {module})
        code = (
            "import importlib, importlib.util, sys\n"
            f"importlib.import_module({module!r})\n"
            f"print(*[name for name in {others!r} if importlib.util.find_spec(name)])"
        )
        strangers = at.run(programs / "python", "-I", "-c", code).strip()
        if strangers:
            raise FailedError(f"the environment of {module} also has {strangers}")
        if module != "gcp_tpu_provider":  # a plugin is started by the engine, and has no help
            at.run(programs / program, *words)
        elif not (programs / program).is_file():
            raise FailedError(f"the wheel installs no command {program}")
        return "imported, nothing of the others"

    return act


def load_test(at: Workplace) -> str:
    """Measure the simulated model server of one environment with the load tester of another."""
    tester = at.environment("loadtest-alone", at.artefacts.one(r"loadtest_openai-.*\.whl"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    server = [
        at.localcloud() / "python",
        "-m",
        "localcloud.vllm",
        "serve",
        "google/gemma-4-E2B-it",
    ]
    with (at.folder / "server.log").open("w") as log:
        process = subprocess.Popen(
            [*map(str, server), "--host", "127.0.0.1", "--port", str(port)],
            cwd=at.folder,
            env=at.variables,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        _wait_for(f"http://127.0.0.1:{port}/health", process, at.folder / "server.log")
        out = at.folder / "results"
        load = ("--concurrency", "1,2", "--requests", "8", "--input-tokens", "64", "--output-tokens", "16")
        # The release is not at fault for a point that a busy machine makes invalid.
        at.run(tester / "loadtest", "--url", f"http://127.0.0.1:{port}", *load, "--allow-invalid", "--out", out)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)
    if not (out / "report.html").is_file():
        raise FailedError(f"the load tester wrote no report.html: {sorted(path.name for path in out.iterdir())}")
    return f"{len((out / 'results.jsonl').read_text().splitlines())} loads, report.html"


def _wait_for(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    end = time.monotonic() + _READY_S
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):  # noqa: S310 - a loopback address
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    end_of_log = "\n".join(log.read_text(encoding="utf-8").splitlines()[-_LINES:])
    raise FailedError(f"the simulated server did not become ready within {_READY_S} s:\n{end_of_log}")


_INIT: Final = "pulumi stack init dev --non-interactive"
_UP: Final = (
    "pulumi preview --non-interactive",
    "pulumi up --yes --skip-preview --non-interactive",
    "pulumi up --yes --skip-preview --expect-no-changes --non-interactive",
    'echo "OUTPUTS $(pulumi stack output --json | tr -d "\\n")"',
    "pulumi destroy --yes --skip-preview --non-interactive",
)
"""The life of a stack. A second `up` without changes shows that the state has what the program declares."""

_PYTHON_PROJECT: Final = """name: rehearsal
runtime:
  name: python
  options:
    toolchain: pip
    virtualenv: {environment}
"""
_QUEUED_RESOURCE: Final = """import pulumi
import gcp_tpu

capacity = gcp_tpu.QueuedResource(
    "capacity",
    gcp_tpu.QueuedResourceArgs(
        zones=["us-east5-b", "us-east5-a"],
        accelerator_type="v6e-1",
        runtime_version="v2-alpha-tpuv6e",
        provisioning_model="flex-start",
        max_run_duration_s=3600,
    ),
)
pulumi.export("state", capacity.state)
"""
_QUEUED_RESOURCE_YAML: Final = """name: rehearsal
runtime: yaml
resources:
  capacity:
    type: gcp-tpu:QueuedResource
    properties:
      zones: [us-east5-b, us-east5-a]
      acceleratorType: v6e-1
      runtimeVersion: v2-alpha-tpuv6e
      provisioningModel: flex-start
      maxRunDurationS: 3600
outputs:
  state: ${capacity.state}
"""


def install_plugin(at: Workplace, package: str) -> None:
    """Install the archive of a plugin once, without a download."""
    version = at.artefacts.version
    if (at.folder / "pulumi-home" / "plugins" / f"resource-{package}-v{version}").is_dir():
        return
    machine = {"x86_64": "amd64", "AMD64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
    archive = at.artefacts.one(rf"pulumi-resource-{package}-v.*-{sys.platform}-{machine}\.tar\.gz")
    at.run("pulumi", "plugin", "install", "resource", package, version, "--file", archive)


def _lives(at: Workplace, folder: Path, expected: Mapping[str, str]) -> str:
    """Bring a program up and down, and compare outputs of the stack with patterns."""
    shown = at.in_cloud(folder, [_INIT, *_UP])
    (line,) = [line for line in shown.splitlines() if line.startswith("OUTPUTS ")]
    outputs = json.loads(line.partition(" ")[2])
    for name, pattern in expected.items():
        if not re.fullmatch(pattern, str(outputs.get(name))):
            raise FailedError(f"the output {name} is {outputs.get(name)!r}; {pattern} is expected")
    return f"up, no changes, destroyed; {', '.join(f'{name} {outputs[name]}' for name in expected)}"


def provider_python(at: Workplace) -> str:
    """Create a queued resource from Python with the module that the provider's wheel prints, and the plugin's archive."""
    provider = at.environment("gcp_tpu_provider-alone", at.artefacts.one(r"gcp_tpu_provider-.*\.whl"))
    module = at.run(provider / "python", "-I", "-m", "gcp_tpu_provider.python_sdk")
    install_plugin(at, "gcp-tpu")
    settings = _PYTHON_PROJECT.format(environment=at.environment("program", "pulumi").parent)
    files = {"Pulumi.yaml": settings, "__main__.py": _QUEUED_RESOURCE, "gcp_tpu.py": module}
    return _lives(at, at.project("provider-python", files), {"state": "ACTIVE"})


def provider_yaml(at: Workplace) -> str:
    """Create a queued resource from YAML, whose language host only the official Pulumi distribution has."""
    install_plugin(at, "gcp-tpu")
    return _lives(at, at.project("provider-yaml", {"Pulumi.yaml": _QUEUED_RESOURCE_YAML}), {"state": "ACTIVE"})


STEPS: Final[Sequence[RehearsalStep]] = (
    RehearsalStep("checksums", "Checksums", checksums),
    RehearsalStep("wheel-provider", "Wheel of the provider alone", _wheel_alone("gcp_tpu_provider")),
    RehearsalStep("wheel-localcloud", "Wheel of the local cloud alone", _wheel_alone("localcloud")),
    RehearsalStep("wheel-loadtest", "Wheel of the load tester alone", _wheel_alone("loadtest")),
    RehearsalStep("load-test", "Load test of the simulated server", load_test),
    RehearsalStep("provider-yaml", "Provider from YAML", provider_yaml),
    RehearsalStep("provider-python", "Provider from Python", provider_python),
)
"""Every step, in the order of the report. Each can run alone."""


def rehearse(at: Workplace, steps: Sequence[RehearsalStep], report: Callable[[str], None]) -> Sequence[StepOutcome]:
    """Run the steps one after another. A failed step does not end the others."""
    outcomes: list[StepOutcome] = []
    for step in steps:
        began = time.monotonic()
        try:
            result, detail = "ok", step.act(at)
        except SkippedError as error:
            result, detail = "skipped", str(error)
        except (FailedError, OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
            result, detail = "FAILED", str(error)
        outcomes.append(StepOutcome(step, result, detail, time.monotonic() - began))
        report(f"{result:<8} {outcomes[-1].seconds:6.1f} s  {step.title}: {detail}")
    return outcomes


def table(outcomes: Sequence[StepOutcome]) -> str:
    """Return the outcomes as a Markdown table. A failure's detail is its first line."""
    rows = [
        f"| {each.step.title} | {each.result} | {each.seconds:.0f} s | {each.detail.splitlines()[0]} |"
        for each in outcomes
    ]
    return "\n".join(["| step | result | time | detail |", "| --- | --- | --- | --- |", *rows])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the rehearsal and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "folder", type=Path, nargs="?", default=Path(__file__).parent, help="the artefacts (default: beside this file)"
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="STEP", help="run only these steps")
    parser.add_argument("--complete", action="store_true", help="also fail if a step was skipped")
    parser.add_argument("--list", action="store_true", help="print the steps and exit")
    options = parser.parse_args(arguments)
    if options.list:
        print("\n".join(f"{step.name:<24} {step.title}" for step in STEPS))
        return 0
    unknown = sorted({*options.only} - {step.name for step in STEPS})
    if unknown:
        print(
            f"rehearse: step {unknown[0]!r} not found. Steps: {', '.join(step.name for step in STEPS)}.",
            file=sys.stderr,
        )
        return 2
    try:
        artefacts = read_artefacts(options.folder)
    except FailedError as error:
        print(f"rehearse: {error}.", file=sys.stderr)
        return 2
    if shutil.which("pulumi") is None:
        print("rehearse: `pulumi` is not on PATH. Install it: https://www.pulumi.com/docs/install/.", file=sys.stderr)
        return 2
    steps = [step for step in STEPS if not options.only or step.name in options.only]
    with tempfile.TemporaryDirectory(prefix="rehearsal-") as folder:
        outcomes = rehearse(Workplace(artefacts, Path(folder)), steps, lambda line: print(line, flush=True))
    print(f"\n{table(outcomes)}")
    target = os.environ.get("GITHUB_STEP_SUMMARY")
    if target:
        with Path(target).open("a", encoding="utf-8") as stream:
            stream.write(table(outcomes) + "\n")
    bad = {"FAILED", "skipped"} if options.complete else {"FAILED"}
    return 1 if any(each.result in bad for each in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
