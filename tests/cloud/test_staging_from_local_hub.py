"""`stage_model` by hand on the local cloud's hub: what it stages, and one sentence for each thing that the hub refuses."""

import json
import re
from pathlib import Path

import pytest

from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.contracts.staged_weights import MANIFEST, REAL_SIZE, manifest_hash
from gemma_serving.engine.state import StackState
from gemma_serving.scripts.cli.command import run_command
from gemma_serving.scripts.stage_model import __main__ as stage_model
from gemma_serving.scripts.stage_model import housekeeping
from gemma_serving.stacks.loading import from_file
from localcloud.world.scenario import Fault, Hub
from tests.library_time import end_hub_pauses
from tests.safetensors_files import safetensors

EXISTS = "xbill9/gemma-4-26B-A4B-it-qat-q4_0-w4a16-ct"
ABSENT, GATED = "google/gemma-4-26B-A4B-it-qat-w4a16-ct", "google/gemma-3-4b-it"
ALWAYS = 10_000
SERVICE = "gcp:cloudrunv2/service:Service"


@pytest.fixture
def hub(staging_world, monkeypatch):
    """A function that puts the hub into a scenario."""
    cloud, before = staging_world.cloud.cloud, staging_world.cloud.cloud.scenario
    at_hub(monkeypatch, staging_world.cloud.base_url + "/hub")

    def scenario(faults=(), **changes):
        cloud.scenario = before.model_copy(update={"hub": Hub(**changes), "faults": tuple(faults)})

    yield scenario
    cloud.scenario = before


def at_hub(monkeypatch, url):
    """Use another hub in a process that has loaded the hub's client already."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
    template = url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr("huggingface_hub.hf_api.api.endpoint", url)
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    end_hub_pauses(monkeypatch)


@pytest.fixture
def stack(stack_file):
    """A function that runs `stage_model` for a checkpoint. It returns the exit code, and whether the settings are unchanged."""

    def stage(model, *options):
        text = re.sub(r"(?m)^(  gemma-serving:model:).*$", rf"\1 {model}", stack_file.read_text())
        if model != EXISTS:  # the commit is of that one
            text = re.sub(r"(?m)^  gemma-serving:modelRevision:.*\n", "", text)
        stack_file.write_text(text)
        code = run_command(stage_model.COMMAND, ["--stack", "mine", *options])
        return code, stack_file.read_text() == text

    return stage


@pytest.mark.usefixtures("hub")
def test_a_checkpoint_is_staged_with_real_names_and_says_that_it_is_simulated(stack, staging_world, capsys):
    code, _ = stack(EXISTS, "--json")
    said = capsys.readouterr()
    assert (code, json.loads(said.out)["simulated"]) == (ExitCode.DONE, True)
    assert "15.30 GiB (simulated: the hub of the local cloud sends 1.0 MiB)" in said.err
    manifest = json.loads(staging_world.content(f"{staging_world.folder}/{MANIFEST}"))
    assert "shrunk" in manifest["simulated"]
    assert manifest["revision"] == "2096d38dad51a19b8e982b44241c47102a8bbb00"
    names = {file["name"]: file for file in manifest["files"]}
    assert {"config.json", "model-00005-of-00005.safetensors", "tokenizer.json"} <= names.keys()
    for name, file in names.items():
        assert len(staging_world.content(f"{staging_world.folder}/{name}")) == file["size_bytes"]
    listed = [file for file in manifest["files"] if file["name"].endswith(".safetensors")]
    assert 16.4e9 < sum(file.get(REAL_SIZE) or file["size_bytes"] for file in listed) < 16_457_920_691
    again, _ = stack(EXISTS, "--json")
    assert (again, json.loads(capsys.readouterr().out)["copied"]) == (ExitCode.DONE, 0)


ADAPTER = "rubenbalbastre/procurement-function-calling-gemma-4-E2B-it-sft"
DRAFTER = "google/gemma-4-26B-A4B-it-assistant"
USES = f"""    lora: {{ adapters: {{ buy: {ADAPTER} }} }}
    speculative: {{ method: draft-model, drafter: {DRAFTER} }}
