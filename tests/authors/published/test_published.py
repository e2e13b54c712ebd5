"""What the nightly job asks: each name of a stack or table, and three answers that are kept apart."""

import json
import shutil
from pathlib import Path

import pytest

from authors.published.__main__ import COMMAND
from authors.published.names import PublishedName, published_names
from contracts.exit_codes import ExitCode
from localcloud.tests import idle_cloud
from localcloud.world.scenario import Fault, Hub, Images, Scenario
from planning.data.checkpoints import CHECKPOINTS
from planning.data.images import IMAGES
from scripts.cli.command import run_command

ROOT = Path(__file__).resolve().parents[3]
EXISTS = "google/gemma-4-E2B-it"


@pytest.fixture(scope="module")
def cloud():
    with idle_cloud.start() as running:
        yield running


@pytest.fixture
def published(cloud, monkeypatch, capsys):
    """A function that runs the command in a scenario; returns its exit code and the answers by name."""
    monkeypatch.setenv("HF_ENDPOINT", f"{cloud.base_url}/hub")
    monkeypatch.setenv("LOCALCLOUD_URL", cloud.base_url)

    def run(**scenario):
        cloud.cloud.scenario = Scenario(**scenario)
        code = run_command(COMMAND, ["--json"])
        return code, {one["name"]: one for one in json.loads(capsys.readouterr().out)}

    return run


def test_every_name_of_a_stack_and_a_table_is_asked_for():
    names = {one.name: one for one in published_names(ROOT)}
    assert set(CHECKPOINTS) <= names.keys()
    assert {f"{name}@{one.commit}" for name, one in CHECKPOINTS.items() if one.commit} <= names.keys()
    assert {f"{image.repository}@{image.digest}" for image in IMAGES.values()} <= names.keys()
    stacks = {place for one in names.values() for place in one.places if place.startswith("Pulumi.")}
    assert stacks == {path.name for path in ROOT.glob("Pulumi.*.yaml")}


def test_names_in_a_file_of_an_image_and_a_drafter_are_found(tmp_path):
    for path in ("Pulumi.yaml", "Pulumi.tpu-v6e4-31b.yaml"):
        shutil.copy(ROOT / path, tmp_path / path)
    with (tmp_path / "Pulumi.tpu-v6e4-31b.yaml").open("a") as file:
        file.write('  gemma-serving:vllm.speculativeConfig: {model: "org/drafter", num_speculative_tokens: 3}\n')
    (tmp_path / "images" / "mine").mkdir(parents=True)
    pinned = "org/base@sha256:" + "a" * 64
    (tmp_path / "images" / "mine" / "Dockerfile").write_text(f"FROM docker.io/{pinned} AS base\n")
    assert pinned in {one.name for one in published_names(tmp_path) if one.places == ("images/mine/Dockerfile",)}


def test_each_answer_is_that_of_the_hub_and_the_registry(published):
    code, answers = published()
    assert {name for name, one in answers.items() if one["answer"] != "present"} == set()
    assert code == ExitCode.DONE


def test_the_hub_has_what_every_stack_serves(published):
    _, answers = published()
    served = {
        name: one["answer"] for name, one in answers.items() if any("Pulumi." in place for place in one["places"])
    }
    assert {name for name, answer in served.items() if answer != "present"} == set()
    assert len(served) > len(list(ROOT.glob("Pulumi.*.yaml"))) / 2


def test_an_absent_checkpoint_and_an_absent_image_are_red(published):
    digest = next(iter(IMAGES.values())).digest
    left = tuple(one for one in Images().existing if digest not in one)
    code, answers = published(hub=Hub(repositories={EXISTS: "absent"}), images=Images(existing=left))
    absent = {name for name, one in answers.items() if one["answer"] == "absent"}
    commit = f"{EXISTS}@{CHECKPOINTS[EXISTS].commit}"
    assert (code, {EXISTS, commit} <= absent, any(digest in name for name in absent), len(absent)) == (
        ExitCode.FAILED,
        True,
        True,
        3,
    )


def test_a_commit_that_the_hub_does_not_have_is_red(published, monkeypatch):
    wrong = f"{EXISTS}@{'0' * 40}"
    name = PublishedName(kind="commit", name=wrong, places=("planning/data/checkpoints.json",))
    monkeypatch.setattr("authors.published.names.published_names", lambda project: [name])
    code, answers = published()
    assert (code, answers[wrong]["answer"]) == (ExitCode.FAILED, "absent")


def test_a_hub_that_is_busy_or_down_is_unknown_and_not_red(published, monkeypatch):
    code, answers = published(faults=(Fault(method="hub.*", status=429, count=1000),))
    assert (code, answers[EXISTS]["answer"], answers[EXISTS]["detail"]) == (ExitCode.DONE, "unknown", "HTTP 429")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("LOCALCLOUD_URL", "http://127.0.0.1:9")
    code, answers = published()
    assert (code, {one["answer"] for one in answers.values()}) == (ExitCode.DONE, {"unknown"})
