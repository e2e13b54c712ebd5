"""The chart of an InferencePool and its endpoint picker, rendered by Helm with the command that a plan prints."""

import os
import shlex
import shutil
from pathlib import Path
from typing import Final

import pytest
import yaml

from dev.judges.real.home import Need, RealHome, go_compiler, run
from dev.judges.real.kubernetes.api import Object
from dev.judges.real.kubernetes.world import EXTENSION, downloaded
from gemma_serving.gke.objects import picker_commands
from gemma_serving.gke.server_inputs import GkeServer
from localcloud.go_build import cache_folder, locked

HELM: Final = "3.22.0"


def ensure_helm(home: RealHome) -> Path:
    """Return Helm, after building it if necessary. Skips the test without Go or if the build fails."""
    folder = cache_folder("helm") / HELM
    program = folder / "helm"
    if not program.is_file():
        go = go_compiler("build Helm")
        home.get(Need(what=f"Helm {HELM}", where=str(folder), disk_gib=1, takes_s=600))
        with locked(folder):
            command = [go, "install", f"helm.sh/helm/v3/cmd/helm@v{HELM}"]
            done = run(command, environment={**os.environ, "GOBIN": str(folder)}, limit_s=1800)
        if done.returncode:
            pytest.skip(f"`{' '.join(command)}` failed: {done.stderr[-200:]}")
    return program


def copied_chart(helm: Path, folder: Path) -> Path:
    """Return the chart's sources in a folder of ours, where Helm puts the library that the published chart contains."""
    charts = folder / "charts"
    shutil.copytree(downloaded(EXTENSION) / "config/charts", charts, copy_function=shutil.copyfile)
    for path in (charts, *charts.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    chart = charts / "inferencepool"
    done = run([str(helm), "dependency", "build", str(chart)])
    assert not done.returncode, done.stderr
    return chart


def rendered(helm: Path, chart: Path, server: GkeServer) -> list[Object]:
    """Return the chart's objects for the printed command, which names the published chart by its address."""
    program, _, _, name, _, version, *values = shlex.split(picker_commands(server)[0])
    assert (program, version) == ("helm", f"--version={EXTENSION.rpartition('@')[2]}")
    done = run([str(helm), "template", name, str(chart), *values])
    assert not done.returncode, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]
