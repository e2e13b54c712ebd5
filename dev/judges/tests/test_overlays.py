"""The command that plans Google's manifests, with a stand-in for kubectl's kustomize."""

import json
import subprocess

import pytest

from dev.judges.overlays import __main__ as overlays
from dev.judges.overlays import page

FOLDER = "platforms/gke/base/use-cases/inference-ref-arch/kubernetes-manifests/online-inference-tpu"
SERVER = """\
kind: Deployment
metadata: {name: decode}
spec: {template: {spec: {containers: [{name: modelserver, args: [--model=google/gemma-4-31B-it, --tensor-parallel-size=4]}]}}}
"""
FILES = {
    f"{FOLDER}/base/templates/deployment.tpl.env": "BUCKET=${bucket}\n",
    f"{FOLDER}/llmd/vllm/base/kustomization.yaml": "resources:\n  - https://example.com/llm-d//guides?ref=main\n  - ../../../base\n",
    f"{FOLDER}/llmd/vllm/v6e-gemma-4-31b/kustomization.yaml": "replacements: [{source: {}}]\nresources: [../base]\n",
    f"{FOLDER}/llmd/vllm/v6e-gemma-4-31b/patch-args.yaml": SERVER,
    f"{FOLDER}/llmd/vllm/v6e-qwen3/kustomization.yaml": "resources: [../base]\n",
    f"{FOLDER}/vllm/v6e-gemma-4-broken/kustomization.yaml": "resources: []\n",
}
ON_A_NODE = SERVER.replace(
    "containers: [", "nodeSelector: {cloud.google.com/compute-class: tpu-v6e-2x2}, containers: ["
).replace("args: [", 'resources: {limits: {google.com/tpu: "4"}}, image: vllm/vllm-tpu, args: [')
KUBECTL = f"""\
#!/bin/sh
case "$2" in *broken) echo "no such base" >&2; exit 1;; esac
test ! -e "$2/../base/remote.yaml" && exit 3
grep -q "^BUCKET=unknown" "$2/../../../base/deployment.env" || exit 4
grep -q replacements "$2/kustomization.yaml" && exit 5
cat <<'END'
{ON_A_NODE}
END
"""


@pytest.fixture
def copy(tmp_path, monkeypatch):
    repository = tmp_path / "repository"
    for name, text in FILES.items():
        path = repository / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git = ["git", "-C", str(repository), "-c", "user.name=a", "-c", "user.email=a@example.com"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "overlays"]):
        subprocess.run([*git, *words], check=True)
    kubectl = tmp_path / "bin" / "kubectl"
    kubectl.parent.mkdir()
    kubectl.write_text(KUBECTL)
    kubectl.chmod(0o755)
    monkeypatch.setenv("PATH", str(kubectl.parent), prepend=":")
    monkeypatch.setattr(overlays, "ROWS", tmp_path / "rows.json")
    monkeypatch.setattr(page, "ROWS", tmp_path / "rows.json")
    return repository / ".git"


def test_each_overlay_of_the_model_is_planned_or_has_its_reason(copy):
    assert overlays.run_command(overlays.COMMAND, ["--git", str(copy)]) == 1
    one, other = json.loads(page.ROWS.read_text())["rows"]
    assert (one["overlay"], one["verdict"], one["reason"]) == ("tpu/llmd/vllm/v6e-gemma-4-31b", "fits", "")
    assert one["planned"] == "google/gemma-4-31B-it on v6e-4, tensorParallelSize 4"
    assert (other["verdict"], other["reason"]) == ("", "kubectl kustomize: no such base")
    text = page.page()
    assert "2 overlays, 1 of them planned" in text
    assert "- `tpu/vllm/v6e-gemma-4-broken`: kubectl kustomize: no such base" in text


def test_a_folder_without_git_is_one_sentence(copy, capsys):
    assert overlays.run_command(overlays.COMMAND, ["--git", str(copy / "nothing")]) == 1
    assert "git log in" in capsys.readouterr().err