"""


@pytest.mark.usefixtures("hub")
def test_a_drafter_and_an_adapter_are_staged_beside_the_model_by_one_command(
    stack, stack_file, staging_world, monkeypatch, capsys
):
    options = "  gemma-serving:vllm:\n"
    stack_file.write_text(stack_file.read_text().replace(options, f"{options}{USES}"))
    assert stack(EXISTS, "--json")[0] == ExitCode.DONE
    report = json.loads(capsys.readouterr().out)
    parts = {part["name"]: part for part in report["parts"]}
    assert list(parts) == [DRAFTER, ADAPTER]
    for source, part in parts.items():
        assert part["prefix"] == f"{source.rpartition('/')[2]}-{part['manifest'][:16]}"
        manifest = json.loads(staging_world.content(f"{part['prefix']}/{MANIFEST}"))
        assert manifest_hash(manifest) == part["manifest"]
    settings = from_file(Path("Pulumi.mine.yaml"))
    assert settings.bucket.parts == {name: f"sha256:{part['manifest']}" for name, part in parts.items()}
    assert settings.bucket.manifest == f"sha256:{report['manifest']}"
    folder = parts[ADAPTER]["prefix"]
    states = [
        StackState(
            stack="other",
            status="read",
            resources=[{"type": SERVICE, "inputs": f"gs://{staging_world.bucket} /mnt/models/{folder}"}],
        )
    ]
    monkeypatch.setattr(housekeeping.states, "all_states", lambda: states)
    code = run_command(stage_model.COMMAND, ["--stack", "mine", "--list", "--json"])
    found = {one["name"]: one for one in json.loads(capsys.readouterr().out)["folders"]}
    assert (code, found[folder]["served_by"], found[folder]["settings"]) == (0, ["stack other"], ["Pulumi.mine.yaml"])
    assert found[parts[DRAFTER]["prefix"]]["settings"] == ["Pulumi.mine.yaml"]
    assert run_command(stage_model.COMMAND, ["--stack", "mine", "--remove", folder, "--yes"]) == ExitCode.REFUSED
    assert "is served by stack other" in capsys.readouterr().err
    assert run_command(stage_model.COMMAND, ["--stack", "mine", "--json"]) == ExitCode.DONE
    again = json.loads(capsys.readouterr().out)
    assert [again["copied"], *(part["copied"] for part in again["parts"])] == [0, 0, 0]


@pytest.mark.usefixtures("hub")
def test_an_adapter_of_the_vision_tower_is_reported(stack, stack_file, staging_world, capsys):
    for folder, module in (("sees", "vision_tower.encoder"), ("reads", "language_model")):
        name = f"base_model.model.model.{module}.layers.0.self_attn.q_proj.lora_A.weight"
        staging_world.put(f"{folder}/adapter_config.json", b"{}")
        staging_world.put(f"{folder}/adapter_model.safetensors", safetensors(b"12345678", name))
    here = f"gs://{staging_world.bucket}"
    uses = f"    lora: {{ adapters: {{ a: {here}/sees, b: {here}/reads }} }}\n"
    options = "  gemma-serving:vllm:\n"
    stack_file.write_text(stack_file.read_text().replace(options, f"{options}{uses}"))
    assert stack(EXISTS)[0] == ExitCode.DONE
    said = capsys.readouterr().err
    assert f"{here}/sees changes image or audio parts" in said
    assert "--enable-tower-connector-lora, which needs 0.28.0 or later (https://" in said
    assert f"{here}/reads changes" not in said


DOES_NOT_EXIST = "it does not exist or is private; check the name"
CASES = {
    "absent": (
        (ABSENT,),
        {},
        f"rejected {ABSENT} with HTTP 404: {DOES_NOT_EXIST} (nearest known: ",
    ),
    "absent-nearest": ((ABSENT,), {}, EXISTS),
    "misspelt": (("google/gema-4-12b-it",), {}, "nearest known: google/gemma-4-12B-it"),
    "private": (
        ("org/mine",),
        {"repositories": {"org/mine": "private"}},
        f"HTTP 404: {DOES_NOT_EXIST}, or set HF_TOKEN",
    ),
    "gated": ((GATED,), {}, f"HTTP 403: accept its terms at https://huggingface.co/{GATED}, then set HF_TOKEN"),
    "gated-without-token": ((GATED,), {}, "HTTP 401: accept its terms"),
    "absent-without-token": ((ABSENT,), {}, "HTTP 401: it does not exist or is private; check the name"),
    "revision": (
        (EXISTS, "--revision", "none"),
        {},
        "HTTP 404: the revision does not exist; see its branches and commits",
    ),
    "expired": ((EXISTS,), {"expired_tokens": ["hf_test"]}, "HTTP 401: HF_TOKEN is invalid or has expired; create a"),
    "429": ((EXISTS,), {"faults": [Fault(method="hub.*", status=429, count=ALWAYS)]}, "HTTP 429: it is overloaded or"),
    "503": (
        (EXISTS,),
        {"faults": [Fault(method="hub.*", count=ALWAYS)]},
        "HTTP 503: it is overloaded or failing; wait a",
    ),
    "down": (
        (EXISTS,),
        {"faults": [Fault(method="hub.*", action="reset", count=ALWAYS)]},
        "The Hugging Face Hub cannot be reached (RemoteProtocolError); pass --from FOLDER with a downloaded checkpoint.",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_the_hub_refuses_is_one_sentence_and_nothing_is_half_done(  # noqa: PLR0917 - fixtures
    hub, stack, staging_world, monkeypatch, capsys, case
):
    arguments, scenario, wanted = CASES[case]
    hub(**scenario)
    if case.endswith("without-token"):
        monkeypatch.delenv("HF_TOKEN")
        monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", "none")
    code, unchanged = stack(*arguments)
    said = capsys.readouterr().err
    assert wanted in said
    assert (code, unchanged, said.count("\n")) == (ExitCode.FAILED, True, 1)
    assert "Traceback" not in said
    assert staging_world.target.objects("") == {}
