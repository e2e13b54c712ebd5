"""Plan each overlay of Gemma 4 in a copy of Google's accelerated-platforms.

  make -C dev/judges overlays GIT=accelerated-platforms.git
  make -C dev/judges overlays GIT=accelerated-platforms.git REVISION=main

GIT is a git directory, bare or not; REVISION is any of its commits. Needs
`kubectl`, whose kustomize renders each overlay. Prints what a plan cannot
express, and writes the rows of dev/docs/overlays.md with the date.
Exit code 1 if an overlay cannot be rendered.
"""

import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, Final

import yaml

from dev.judges.overlays.page import ROWS
from dev.judges.planted import refuse_planted
from gemma_serving.contracts.errors import ScriptError
from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.contracts.fields import as_mapping, as_sequence
from gemma_serving.scripts.cli.command import Command, print_progress, run_command
from gemma_serving.scripts.cli.options import Option

_MANIFESTS: Final = "platforms/gke/base/use-cases/inference-ref-arch/kubernetes-manifests"
_OURS: Final = re.compile(r"online-inference-(?:gpu|tpu)/.*/[^/]*gemma-4[^/]*")
_REMOTE: Final = re.compile(r"https://\S+")
_RENDER: Final = "kubectl kustomize"
_UNKNOWN: Final = re.compile(r"\$\{\w+\}")
_SHOWN: Final = ("tensorParallelSize", "dataParallelSize", "maxModelLen", "kvCacheDtype", "tpuQuantization")
_SEVERITIES: Final = ("block", "warn")
_TOO_LARGE: Final = """\
kind: Deployment
metadata: {name: planted}
spec:
  template:
    spec:
      nodeSelector: {cloud.google.com/compute-class: tpu-v6e-1x1}
      containers:
      - {name: server, image: vllm/vllm-tpu, args: [--model=google/gemma-4-31B-it], resources: {limits: {google.com/tpu: "1"}}}
"""


@dataclass(frozen=True, kw_only=True)
class OverlaysOptions:
    """Options of the command."""

    git: Annotated[Path, Option("A git directory of GoogleCloudPlatform/accelerated-platforms.", metavar="DIR")] = (
        Path()
    )
    revision: Annotated[str, Option("The commit to read.", metavar="REVISION")] = "HEAD"


def _run(options: OverlaysOptions) -> ExitCode:
    if shutil.which("kubectl") is None:
        raise ScriptError(
            "kubectl is not in PATH, and its kustomize renders the overlays. Install kubectl, then run the command again."
        )
    planted_lie()
    commit = _git(options.git, "log", "-1", "--format=%H %cs", options.revision).decode().split()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        with tarfile.open(fileobj=BytesIO(_git(options.git, "archive", options.revision, _MANIFESTS))) as archive:
            archive.extractall(folder, filter="data")
        rows = [_planned(one, folder) for one in _overlays(folder / _MANIFESTS)]
    for row in rows:
        print_progress("overlays", f"{row['overlay']}: {row['reason'] or 'expressed'}")
    found = {"commit": commit[0], "dated": commit[1], "read": f"{datetime.now(UTC):%Y-%m-%d}", "rows": rows}
    ROWS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return ExitCode.FAILED if any(row["reason"].startswith(_RENDER) for row in rows) else ExitCode.DONE


def _git(folder: Path, *words: str) -> bytes:
    done = subprocess.run(["git", "--git-dir", str(folder), *words], capture_output=True, check=False)
    if done.returncode:
        raise ScriptError(f"git {words[0]} in {folder} failed: {done.stderr.decode().strip().splitlines()[-1]}")
    return done.stdout


def _overlays(root: Path) -> Iterator[Path]:
    """Yield the folders of the overlays, ready to be rendered: with the files that Terraform writes, and without the bases of other repositories."""
    for template in root.rglob("templates/*.tpl.env"):
        written = template.parents[1] / template.name.replace(".tpl", "")
        if not written.exists():
            written.write_text(_UNKNOWN.sub("unknown", template.read_text(encoding="utf-8")), encoding="utf-8")
    for base in [*root.rglob("kustomization.yaml")]:
        if _REMOTE.search(base.read_text(encoding="utf-8").partition("resources:")[2]):
            _without_remote(base)
    found = (one.parent for one in root.rglob("kustomization.yaml"))
    yield from sorted(one for one in found if _OURS.fullmatch(one.relative_to(root).as_posix()))


