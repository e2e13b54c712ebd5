"""A new stack's file is written by the planner's one writer, plans as fitting, and loses nothing that Pulumi keeps in it."""

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml

from gemma_serving.cloud.hub import main_commit
from gemma_serving.contracts.three_answers import Present, Unknown
from gemma_serving.planning.planner import plan
from gemma_serving.planning.question.recommendation import TEXT_ONLY
from gemma_serving.scripts.cli.command import run_command
from gemma_serving.scripts.init.__main__ import COMMAND
from gemma_serving.stacks.loading import from_file
from gemma_serving.stacks.planned import to_question
from gemma_serving.stacks.schema import file_schema
from localcloud.hub.content import files_of
from localcloud.hub.repositories import repositories
from tests.scripts.terminal import Terminal

PROJECT = "my-project"
COMMIT = "c" * 40


@pytest.fixture
def new(monkeypatch, tmp_path, capsys):
    """Run the command in a folder of its own; returns exit code, stdout and stderr."""
    monkeypatch.setattr("gemma_serving.scripts.plan.question.ROOT", tmp_path)
    monkeypatch.setattr("gemma_serving.cloud.hub.main_commit", lambda *_: Present(COMMIT))
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "settings.schema.json").touch()
    for name in ("GOOGLE_CLOUD_PROJECT", "GOOGLE_PROJECT", "CLOUDSDK_CORE_PROJECT"):
        monkeypatch.delenv(name, raising=False)

    def ran(*arguments):
        capsys.readouterr()
        code = run_command(COMMAND, list(arguments))
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return ran


def settings_of(folder, name="chat"):
    return from_file(folder / f"Pulumi.{name}.yaml", project=PROJECT)


ASKED = {
    "a family": ("--model", "12B"),
    "an id and a slice": ("--model", "google/gemma-4-E4B-it", "--accelerator", "v6e-1"),
    "a budget": ("--model", "26B-A4B", "--budget", "2"),
    "a workload": ("--model", "E2B", "--workload", "in=1500,out=300,users=32"),
}


@pytest.mark.parametrize("asked", ASKED)
def test_the_written_file_loads_plans_as_fitting_and_is_short(new, tmp_path, asked):
    code, out, err = new("chat", *ASKED[asked])
    assert (code, err) == (0, "")
    settings = settings_of(tmp_path)
    planned = plan(to_question(settings))
    assert planned.fits
    assert [finding.id for finding in planned.findings if finding.severity != "info"] == []
    text = (tmp_path / "Pulumi.chat.yaml").read_text()
    assert "run pulumi config set --path gemma-serving:alerts.email you@example.com --stack chat." in text
    assert text.startswith("# yaml-language-server: $schema=docs/settings.schema.json\n# ")
    assert set(yaml.safe_load(text)["config"]) <= {*file_schema()["properties"]["config"]["properties"]}
    for word in ("gemma-serving:image", "Parser", "enableAutoToolChoice", "disableChunkedMmInput"):
        assert word not in text
    assert f"Price: ${planned.cost.usd_per_hour:.2f}/h" in out


def test_the_recipient_of_the_alerts_is_written(new, tmp_path):
    code, _, _ = new("chat", "--model", "E2B", "--email", "me+gpu@example.com")
    settings = settings_of(tmp_path)
    assert (code, settings.alerts.email) == (0, "me+gpu@example.com")
    assert [found.id for found in plan(to_question(settings)).findings if found.severity != "info"] == []
    code, _, err = new("other", "--model", "E2B", "--email", "me at example.com")
    assert (code, "--email is 'me at example.com'; it must be one address" in err) == (2, True)
    assert not (tmp_path / "Pulumi.other.yaml").exists()


def test_an_existing_file_that_is_not_yaml_is_named_with_its_line(new, tmp_path):
    (tmp_path / "Pulumi.chat.yaml").write_text("config:\n  gcp:project: p-one\n  gcp:project: p-two\n")
    code, _, err = new("chat", "--model", "12B", "--force")
    assert code == 2
    assert err == (
        'init: Pulumi.chat.yaml, line 3: mapping key "gcp:project" already defined at line 2. Remove one of the two.\n'
    )


