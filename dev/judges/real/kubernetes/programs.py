"""The control plane and Pulumi's provider, built once from their Go modules."""

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from dev.judges.real.home import Need, RealHome, digest_of, go_compiler, run
from localcloud.go_build import (
    BuildFolder,
    GoBuildError,
    GoProgram,
    cache_folder,
    compile_program,
    environment,
    locked,
    new_folder,
)

_HERE: Final = Path(__file__).parent
KUBERNETES: Final = "1.36.3"
PROVIDER: Final = "4.25.0"
"""The wheel's version, and the one that the provider reports: its module has only a version by date."""
_PROVIDER_MODULE: Final = "github.com/pulumi/pulumi-kubernetes/provider/v4"
_EMBEDDED: Final = ("schema.json", "terraform-mapping.json")
_CONTROL_PLANE: Final = {
    "etcd": ("go.etcd.io/etcd/server/v3", 572),
    "kube-apiserver": ("k8s.io/kubernetes/cmd/kube-apiserver", 2030),
    "kube-controller-manager": ("k8s.io/kubernetes/cmd/kube-controller-manager", 2410),
    "kube-scheduler": ("k8s.io/kubernetes/cmd/kube-scheduler", 1418),
}
"""Package of each program, and the packages that a first build compiles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """Folders of the built programs."""

    control_plane: Path
    provider: Path


def ensure(home: RealHome) -> Programs:
    """Return the programs, after building them if necessary. Skips the test without Go or if a build fails."""
    root = cache_folder("kubernetes")
    found = {name: root / name / digest_of(_HERE / name) for name in ("control_plane", "provider")}
    if not all(folder.is_dir() for folder in found.values()):
        go = go_compiler("build the control plane")
        home.get(Need(what=f"Kubernetes {KUBERNETES} and pulumi-kubernetes", where=str(root), disk_gib=8, takes_s=1200))
        with locked(root):
            _build(go, found)
    return Programs(**found)


def _build(go: str, targets: dict[str, Path]) -> None:
    try:
        if not targets["control_plane"].is_dir():
            with new_folder(targets["control_plane"], _HERE / "control_plane") as folder:
                for name, (package, count) in _CONTROL_PLANE.items():
                    flags = f"-s -w -X k8s.io/component-base/version.gitVersion=v{KUBERNETES}"
                    program = GoProgram(label=name, name=name, package=package, packages=count, linker_flags=flags)
                    compile_program(go, program, folder.module, folder.result / name, modules=folder.modules)
        if not targets["provider"].is_dir():
            with new_folder(targets["provider"], _HERE / "provider") as folder:
                _build_provider(go, folder)
    except GoBuildError as error:
        pytest.skip(str(error))


def _build_provider(go: str, folder: BuildFolder) -> None:
    """Compile the provider with its schema, whose version its own generator writes before a build."""
    command = [go, "mod", "download", "-json", _PROVIDER_MODULE]
    done = run(command, folder=folder.module, environment=environment(folder.modules), limit_s=600)
    if done.returncode:
        raise GoBuildError(f"`{' '.join(command)}` failed: {done.stdout}{done.stderr}")
    sources = Path(json.loads(done.stdout)["Dir"]) / "cmd/pulumi-resource-kubernetes"
    for name in _EMBEDDED:
        shutil.copyfile(sources / name, folder.module / name)
    schema = folder.module / _EMBEDDED[0]
    text = schema.read_text(encoding="utf-8")
    schema.write_text(json.dumps(json.loads(text) | {"version": PROVIDER}), encoding="utf-8")
    program = GoProgram(
        label="pulumi-kubernetes",
        name="pulumi-kubernetes",
        package=".",
        packages=1748,
        linker_flags=f"-s -w -X {_PROVIDER_MODULE}/pkg/version.Version=v{PROVIDER}",
    )
    compile_program(go, program, folder.module, folder.result / "pulumi-resource-kubernetes", modules=folder.modules)


def module_version(module: str) -> str:
    """Return the version of a module of the control plane, from its go.mod."""
    text = (_HERE / "control_plane" / "go.mod").read_text(encoding="utf-8")
    found = re.search(rf"^\s*(?:require )?{re.escape(module)} v(\S+)", text, re.MULTILINE)
    return found[1] if found else ""