def _without_remote(base: Path) -> None:
    """Replace a base of another repository by the Deployments that the overlays change, and leave out what they fill in elsewhere in it."""
    (base.parent / "remote.yaml").write_text(yaml.safe_dump_all(_deployments(base.parents[1])), encoding="utf-8")
    for path in base.parents[1].rglob("kustomization.yaml"):
        text = path.read_text(encoding="utf-8")
        if path == base:
            text = _REMOTE.sub("remote.yaml", text)
        kept = {key: value for key, value in as_mapping(yaml.safe_load(text)).items() if key != "replacements"}
        path.write_text(yaml.safe_dump(kept), encoding="utf-8")


def _deployments(folder: Path) -> list[dict[str, Any]]:
    """Return the Deployments that the patches in a folder change, each with its containers: what the base has beside them is not read."""
    names: dict[str, set[str]] = {}
    for patch in folder.rglob("patch-*.yaml"):
        for one in map(as_mapping, yaml.safe_load_all(patch.read_text(encoding="utf-8"))):
            if one.get("kind") == "Deployment":
                pod = as_mapping(as_mapping(as_mapping(one.get("spec")).get("template")).get("spec"))
                containers = {str(as_mapping(each).get("name")) for each in as_sequence(pod.get("containers"))}
                names.setdefault(str(as_mapping(one["metadata"])["name"]), set()).update(containers)
    return [_deployment(name, sorted(containers)) for name, containers in sorted(names.items())]


def _deployment(name: str, containers: list[str]) -> dict[str, Any]:
    pod = {"containers": [{"name": one, "image": "unknown", "command": ["vllm", "serve"]} for one in containers]}
    template = {"metadata": {"labels": {"app": name}}, "spec": pod}
    spec = {"selector": {"matchLabels": {"app": name}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


def _planned(overlay: Path, folder: Path) -> Mapping[str, Any]:
    """Return the row of an overlay: what is planned of it, and why not, if it is not."""
    name = overlay.relative_to(folder / _MANIFESTS).as_posix().removeprefix("online-inference-")
    nothing: dict[str, Any] = {"overlay": name, "planned": "", "verdict": "", "block": [], "warn": [], "left": []}
    made = subprocess.run(["kubectl", "kustomize", str(overlay)], capture_output=True, text=True, check=False)
    if made.returncode:
        return nothing | {"reason": f"{_RENDER}: {made.stderr.strip().splitlines()[-1]}".replace(str(folder), "")}
    manifest = folder / "overlay.yaml"
    manifest.write_text(made.stdout, encoding="utf-8")
    words = [sys.executable, "-m", "gemma_serving.scripts.plan", "--from", str(manifest), "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    plan = json.loads(done.stdout)
    if "error" in plan or "findings" not in plan:
        reason = str(plan.get("error", "the manifest names no accelerator that can be read"))
        return nothing | {"reason": reason.replace(str(manifest), "it")}
    pasted = plan["pasted"]
    found = {
        severity: [one["id"] for one in plan["findings"] if one["severity"] == severity] for severity in _SEVERITIES
    }
    left = [word.partition(" ")[0] for word in (*pasted["words"]["extra"], *pasted["words"]["left_out"])]
    keys = (pair.partition("=") for pair in pasted["pairs"])
    named = [(key.rpartition(".")[2], value) for key, _, value in keys]
    shown = [" ".join(one) for one in named if one[0] in _SHOWN]
    return {
        "overlay": name,
        "planned": ", ".join([f"{plan['model']} on {plan['accelerator']}", *shown]),
        "verdict": plan["verdict"],
        **found,
        "left": [word for word in left if word.startswith("-")],
        "reason": "",
    }


def planted_lie() -> None:
    """Refuse the claim that 31B fits on one v6e chip, whose memory is smaller than the weights."""
    with tempfile.TemporaryDirectory() as place:
        overlay = Path(place) / _MANIFESTS / "planted"
        overlay.mkdir(parents=True)
        (overlay / "kustomization.yaml").write_text("resources: [server.yaml]\n", encoding="utf-8")
        (overlay / "server.yaml").write_text(_TOO_LARGE, encoding="utf-8")
        row = _planned(overlay, Path(place))
        refuse_planted("31B fits on one v6e chip", lambda: row["verdict"] == "out-of-memory")


COMMAND: Final = Command(name="overlays", room="dev.judges", help=__doc__, options=OverlaysOptions, run=_run)

if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