def test_replacing_keeps_the_salt_the_secrets_and_the_project(new, tmp_path):
    path = tmp_path / "Pulumi.chat.yaml"
    path.write_text(
        "encryptionsalt: v1:abc=:v1:def\nconfig:\n  gcp:project: kept-project\n  gemma-serving:target: tpu\n"
        "  gemma-serving:hfToken:\n    secure: v1:secret\n"
    )
    code, out, _ = new("chat", "--model", "12B", "--accelerator", "L4", "--force")
    document = yaml.safe_load(path.read_text())
    assert code == 0
    assert document["encryptionsalt"] == "v1:abc=:v1:def"
    assert document["config"]["gcp:project"] == "kept-project"
    assert document["config"]["gemma-serving:hfToken"] == {"secure": "v1:secret"}
    assert document["config"]["gemma-serving:target"] == "cloud-run"
    assert settings_of(tmp_path).secrets == ("hfToken",)
    assert "save_token" not in out
    assert "gcp:project" not in out


def test_a_private_persons_checkpoint_and_an_absent_one_are_said(new):
    repack = "xbill9/gemma-4-26B-A4B-it-qat-q4_0-w4a16-ct"
    code, out, err = new("chat", "--model", repack)
    assert (code, err) == (0, "")
    code, out, _ = new("other", "--model", repack, "--json")
    assert (code, json.loads(out)["personal"]) == (0, True)
    code, out, _ = new("third", "--model", "google/gemma-4-12B-it-qat-w4a16-ct", "--json")
    assert (code, json.loads(out)["personal"]) == (0, False)
    code, out, err = new("fourth", "--model", "google/gemma-4-26B-A4B-it-qat-w4a16-ct")
    assert (code, out) == (2, "")
    assert "which returned 404" in err
    assert repack in err


def test_without_the_hubs_answer_no_commit_is_written_and_a_finding_says_so(new, monkeypatch, tmp_path):
    monkeypatch.setattr("gemma_serving.cloud.hub.main_commit", main_commit)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    code, out, err = new("chat", *ASKED["an id and a slice"])
    assert code == 0
    assert err == (
        "init: The Hugging Face Hub cannot be reached (ConnectError); run `gemma doctor chat` later for the commit of the model. "
        "The file is written without modelRevision.\n"
    )
    assert settings_of(tmp_path).model_revision is None
    assert "SEC07: The model google/gemma-4-E4B-it has no commit" in out
    assert "set modelRevision: ee0ef6023621cff504d758262d4e04895a5af4a2" in out.replace("Set model", "set model")


KEY = "projects/p/locations/us/keyRings/r/cryptoKeys/k"


def test_a_key_for_the_secrets_is_in_the_file_and_in_the_command_that_makes_the_stack(new, tmp_path):
    code, out, _ = new("chat", "--model", "12B", "--secrets-key", KEY, "--json")
    assert code == 0
    assert json.loads(out)["next"][0].startswith(f"pulumi stack init chat --secrets-provider=gcpkms://{KEY} ")
    path = tmp_path / "Pulumi.chat.yaml"
    assert yaml.safe_load(path.read_text())["secretsprovider"] == f"gcpkms://{KEY}"
    with path.open("a") as file:
        file.write("encryptedkey: a21z\n")
    assert new("chat", "--model", "12B", "--secrets-key", KEY, "--force")[0] == 0
    kept = yaml.safe_load(path.read_text())
    assert (kept["secretsprovider"], kept["encryptedkey"]) == (f"gcpkms://{KEY}", "a21z")


def test_a_key_does_not_replace_what_encrypts_the_secrets_of_an_existing_file(new, tmp_path):
    assert new("chat", "--model", "12B", "--secrets-key", "k")[0] == 2
    assert not (tmp_path / "Pulumi.chat.yaml").exists()
    assert new("chat", "--model", "12B")[0] == 0
    path = tmp_path / "Pulumi.chat.yaml"
    path.write_text(text := path.read_text() + "encryptionsalt: v1:x\n")
    code, _, err = new("chat", "--model", "12B", "--secrets-key", KEY, "--force")
    assert (code, path.read_text()) == (2, text)
    assert f"`pulumi stack change-secrets-provider gcpkms://{KEY} --stack chat`" in err


