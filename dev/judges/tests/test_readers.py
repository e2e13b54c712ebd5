"""Each judge refuses its planted lie, what is stored agrees with today's plan, and the compiler's process is confined. No real part is installed here."""

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from dev.judges import pages, releases
from dev.judges.accuracy import bands, documents
from dev.judges.compiled.fit import fitted_rows
from dev.judges.compiled.rows import ROWS, half_of
from dev.judges.compiled.stored_answers import read_answers
from dev.judges.overlays import __main__ as overlays
from dev.judges.overlays import page
from dev.judges.tpu_compiler.child import run_child
from dev.judges.tpu_compiler.confined import clean_environment
from dev.judges.tpu_compiler.judged_plan import planned_of
from gemma_serving.planning.cost.subject import examine
from gemma_serving.planning.data.overheads import CONSTANTS
from gemma_serving.planning.planner import plan, plan_of
from gemma_serving.planning.settings.image import image_of_version
from gemma_serving.scripts.cli.command import run_command
from gemma_serving.scripts.plan.question import question_from
from tests.planning.corpus.measured import load, subject_of

JUDGES = Path(__file__).resolve().parents[1]
PLANTED = [path for path in sorted(JUDGES.rglob("*.py")) if "\ndef planted_lie(" in path.read_text(encoding="utf-8")]
WITHOUT = {"compiler_locks", "plan", "planted", "tests"}
"""They judge nothing. `plan` asks `tpu_compiler`."""
READS = """
import json, os
def read(name):
    try:
        return bool(open(f"/proc/{os.getppid()}/{name}", "rb").read(1))
    except PermissionError:
        return "denied"
words = f"{sorted(os.environ.keys() - {'LC_CTYPE'})}, {read('environ')}, {read('mem')}"
print(json.dumps({"event": "failed", "stage": "config", "words": words}))
"""
"""The code of other authors tries to read what its parent has."""
NOT_BUILT = "tpu-v6e1-26b-w4a16"
"""No wheel has 4-bit experts."""
WITHIN_GIB = 0.1
"""Largest difference of a held-out step."""
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
case "$2" in
*planted) cat "$2/server.yaml"; exit;;
*broken) echo "no such base" >&2; exit 1;;
esac
test ! -e "$2/../base/remote.yaml" && exit 3
grep -q "^BUCKET=unknown" "$2/../../../base/deployment.env" || exit 4
grep -q replacements "$2/kustomization.yaml" && exit 5
cat <<'END'
{ON_A_NODE}
END
"""


@pytest.fixture(autouse=True)
def _kubectl(tmp_path, monkeypatch):
    kubectl = tmp_path / "bin" / "kubectl"
    kubectl.parent.mkdir()
    kubectl.write_text(KUBECTL)
    kubectl.chmod(0o755)
    monkeypatch.setenv("PATH", str(kubectl.parent), prepend=":")


@pytest.mark.parametrize("path", PLANTED, ids=lambda path: path.relative_to(JUDGES).as_posix())
def test_a_judge_refuses_its_planted_lie(path):
    import_module(".".join(path.relative_to(JUDGES.parents[1]).with_suffix("").parts)).planted_lie()


def test_each_judge_has_one():
    rooms = {path.relative_to(JUDGES).with_suffix("").parts[0] for path in JUDGES.rglob("*.py")}
    assert {path.relative_to(JUDGES).with_suffix("").parts[0] for path in PLANTED} == rooms - WITHOUT - {"__init__"}


def test_every_page_is_up_to_date(capsys):
    assert run_command(pages.COMMAND, ["--check"]) == 0, capsys.readouterr().out


def test_releases_every_bound_has_an_entry_and_without_folders_nothing_is_proved(capsys):
    assert run_command(releases.COMMAND, []) == 0
    assert "\n0 proved, 0 refuted, " in capsys.readouterr().out


def test_bands_the_planners_table_is_what_the_corpus_gives(capsys):
    assert bands.main() == 0, capsys.readouterr().out


def test_documents_001_ran_on_a_release_before_the_one_from_which_the_plan_blocks_its_command():
    boot = load().boot("turbo-26b-v6e-4")
    assert plan_of(subject_of(boot)).fits
    (row,) = [line for line in documents.page().splitlines() if line.startswith("| 001 | vllm serve")]
    assert '--speculative-config={"method":"ngram","num_speculative_tokens":3}' in row
    for release, blocks in (("0.22.0", False), ("0.23.0", True)):
        found = plan(boot.deployment.changed(image=image_of_version(release))).findings
        assert ("FIT05" in [finding.id for finding in found if finding.severity == "block"]) is blocks


def test_compiled_the_plan_of_today_is_what_upstreams_server_was_built_with(subtests):
    answers = read_answers()
    assert not {row.name for row in ROWS if row.group == "stack"} - answers.keys()
    for row in [row for row in ROWS if row.name in answers and row.group != "grid"]:
        with subtests.test(row.name):
            planned, answer = planned_of(plan_of(examine(question_from(row.question)))), answers[row.name]
            assert planned.fits == answer["planned"]["fits"]
            if planned.fits and row.name != NOT_BUILT:
                assert answer["verdict"] == "agrees", answer["sentence"]
                assert planned.weights_gib == pytest.approx(answer["built"]["weights_gib"], rel=0.002)
                assert planned.kv_blocks == answer["built"]["kv_blocks"]
    steps = {name: abs(needs_gib - compiled_gib) for name, compiled_gib, needs_gib in fitted_rows(answers)}
    assert max(off for name, off in steps.items() if half_of(name) == "held out") <= WITHIN_GIB
    assert CONSTANTS["TPU_PROGRAM_MARGIN_GIB"].value == pytest.approx(max(steps.values()), abs=0.005)


def test_the_compilers_process_has_no_variable_of_the_user_and_reads_none_of_other_processes(tmp_path):
    words = [sys.executable, "-I", "-c", READS]
    _, reason = run_child(words, clean_environment({"VLLM_X": "1"}, tmp_path), tmp_path / "log", report=lambda _: None)
    assert ": ['HOME', 'PATH', 'VLLM_X'], denied, denied. Log: " in reason


def test_overlays_of_the_model_are_planned_or_have_their_reasons(tmp_path, monkeypatch):
    for name, text in FILES.items():
        path = tmp_path / "repository" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git = ["git", "-C", str(tmp_path / "repository"), "-c", "user.name=a", "-c", "user.email=a@example.com"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "overlays"]):
        subprocess.run([*git, *words], check=True)
    for module in (overlays, page):
        monkeypatch.setattr(module, "ROWS", tmp_path / "rows.json")
    assert run_command(overlays.COMMAND, ["--git", str(tmp_path / "repository" / ".git")]) == 1
    one, other = json.loads(page.ROWS.read_text())["rows"]
    assert (one["overlay"], one["verdict"], one["reason"]) == ("tpu/llmd/vllm/v6e-gemma-4-31b", "fits", "")
    assert one["planned"] == "google/gemma-4-31B-it on v6e-4, tensorParallelSize 4"
    assert (other["verdict"], other["reason"]) == ("", "kubectl kustomize: no such base")
    assert "- `tpu/vllm/v6e-gemma-4-broken`: kubectl kustomize: no such base" in page.page()
