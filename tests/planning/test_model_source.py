"""Configs from the hub and from a bucket: only metadata is read, and every failure is one sentence."""

from dataclasses import dataclass
from pathlib import Path

import huggingface_hub
import pytest

from gemma_serving.cloud.hub import connection_error

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "fixtures" / "models" / "other-8b"


@dataclass
class File:
    rfilename: str
    size: int


@dataclass
class Info:
    siblings: list[File]
    sha: str = "0" * 40


@pytest.fixture
def hub(monkeypatch):
    """A hub with one model; the returned list has the files that were downloaded."""
    fetched = []
    files = [
        File("config.json", 700),
        File("model.safetensors.index.json", 90),
        File("model-00001-of-00002.safetensors", 8_000_000_000),
        File("model-00002-of-00002.safetensors", 8_060_522_496),
        File("consolidated.safetensors", 16_060_522_496),
        File("original/model.safetensors", 16_060_522_496),
    ]

    class Api:
        def model_info(self, model, **_):
            if model == "org/unreachable":
                raise connection_error()("no route")
            if model == "org/one-file":
                return Info(siblings=[files[0], File("model.safetensors", 16_060_522_496), *files[4:]])
            return Info(siblings=files if model == "org/other-8b" else files[1:])

    def download(model, name, *, revision):
        fetched.append((model, name, revision))
        return str(FOLDER / name)

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    return fetched


def test_a_checkpoint_of_one_file_has_its_size(run, hub):
    one = run("--model", "org/one-file", "--from-hub", "--accelerator", "L4", "--json")[1]
    several = run("--model", "org/one-file", "--config", FOLDER, "--accelerator", "L4", "--json")[1]
    assert one == several
    assert hub == [("org/one-file", "config.json", "0" * 40)]


def test_what_the_hub_said_can_be_kept_for_a_stack(run, hub, tmp_path):
    saved = tmp_path / "models" / "other"
    asked = ("--model", "org/other-8b", "--accelerator", "L4", "--json")
    code, first, said = run(*asked, "--from-hub", "--save", saved)
    assert code == 0
    assert f"wrote {saved / 'config.json'} and {saved / 'model.safetensors.index.json'}." in said
    assert f"set gemma-serving:modelConfig to {saved}." in said
    assert run(*asked, "--config", saved)[1] == first


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--model", "org/unreachable", "--from-hub"), 1, "cannot be reached (HTTPError); pass --config FILE"),
        (("--model", "org/no-config", "--from-hub"), 1, "org/no-config has no config.json on the hub"),
    ],
)
def test_each_failure_is_one_sentence(run, hub, arguments, code, said):
    ended, out, err = run(*arguments, "--accelerator", "L4")
    assert (ended, out) == (code, "")
    assert said in err
    assert len(err.strip().splitlines()) == 1


def test_the_hub_is_read_for_the_model_of_a_stack_too(run, hub):
    """The stack is a word of the command line, not an option of that name."""
    code, out, said = run("--stack", "tpu-v6e1", "--from-hub")
    assert (code, out) == (1, "")
    assert "google/gemma-4-E2B-it has no config.json on the hub" in said