def own(folder, hub_id="google/gemma-4-12B-it", **changes):
    """Write the config.json of a checkpoint of the simulated hub, as a fine-tune has it."""
    repository = repositories()[hub_id]
    (folder / "config.json").write_text(json.dumps(json.loads(files_of(repository)["config.json"].content) | changes))
    return str(folder / "config.json")


@pytest.mark.parametrize("hub_id", ["google/gemma-4-12B-it", "google/gemma-4-31B-it-qat-w4a16-ct"])
def test_a_fine_tune_gets_the_settings_of_its_size_and_its_own_name(new, tmp_path, hub_id):
    code, _, err = new("mine", "--model", "my-org/sql", "--config", own(tmp_path, hub_id))
    assert (code, err) == (0, "")
    settings = settings_of(tmp_path, "mine")
    planned = plan(to_question(settings, tmp_path))
    assert (settings.model, settings.model_config, settings.model_revision) == (
        "my-org/sql",
        "config.json",
        COMMIT,
    )
    assert planned.fits


HIDDEN = Unknown(
    "The Hugging Face Hub rejected my-org/sql with HTTP 404: it does not exist or is private", cause="denied"
)
ON_L4 = ("--accelerator", "L4")
CONVERTED = "because bf16 does not serve this workload on L4. For bf16, add --accelerator v6e-1 --force ("


@pytest.mark.parametrize(
    ("size", "options", "precision"), [("E4B", ON_L4, None), ("12B", ON_L4, "fp8"), ("12B", (), None)]
)
def test_a_fine_tune_keeps_its_precision_or_one_line_says_why_not(new, tmp_path, size, options, precision):
    config = own(tmp_path, f"google/gemma-4-{size}-it")
    code, out, _ = new("mine", "--model", "my-org/sql", "--config", config, *options)
    assert (code, settings_of(tmp_path, "mine").quantization) == (0, precision)
    said = [text for text in out.splitlines() if text.startswith("Served in ")]
    assert [CONVERTED in text for text in said] == ([True] if precision else [])


@pytest.mark.parametrize("accelerator", ["L4", "v6e-1"])
def test_the_next_commands_of_a_fine_tune_name_its_folder_and_the_hub_is_no_error(
    new, monkeypatch, tmp_path, accelerator
):
    monkeypatch.setattr("gemma_serving.cloud.hub.main_commit", lambda *_: HIDDEN)
    config = own(tmp_path)
    asked = ("--model", "my-org/sql", "--config", config, "--accelerator", accelerator, "--json", "--force")
    code, out, err = new("mine", *asked)
    assert (code, err, settings_of(tmp_path, "mine").weights) == (0, "", "bucket")
    commands = json.loads(out)["next"]
    assert "gemma stage_model mine --from FOLDER   # or gs://BUCKET/FOLDER, with the weights" in commands
    assert not [one for one in commands if "stack init" in one or "save_token" in one or "config set" in one]
    header = json.dumps({"w": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"00")
    assert "gemma stage_model mine --from ." in json.loads(new("mine", *asked)[1])["next"]


def test_a_config_of_another_size_or_outside_the_project_is_refused(new, tmp_path, tmp_path_factory):
    llama = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32}
    (tmp_path / "l.json").write_text(json.dumps({**llama, "vocab_size": 128256, "intermediate_size": 14336}))
    _, _, err = new("mine", "--model", "a/b", "--config", str(tmp_path / "l.json"))
    assert "describes no size of Gemma 4, but no tested checkpoint has these weights" in err
    code, _, err = new("mine", "--model", "a/b", "--config", own(tmp_path_factory.mktemp("outside")))
    assert code == 2
    assert "is outside the project. Copy the file into" in err


SHIPPED = Path(__file__).parents[3] / "examples" / "stacks"


