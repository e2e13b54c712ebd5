"""A local cloud beside the real parts, and the Pulumi engine on it."""

import json
import os
import shutil
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Final, cast

from authors.real.home import ROOT, RealHome, run
from authors.real.service import Service

_HIDDEN: Final = ("PULUMI_", "GOOGLE_", "CLOUDSDK_")
"""Variables of a real project, which must not reach the local one."""
_READY: Final = "Admin API:"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalCloud:
    """A local cloud that runs. `environment` is what `localcloud env` prints, added to the run's own without variables of a real project."""

    environment: Mapping[str, str]

    def pulumi(
        self, folder: Path, *words: str, variables: Mapping[str, str] | None = None, limit_s: float = 600
    ) -> CompletedProcess[str]:
        """Run a command of the engine in a folder, without questions and colours."""
        command = [str(Path(sys.executable).with_name("pulumi")), *words, "--non-interactive", "--color=never"]
        found = {**self.environment, **(variables or {})}
        return run(
            ["env", "-i", *(f"{key}={value}" for key, value in found.items()), *command], limit_s=limit_s, folder=folder
        )


@contextmanager
def running_cloud(
    home: RealHome, *, name: str, scenario: str = "prepared", providers: str = "standin"
) -> Generator[LocalCloud]:
    """Start a local cloud with an empty state, and stop it and delete its state at the end."""
    state = home.folder / "clouds" / name
    shutil.rmtree(state, ignore_errors=True)
    state.mkdir(parents=True)
    home.results.mkdir(parents=True, exist_ok=True)
    log = home.results / f"cloud-{name}.log"
    log.unlink(missing_ok=True)
    options = ["--state", str(state), "--scenario", scenario, "--providers", providers]
    own = {key: value for key, value in os.environ.items() if not key.startswith(_HIDDEN)}
    service = Service([sys.executable, "-m", "localcloud", "serve", *options], log, {"PYTHONPATH": _packages()})
    try:
        service.start(lambda: log.is_file() and _READY in log.read_text(encoding="utf-8", errors="replace"))
        printed = run(
            [sys.executable, "-m", "localcloud", "env", "--state", str(state), "--json"],
            environment={"PYTHONPATH": _packages()},
        )
        yield LocalCloud(environment={**own, **cast("dict[str, str]", json.loads(printed.stdout))})
    finally:
        service.stop()
        shutil.rmtree(state, ignore_errors=True)


def _packages() -> str:
    return str(ROOT / "packages")
