"""`--stack NAME --fix`: a file with a mistake that blocks becomes one that fits, and nothing else in it changes."""

import re
from pathlib import Path

import pytest

from planning import PlanningError, plan
from scripts.cli.settings_file import SettingsFile
from scripts.plan.__main__ import main
from scripts.plan.fix import fixed_file
from stacks.loading import from_file
from stacks.planned import to_deployment
from tests.planning.test_incidents import EVERY, ROOT, SMALL, Incident

BLOCKING = [(identifier, incident) for identifier, incident in EVERY if incident.severity == "block"]
STACKS = sorted(ROOT.glob("Pulumi.*.yaml"))


def planted(folder: Path, incident: Incident) -> Path:
    """Write the stack's file with the mistake, its comments and its order kept."""
    original = SettingsFile(ROOT / f"Pulumi.{incident.stack}.yaml")
    original.apply(incident.edit)
    path = folder / f"Pulumi.{incident.stack}.yaml"
    path.write_text(original.text(), encoding="utf-8")
    return path


def fits(path: Path) -> bool:
    return plan(to_deployment(from_file(path, project="my-project"))).fits


def comments(text: str) -> list[str]:
    return re.findall(r"#.*", text)


@pytest.fixture
def command(monkeypatch, tmp_path, capsys):
    """Run the command on stacks in a folder of their own; returns exit code, stdout and stderr."""
    monkeypatch.setattr("scripts.plan.question.ROOT", tmp_path)

    def run(*arguments: str):
        code = main(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.mark.parametrize(("identifier", "incident"), BLOCKING, ids=[f"{b[0]}-{i}" for i, b in enumerate(BLOCKING)])
def test_what_blocks_is_removed_and_everything_else_is_kept(tmp_path: Path, identifier: str, incident: Incident):
    path = planted(tmp_path, incident)
    before = path.read_text(encoding="utf-8")
    assert not fits(path)
    fixed = fixed_file(path)
    assert fixed.plan.fits
    assert identifier in fixed.removed
    path.write_text(fixed.text, encoding="utf-8")
    assert fits(path)
    if "target:" not in "".join(set(fixed.text.splitlines()) - set(before.splitlines())):
        assert comments(fixed.text) == comments(before)
        assert len(set(before.splitlines()) - set(fixed.text.splitlines())) <= 8, "a few lines change, not the file"
    assert fixed_file(path).text == fixed.text, "a fixed file needs nothing more"


@pytest.mark.parametrize("path", STACKS, ids=lambda path: path.name)
def test_a_file_that_fits_needs_nothing_and_keeps_every_character(command, tmp_path: Path, path: Path):
    copy = tmp_path / path.name
    copy.write_bytes(path.read_bytes())
    name = path.name.removeprefix("Pulumi.").removesuffix(".yaml")
    code, out, err = command("--stack", name, "--fix", "--write")
    assert (code, out) == (0, "")
    assert err == f"plan: {path.name} needs no change.\n"
    assert copy.read_bytes() == path.read_bytes()


def test_several_mistakes_are_removed_one_after_the_other(command, tmp_path: Path):
    edit = {
        "model": "google/gemma-4-26B-A4B-it-qat-w4a16-ct",
        **SMALL,
        "cloudRun.region": "europe-west3",
        "cloudRun.gpuQuota": 1,
        "cloudRun.maxInstances": 2,
        "vllm.extraArgs": ["--api-key=canary", "--seed=1"],
        "endpointUrl": "http://localhost:1234",
    }
    path = planted(tmp_path, Incident("l4-qat", edit, "block", ""))
    before = path.read_text(encoding="utf-8")
    code, out, err = command("--stack", "l4-qat", "--fix")
    assert (code, err) == (0, "")
    for line in (
        "+  gemma-serving:model: xbill9/gemma-4-26B-A4B-it-qat-q4_0-w4a16-ct",
        "-    memory: 16Gi",
        "+    memory: 32Gi",
        "+    region: europe-west1",
        "+    maxInstances: 1",
        "+  gemma-serving:endpointUrl: http://127.0.0.1:1234",
    ):
        assert f"\n{line}\n" in out
    assert "--- a/Pulumi.l4-qat.yaml\n+++ b/Pulumi.l4-qat.yaml\n" in out
    assert path.read_text(encoding="utf-8") == before, "without --write nothing is changed"
    code, out, err = command("--stack", "l4-qat", "--fix", "--write")
    assert code == 0
    assert "plan: changed Pulumi.l4-qat.yaml; resolved " in err
    assert fits(path)
    assert comments(path.read_text(encoding="utf-8")) == comments(before)
    assert "canary" not in path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("stack", "edit", "wanted"),
    [
        (
            "tpu-v6e1-e4b",
            {"model": "google/gemma-4-31B-it", "vllm.maxModelLen": 200_000},
            ("target: cloud-run", "image: vllm-openai", "gpu: nvidia-rtx-pro-6000", "memory: 80Gi"),
        ),
        (
            "l4-qat",
            {"model": "google/gemma-4-31B-it", "cloudRun.gpu": "nvidia-rtx-pro-6000", "vllm.maxModelLen": 262_144},
            (),
        ),
    ],
)
def test_a_move_to_the_other_target_loads_with_its_block_and_its_image(tmp_path: Path, stack, edit, wanted):
    path = planted(tmp_path, Incident(stack, edit, "block", ""))
    fixed = fixed_file(path)
    assert fixed.plan.fits
    path.write_text(fixed.text, encoding="utf-8")
    assert fits(path)
    for text in wanted:
        assert text in fixed.text


def test_a_finding_without_a_remedy_stays_and_is_said(command, tmp_path: Path, monkeypatch):
    monkeypatch.setattr("scripts.plan.fix._first_remedy", lambda _: None)
    planted(tmp_path, Incident("l4-qat", SMALL, "block", ""))
    code, out, err = command("--stack", "l4-qat", "--fix")
    assert (code, out) == (2, "")
    assert "plan: Pulumi.l4-qat.yaml cannot be fixed.\n" in err
    assert "plan: FIT03 still blocks: Loading the " in err


@pytest.mark.parametrize(
    ("text", "said"), [("config: {}", "has no settings"), ("a: [", "is not YAML"), ("", "has no settings")]
)
def test_a_file_that_does_not_load_is_refused_with_its_mistake(tmp_path: Path, text: str, said: str):
    path = tmp_path / "Pulumi.x.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(PlanningError, match=said):
        fixed_file(path)


def test_a_removed_key_leaves_the_comments_of_its_neighbours(tmp_path: Path):
    path = tmp_path / "Pulumi.x.yaml"
    text = (
        "config:\n  # the target\n  gemma-serving:target: tpu # why\n  # the model\n  gemma-serving:model: a/b\n"
        "  gemma-serving:tpu:\n    zones: [a] # one\n    # inside\n    provisioning: spot\n  # the image\n  gemma-serving:image: vllm-tpu\n"
    )
    path.write_text(text, encoding="utf-8")
    file = SettingsFile(path)
    file.apply({"model": None, "tpu": None})
    assert file.text() == (
        "config:\n  # the target\n  gemma-serving:target: tpu # why\n  # the model\n  # the image\n  gemma-serving:image: vllm-tpu\n"
    )