def test_a_copy_of_an_example_has_its_settings_and_no_secrets(new, tmp_path):
    shutil.copytree(SHIPPED, tmp_path / "examples" / "stacks")
    code, out, err = new("mine", "--like", "tpu-v6e4-12b")
    assert (code, err) == (0, "")
    text = (SHIPPED / "Pulumi.tpu-v6e4-12b.yaml").read_text().replace("../../docs/", "docs/")
    text = text.replace("--stack tpu-v6e4-12b.", "--stack mine.")
    assert (tmp_path / "Pulumi.mine.yaml").read_text() == text
    assert "gemma up mine" in out
    (tmp_path / "Pulumi.own.yaml").write_text(f"encryptionsalt: v1:canary\n{text}")
    assert new("theirs", "--like", "own")[0] == 0
    assert (tmp_path / "Pulumi.theirs.yaml").read_text() == text


def test_a_copy_over_a_file_keeps_its_salt_and_its_secrets(new, tmp_path):
    shutil.copytree(SHIPPED, tmp_path / "examples" / "stacks")
    own = "config:\n  gcp:project: my-own-project\n  gemma-serving:hfToken:\n    secure: v1:canary\nencryptionsalt: v1:salt\n"
    (tmp_path / "Pulumi.mine.yaml").write_text(own)
    assert new("mine", "--like", "tpu-v6e4-12b")[0] == 2
    assert (tmp_path / "Pulumi.mine.yaml").read_text() == own
    for _ in range(2):
        assert new("mine", "--like", "tpu-v6e4-12b", "--force")[0] == 0
    document = yaml.safe_load((tmp_path / "Pulumi.mine.yaml").read_text())
    assert document["encryptionsalt"] == "v1:salt"
    assert document["config"]["gcp:project"] == "my-own-project"
    assert document["config"]["gemma-serving:hfToken"] == {"secure": "v1:canary"}
    assert document["config"]["gemma-serving:model"] == "google/gemma-4-12B-it"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--like", "nope"), "no stack and no example has this name. Pass one of l4-12b-qat, l4-12b-qat-mtp, "),
        (("--like", "l4-12-qat"), "Did you mean l4-12b-qat"),
        (("--like", "tpu-v6e4-12b", "--budget", "2"), "--like copies a file as it is. Remove --budget"),
    ],
)
def test_what_cannot_be_copied_is_one_sentence_and_writes_nothing(new, tmp_path, words, said):
    shutil.copytree(SHIPPED, tmp_path / "examples" / "stacks")
    code, out, err = new("mine", *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err
    assert not (tmp_path / "Pulumi.mine.yaml").exists()


IMAGES = "in=700,out=300,users=8,images=1"


@pytest.mark.parametrize("answer", [None, "", "no", "yes"])
@pytest.mark.parametrize("words", [("v6e-1",), ("v6e-1", "--workload", IMAGES), ("L4",)])
def test_a_tpu_gets_one_question_about_images_and_serves_text_only_unless_the_answer_is_yes(
    new, tmp_path, monkeypatch, words, answer
):
    if answer is not None:
        monkeypatch.setattr("sys.stdin", Terminal(f"{answer}\n"))
    code, out, err = new("chat", "--model", "E2B", "--accelerator", *words)
    assert code == 0
    is_asked = words == ("v6e-1",)
    question = "Images, too? About 4 min more for the first start, 2 min for each later one [no]: "
    assert err == (question if is_asked and answer is not None else "")
    is_text = is_asked and answer != "yes"
    assert settings_of(tmp_path).vllm.limit_mm_per_prompt == (dict(TEXT_ONLY) if is_text else None)
    assert ("Text only: requests with images are rejected." in out) is is_text
    before = plan(to_question(settings_of(tmp_path)))
    text = (tmp_path / "Pulumi.chat.yaml").read_text()
    (tmp_path / "Pulumi.chat.yaml").write_text(re.sub("    limitMmPerPrompt: .*\n", "", text))
    after = plan(to_question(settings_of(tmp_path)))
    assert (after.startup.total_s - before.startup.total_s > 240, after.cost) == (is_text, before.cost)
