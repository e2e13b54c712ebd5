"""A Pulumi project whose program registers the objects of a stack through the component, with the real engine and provider."""

import json
import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Final

from dev.judges.real.home import ROOT, RealHome
from dev.judges.real.kubernetes.api import Object
from dev.judges.real.kubernetes.cluster import Cluster
from dev.judges.real.kubernetes.programs import Programs
from dev.judges.real.local_cloud import HIDDEN, run_with_only

_PROGRAM: Final = Path(__file__).with_name("program")
_STACK: Final = "judged"


@dataclass(frozen=True, slots=True, kw_only=True)
class GkeProject:
    """A project folder with its own state, for one namespace."""

    folder: Path
    cluster: Cluster
    programs: Programs

    def variables(self, path: str, root: Path) -> dict[str, str]:
        """Return the environment of an engine that deploys to the cluster. `path`: of programs. `root`: the checkout with the modules."""
        modules = [str(root), str(root / "packages"), os.environ.get("PYTHONPATH", "")]
        return {
            "PATH": f"{self.programs.provider}:{path}",
            "PYTHONPATH": os.pathsep.join(modules),
            "KUBECONFIG": str(self.cluster.folder / "kubeconfig"),
        }

    def pulumi(self, *words: str) -> CompletedProcess[str]:
        """Run the engine on the stack, without the variables of a real project."""
        own = {key: value for key, value in os.environ.items() if not key.startswith(HIDDEN)}
        own |= self.variables(own["PATH"], ROOT)
        own |= {"PULUMI_BACKEND_URL": f"file://{self.folder}", "PULUMI_CONFIG_PASSPHRASE": "judge"}
        pulumi = [str(Path(sys.executable).with_name("pulumi")), "--non-interactive", "--color=never", *words]
        return run_with_only(own, [*pulumi, f"--stack={_STACK}"], self.folder)

    def up(self, objects: Sequence[Object]) -> str:
        """Deploy objects without a preview, and return the engine's summary or the first error."""
        (self.folder / "objects.json").write_text(json.dumps(objects), encoding="utf-8")
        return told(self.pulumi("up", "--yes", "--skip-preview"))

    def destroy(self) -> str:
        """Destroy the stack, and return the engine's summary or the first error."""
        return told(self.pulumi("destroy", "--yes", "--skip-preview"))


def new_project(home: RealHome, cluster: Cluster, programs: Programs, namespace: str) -> GkeProject:
    """Make a namespace, which belongs to the cluster's owner, and a project for it."""
    cluster.api.call("POST", "api/v1/namespaces", {"metadata": {"name": namespace}})
    folder = home.folder / "kubernetes" / namespace
    shutil.copytree(_PROGRAM, folder)
    (folder / ".venv").symlink_to(ROOT / ".venv")
    project = GkeProject(folder=folder, cluster=cluster, programs=programs)
    settings = [
        f"--plaintext={key}={value}" for key, value in {"objects": "objects.json", "namespace": namespace}.items()
    ]
    for words in (["stack", "init"], ["config", "set-all", *settings]):
        done = project.pulumi(*words)
        assert done.returncode == 0, told(done)
    return project


def told(done: CompletedProcess[str]) -> str:
    """Return the counts of resources after a run, or "error: " and the provider's sentence."""
    text = done.stdout + done.stderr
    if done.returncode == 0:
        counts = re.findall(r"^\s+[+~-]?\s?(\d+ (?:created|updated|deleted|unchanged|replaced))", text, re.MULTILINE)
        return ", ".join(counts) or "no changes"
    found = [
        each
        for each in re.findall(r"^\s*(error: .*(?:\n\s{4,}.*)*)", text, re.MULTILINE)
        if not re.search(r"(update|destroy) failed$", each)
    ]
    return " ".join((found[0] if found else f"error: {text[-400:]}").split())
