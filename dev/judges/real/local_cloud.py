"""A local cloud beside the real parts, and the Pulumi engine on it."""

import json
import os
import shutil
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Final, cast

from dev.judges.real.home import ROOT, RealHome, run
from dev.judges.real.service import Service

HIDDEN: Final = ("PULUMI_", "GOOGLE_", "CLOUDSDK_")
"""Starts of the variables of a real project, which must not reach the local one."""
SCENARIO: Final = "prepared"
_COMMAND_LIMIT_S: Final = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalCloud:
    """A local cloud that runs. `environment` is what `localcloud env` prints, added to the run's own without variables of a real project."""

    environment: Mapping[str, str]
    state: Path

    def pulumi(self, folder: Path, *words: str, variables: Mapping[str, str] | None = None) -> CompletedProcess[str]:
        """Run a command of the engine in a folder, without questions and colours."""
        command = [str(Path(sys.executable).with_name("pulumi")), *words, "--non-interactive", "--color=never"]
        found = {**self.environment, **(variables or {})}
        return run_with_only(found, command, folder)


def run_with_only(variables: Mapping[str, str], command: Sequence[str], folder: Path) -> CompletedProcess[str]:
    """Run a command in a folder with these variables and no others."""
    words = ["env", "-i", *(f"{name}={value}" for name, value in variables.items()), *command]
    return run(words, limit_s=_COMMAND_LIMIT_S, folder=folder)


@contextmanager
def running_cloud(
    home: RealHome,
    *,
    name: str,
    folder: Path = ROOT,
    state: Path | None = None,
    speed: float | None = None,
    variables: Mapping[str, str] | None = None,
) -> Generator[LocalCloud]:
    """Start a local cloud with an empty state, and stop it at the end.

    `folder`: the checkout whose local cloud it is. `state`: its files, which are deleted at the next run. `variables`: of its process.
    """
    state = state or home.folder / "clouds" / name
    shutil.rmtree(state, ignore_errors=True)
    state.mkdir(parents=True)
    home.results.mkdir(parents=True, exist_ok=True)
    # By this name of the environment, a copy of the project finds its own packages.
    localcloud = [str(folder / ".venv/bin/python"), "-m", "localcloud"]
    speeds = [] if speed is None else [f"--speed={speed}"]
    command = [*localcloud, "serve", "--providers=standin", f"--state={state}", f"--scenario={SCENARIO}", *speeds]
    asked = [*localcloud, "env", f"--state={state}", "--json"]
    service = Service(command, home.results / f"cloud-{name}.log", variables, folder=folder)
    try:
        service.start(lambda: run(asked, folder=folder).returncode == 0)
        printed = cast("dict[str, str]", json.loads(run(asked, folder=folder).stdout))
        own = {key: value for key, value in os.environ.items() if not key.startswith(HIDDEN)}
        yield LocalCloud(environment={**own, **printed}, state=state)
    finally:
        service.stop()
