"""A copy of the project with a local cloud of its own, in which a run works by the shipped commands."""

import json
import os
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from dev.authors.in_local_cloud import copy_project
from dev.judges.real.home import ROOT, RealHome
from dev.judges.real.local_cloud import running_cloud
from dev.judges.real_vllm.server import DIRECT
from gemma_serving.contracts.settings_files import shipped_files
from localcloud.running.shims import OPERATOR_TOKEN

_COMMAND_LIMIT_S: Final = 900.0
_END_LIMIT_S: Final = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectInCloud:
    """A copy of the project in `folder`, and the environment of its local cloud, whose files are in `state`."""

    folder: Path
    state: Path
    variables: Mapping[str, str]
    log: Path
    running: list["subprocess.Popen[str]"] = field(default_factory=list["subprocess.Popen[str]"])
    """Commands that run now."""

    def run(self, command: Sequence[str], *, given: str = "") -> tuple[int, str]:
        """Run a command in the project, and return its exit code and both outputs, which the log keeps too."""
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**self.variables, "COLUMNS": "80"},
            cwd=self.folder,
            start_new_session=True,
        )
        self.running.append(process)
        try:
            text, _ = process.communicate(given, timeout=_COMMAND_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"`{' '.join(command)}` did not end within {_COMMAND_LIMIT_S:.0f} s") from None
        finally:
            _end(process)
            self.running.remove(process)
        with self.log.open("a", encoding="utf-8") as log:
            log.write(f"$ {' '.join(command)}\n{text}(exit code {process.returncode})\n")
        return process.returncode, text

    def gemma(self, *words: str, allowed: Sequence[int] = (0,), given: str = "") -> str:
        """Run a command of the project and return its outputs. Raises AssertionError for another exit code."""
        code, text = self.run([str(self.folder / "gemma"), *words], given=given)
        if code not in allowed:
            last = "; ".join(line.strip() for line in text.strip().splitlines()[-4:])
            raise AssertionError(f"`gemma {' '.join(words)}` ended with {code}: {last}. Log: {self.log}")
        return text

    def gemma_json(self, *words: str, allowed: Sequence[int] = (0,)) -> Mapping[str, Any]:
        """Run a command with `--json` and return its object. Raises AssertionError for another exit code, or without an object."""
        text = self.gemma(*words, "--json", allowed=allowed)
        printed = next((line for line in text.splitlines() if line.startswith("{")), None)
        if printed is None:
            raise AssertionError(f"`gemma {' '.join(words)}` printed no JSON: {text.strip()[-200:]}")
        return cast("Mapping[str, Any]", json.loads(printed))

    @contextmanager
    def in_background(self, *words: str) -> Generator["Future[str]"]:
        """Run a command of the project beside the body, and wait for its end. The future has its outputs, or its AssertionError."""
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(lambda: self.gemma(*words))
            try:
                yield future
            except BaseException:
                for process in tuple(self.running):
                    _end(process)
                raise

    def configure(self, stack: str, **settings: str) -> None:
        """Set settings of a stack; `__` in a name stands for a point."""
        for name, value in settings.items():
            path = f"gemma-serving:{name.replace('__', '.')}"
            self.pulumi("config", "set", "--path", path, value, "--stack", stack)

    def pulumi(self, *words: str, given: str = "") -> str:
        """Run Pulumi's command line and return its outputs. Raises AssertionError if it fails."""
        code, text = self.run(["pulumi", "--non-interactive", *words], given=given)
        if code:
            raise AssertionError(f"`pulumi {' '.join(words)}` ended with {code}: {text.strip()[-300:]}")
        return text

    def get(self, path: str) -> Mapping[str, Any]:
        """Return an answer of the cloud's APIs to its operator, such as `storage/storage/v1/b`."""
        return self.send("GET", path)

    def send(self, method: str, path: str, body: object = None) -> Mapping[str, Any]:
        """Send a request to the cloud's APIs as its operator, and return the answer. `body`: bytes as they are, or else JSON."""
        is_content = isinstance(body, bytes)
        kind = "application/octet-stream" if is_content else "application/json"
        headers = {"Authorization": f"Bearer {self.variables[OPERATOR_TOKEN]}", "Content-Type": kind}
        data = body if is_content else None if body is None else json.dumps(body).encode()
        url = f"{self.variables['LOCALCLOUD_URL']}/{path}"
        asked = urllib.request.Request(url, data=data, headers=headers, method=method)  # noqa: S310 - the local cloud
        with DIRECT.open(asked, timeout=60) as answer:
            return cast("Mapping[str, Any]", json.loads(answer.read() or b"{}"))


@contextmanager
def project_in_cloud(
    home: RealHome,
    *,
    name: str,
    speed: float,
    variables: Mapping[str, str] | None = None,
    replaced: Mapping[str, str] | None = None,
) -> Generator[ProjectInCloud]:
    """Copy the project, start its local cloud, yield both, and stop the cloud. The copy is deleted at the next run.

    `variables`: of the cloud's process. `replaced`: texts in the files of the copy that name images, such as digests.
    """
    base = home.folder / "projects" / name
    shutil.rmtree(base, ignore_errors=True)
    folder = base / "project"
    copy_project(ROOT, folder)
    for path in (ROOT / "gemma", *shipped_files(ROOT)):  # an example is deployed from the project's folder
        shutil.copy2(path, folder / path.name)
    for path in (path for pattern in ("*.json", "*.py") for path in folder.rglob(pattern)):
        _replace(path, replaced or {})
    with running_cloud(home, name=name, folder=folder, state=base / "cloud", speed=speed, variables=variables) as cloud:
        log = home.results / f"{name}.log"
        yield ProjectInCloud(folder=folder, state=cloud.state, variables=cloud.environment, log=log)


def _end(process: "subprocess.Popen[str]") -> None:
    """End a command that still runs, with all that it started: as Ctrl-C does, then by force."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_END_LIMIT_S)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _replace(path: Path, replaced: Mapping[str, str]) -> None:
    if path.is_symlink() or ".venv" in path.parts:
        return
    text = path.read_text(encoding="utf-8")
    changed = text
    for old, new in replaced.items():
        changed = changed.replace(old, new)
    if changed != text:
        path.write_text(changed, encoding="utf-8")
