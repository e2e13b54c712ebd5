"""The command that stages: what it refuses, and what it writes into the stack's file."""

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from gemma_serving.cloud.google_api import GoogleApi, GoogleListError
from gemma_serving.cloud.staging.sources import FolderSource
from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.contracts.staged_weights import MANIFEST, manifest_hash
from gemma_serving.contracts.three_answers import Absent
from gemma_serving.engine import runner
from gemma_serving.engine.exported_state import ResourceState
from gemma_serving.engine.state import StackState
from gemma_serving.planning.planner import plan
from gemma_serving.scripts.cli.command import run_command
from gemma_serving.scripts.stack import engine_run
from gemma_serving.scripts.stage_model import __main__ as stage_model
from gemma_serving.scripts.stage_model import bucket_creation, housekeeping, staging
from gemma_serving.stacks.extra_checkpoints import extra_checkpoints
from gemma_serving.stacks.loading import from_file
from gemma_serving.stacks.planned import to_question
from tests.cloud.conftest import PROJECT
from tests.cloud.test_template_age import JULY
from tests.engine_package.test_locks import dead_pid, refusal
from tests.safetensors_files import safetensors


@pytest.fixture
def file(tmp_path, stack_file):
    """The settings of a stack, and a checkpoint beside them."""
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "config.json").write_text("{}")
    (tmp_path / "checkpoint" / "model.safetensors").write_bytes(safetensors(b"weights"))
    return stack_file


def stage(*options):
    return run_command(stage_model.COMMAND, ["--stack", "mine", *options])


@pytest.fixture
def staged(capsys):
    """Run `gemma stage_model` to an exit code, and return what it printed."""

    def run(code, *options):
        assert stage(*options) == code
        return capsys.readouterr()

    return run


class HubFolder(FolderSource):
    """A folder that stands in for the hub at a commit."""

    def __init__(self, folder, commit):
        super().__init__(folder=folder)
        object.__setattr__(self, "commit", commit)

    @property
    def revision(self):
        return self.commit


@pytest.mark.parametrize("prefix", ['""', "/"], ids=["empty", "root"])
def test_staging_needs_a_folder(file, capsys, prefix):
    """Parts lie beside the folder; in a bucket without one, the server would read them."""
    file.write_text(file.read_text().replace("prefix: m", f"prefix: {prefix}"))
    assert stage("--from", "checkpoint") == ExitCode.REFUSED
    assert "bucket.prefix has no folder for the weights. Set it, such as prefix: models/" in capsys.readouterr().err


def test_a_folder_proves_no_commit_so_that_the_setting_goes(file, staged):
    assert "modelRevision: 2096d38dad51a19b8e982b44241c47102a8bbb00" in file.read_text()
    printed = staged(ExitCode.DONE, "--from", "checkpoint", "--json")
    assert json.loads(printed.out)["setting"]["modelRevision"] is None
    assert "Pulumi.mine.yaml: removed modelRevision because the commit of this source is unknown" in printed.err
    assert "modelRevision" not in yaml.safe_load(file.read_text())["config"]
    assert "modelRevision" not in staged(ExitCode.DONE, "--from", "checkpoint").err


def test_the_commit_of_the_settings_is_staged_and_another_one_is_written(file, monkeypatch, staging_world, capsys):
    asked = []

    def hub(model, revision):
        asked.append((model, revision))
        return HubFolder(Path("checkpoint"), revision if revision and len(revision) == 40 else "b" * 40)

    monkeypatch.setattr("gemma_serving.cloud.staging.sources.hub", hub)
    model, commit = "xbill9/gemma-4-26B-A4B-it-qat-q4_0-w4a16-ct", "2096d38dad51a19b8e982b44241c47102a8bbb00"
    assert stage() == ExitCode.DONE
    assert asked == [(model, commit)]
    assert json.loads(staging_world.content(f"{staging_world.folder}/{MANIFEST}"))["revision"] == commit
    assert "modelRevision" not in capsys.readouterr().err
    assert stage("--revision", "main") == ExitCode.DONE
    assert asked[1:] == [(model, "main")]
    assert f"Pulumi.mine.yaml: set modelRevision to {'b' * 40}" in capsys.readouterr().err
    assert yaml.safe_load(file.read_text())["config"]["gemma-serving:modelRevision"] == "b" * 40


WHOLE = safetensors(b"weights")


DAMAGED = {
    b"": "has 0 bytes, too few for a safetensors file",
    b"weights": "has 7 bytes, too few for a safetensors file",
    b"version https://git-lfs.github.com/spec/v1\n": "has 43 bytes, which is smaller than its header",
    b"\0" * 64: "has 64 bytes, which is smaller than its header",
    b"\xff" * 64: "has 64 bytes, which is smaller than its header",
    b"\x02" + b"\0" * 7 + b"[]": "has an invalid safetensors header",
    (200_000).to_bytes(8, "little") + b"[" * 200_000: "has an invalid safetensors header",
    WHOLE[:20]: "has 20 bytes, which is smaller than its header",
    WHOLE[:-3]: f"has {len(WHOLE) - 3} bytes, but its header states {len(WHOLE)}",
    WHOLE + b"\0": f"has {len(WHOLE) + 1} bytes, but its header states {len(WHOLE)}",
}


@pytest.mark.usefixtures("without_collection")
@pytest.mark.parametrize("origin", ["folder", "bucket"])
def test_damaged_weights_are_refused_before_anything_is_copied(file, staging_world, capsys, origin):
    passed = []
    place = "checkpoint" if origin == "folder" else f"gs://{staging_world.bucket}/theirs"
    staging_world.put("theirs/config.json", b"{}")
    for content, said in DAMAGED.items():
        (file.parent / "checkpoint" / "model.safetensors").write_bytes(content)
        staging_world.put("theirs/model.safetensors", content)
        refused = stage("--from", place) == ExitCode.REFUSED
        shown = capsys.readouterr().err
        if not refused or f"model.safetensors of {place} {said}: its download is incomplete" not in shown:
            passed.append((content, shown))
    assert passed == []
    assert staging_world.target.objects("m") == {}


def step(op, kind="gcp:storage/bucket:Bucket", name="models", **more):
    urn = f"urn:pulumi:mine::gemma-serving::gemma-serving:index:ModelBucket${kind}::{name}"
    return {"op": op, "urn": urn, "newState": {"type": kind, "inputs": {"name": name}}, **more}


PREVIEW = {"steps": [step("create")]}


# At most one thing runs in the engine.

OWN = f"{PROJECT}-gemma-mine-models"


class Engine:
    """Stands in for the engine: a state, a preview, and what was run."""

    def __init__(self, monkeypatch, *resources, preview=PREVIEW):
        self.ran, self.preview = [], preview
        monkeypatch.setattr(engine_run, "change", self.change)
        monkeypatch.setattr(bucket_creation, "previewed", self.previewed)
        monkeypatch.setattr(bucket_creation, "import_missing", lambda _stack, _project, document, **_: document)
        found = SimpleNamespace(resources=tuple(ResourceState(resource) for resource in resources))
        monkeypatch.setattr(bucket_creation, "read_deployment", lambda _stack: found)
        self.known = ["mine"]
        monkeypatch.setattr(runner, "listed_stacks", lambda: frozenset(self.known))
        monkeypatch.setattr(bucket_creation, "create_state", lambda stack, _say: self.known.append(stack))

    def change(self, _stack, *arguments, after_failure, **_):
        assert after_failure
        self.ran.append(arguments)

    def previewed(self, _stack, *options):
        self.ran.append(("preview", *options))
        return self.preview


def in_state(location="US-EAST4", **more):
    kind = "gcp:storage/bucket:Bucket"
    urn = f"urn:pulumi:mine::gemma-serving::gemma-serving:index:ModelBucket${kind}::models"
    place = {"name": OWN, "location": location, "project": PROJECT}
    return {"urn": urn, "type": kind, "inputs": place, "outputs": place, **more}


@pytest.fixture
def own(file, staging_world):
    """The settings of a stack with a bucket of its own, which exists."""
    file.write_text(
        re.sub(r"(?m)^  gemma-serving:bucket:.*\n", "  gemma-serving:bucket: {prefix: m}\n", file.read_text())
    )
    staging_world.call("POST", f"storage/v1/b?project={PROJECT}", json={"name": OWN, "location": "us-east4"})
    return file


@pytest.mark.usefixtures("own")
def test_the_lock_of_a_killed_run_is_ended(monkeypatch, capsys):
    Engine(monkeypatch)
    output, removed, tried = refusal(dead_pid()), [], []

    def change(_stack, command, *_words, after_failure, **_options):
        tried.append(command)
        if len(tried) == 1:
            raise runner.PulumiFailedError(f"`pulumi up` failed. {after_failure}", output)

    monkeypatch.setattr(engine_run, "change", change)
    monkeypatch.setattr(runner, "query", removed.append)
    assert stage("--from", "checkpoint") == ExitCode.DONE
    assert (tried, [words[0] for words in removed]) == (["up", "up"], ["cancel"])
    assert "stage_model: removed the stale lock of " in capsys.readouterr().err


@pytest.mark.usefixtures("own")
def test_a_bucket_that_the_state_has_needs_no_engine(monkeypatch):
    ran = Engine(monkeypatch, in_state()).ran
    assert stage("--from", "checkpoint") == ExitCode.DONE
    assert ran == []


@pytest.mark.usefixtures("own")
def test_a_bucket_that_only_the_state_has_is_created_again(monkeypatch):
    monkeypatch.setattr(staging, "await_api", lambda *_, **__: Absent())
    engine = Engine(monkeypatch, in_state())
    assert stage("--from", "checkpoint") == ExitCode.DONE
    assert ["--refresh" in words for words in engine.ran] == [True, True]


@pytest.mark.usefixtures("own")
def test_a_stack_without_a_state_gets_one_because_up_refuses_before_its_weights_are_staged(monkeypatch, capsys):
    engine = Engine(monkeypatch)
    engine.known.clear()
    assert stage("--from", "checkpoint") == ExitCode.DONE
    assert engine.known == ["mine"]
    assert [words[0] for words in engine.ran] == ["preview", "up"]
    assert "stage_model: created an empty state for stack mine" in capsys.readouterr().err


@pytest.mark.usefixtures("own")
def test_another_region_moves_no_bucket(monkeypatch, staged):
    """Staging once ran the engine on the bucket whatever it would do: it replaced that of a running service, with the weights in it."""
    ran = Engine(monkeypatch, in_state("EUROPE-WEST4")).ran
    said = staged(ExitCode.REFUSED, "--from", "checkpoint").err
    assert 'gemma-serving:cloudRun.region = "us-east4": stack mine is deployed in europe-west4' in said
    assert "would replace its bucket with the weights. Nothing was changed." in said
    assert ran == []


OTHER_STEPS = {
    "a replacement": [step("replace"), step("delete-replaced"), step("create-replacement")],
    "a deletion": [step("create"), step("delete", "gcp:storage/bucketIAMMember:BucketIAMMember", "models-server")],
    "a change": [step("create"), step("update", "pulumi:providers:gcp", "gcp", diffReasons=["region"])],
    "another resource": [step("create"), step("create", "gcp:cloudrunv2/service:Service", "vllm")],
}


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("what", OTHER_STEPS)
def test_only_creations_run(monkeypatch, staged, what):
    ran = Engine(monkeypatch, preview={"steps": OTHER_STEPS[what]}).ran
    said = staged(ExitCode.REFUSED, "--from", "checkpoint").err
    assert "Review `gemma preview mine`" in said
    assert [each[0] for each in ran] == ["preview"]


@pytest.mark.usefixtures("own")
def test_the_creation_that_was_previewed_runs_in_the_same_copy(monkeypatch, capsys):
    ran = Engine(monkeypatch).ran
    assert stage("--from", "checkpoint") == ExitCode.DONE
    (preview, shown, *targets), (up, changed, *same) = ran
    assert (preview, up, changed, same[:-1]) == ("preview", "up", shown, targets)
    assert shown.startswith("--cwd=")
    assert all(target.startswith("--target=") for target in targets)
    assert "stage_model: creating the bucket\n" in capsys.readouterr().err


def test_what_runs_in_the_copy_has_the_projects_backend_and_leaves_its_salt(own, monkeypatch, capsys):
    """A relative backend is another, empty one in a copy; the state is encrypted with the salt that the engine writes there."""
    monkeypatch.setenv("PULUMI_BACKEND_URL", "file://./state")
    seen, ran = [], Engine(monkeypatch)

    def change(stack, up, in_copy, *_, after_failure, **_options):
        seen.append((stack, up, os.environ["PULUMI_BACKEND_URL"], bool(after_failure)))
        copy = Path(in_copy.removeprefix("--cwd="), own.name)
        copy.write_text(copy.read_text() + "encryptionsalt: v1:abc\n")
        raise runner.PulumiFailedError("update failed", "")

    monkeypatch.setattr(engine_run, "change", change)
    assert stage("--from", "checkpoint") == ExitCode.FAILED
    assert seen == [("mine", "up", f"file://{own.parent}/state", True)]
    assert own.read_text().endswith("\nencryptionsalt: v1:abc\n")
    assert "The engine added encryptionsalt to Pulumi.mine.yaml. Keep the line" in capsys.readouterr().err
    assert [each[0] for each in ran.ran] == ["preview"]


def test_an_own_model_that_the_hub_does_not_show_is_answered_with_its_folder(file, monkeypatch, staged):
    def hidden(*_):
        raise ScriptError("The Hugging Face Hub rejected it with HTTP 404.")

    monkeypatch.setattr(staging.sources, "hub", hidden)
    assert staged(ExitCode.FAILED).err.endswith("HTTP 404.\n")
    lines = [line for line in file.read_text().splitlines() if "modelRevision" not in line]
    file.write_text("\n".join([*lines, "  gemma-serving:modelConfig: models/sql", ""]))
    assert staged(ExitCode.FAILED).err.endswith(
        "If the weights are in a folder, run `gemma stage_model mine --from FOLDER`.\n"
    )


@pytest.mark.usefixtures("own")
def test_nothing_is_made_while_an_api_of_the_stack_is_off(monkeypatch, staged):
    ran = Engine(monkeypatch).ran
    monkeypatch.setattr(
        "gemma_serving.cloud.enabled.read_enabled_apis", lambda *_: frozenset({"storage", "cloudresourcemanager"})
    )
    said = staged(ExitCode.REFUSED, "--from", "checkpoint").err
    assert "gcloud services enable iam.googleapis.com artifactregistry.googleapis.com" in said
    assert "storage.googleapis.com" not in said
    assert ran == []


@pytest.mark.usefixtures("own")
def test_an_interrupted_replacement_is_ended_by_up_and_not_by_staging(monkeypatch, capsys):
    ran = Engine(monkeypatch, in_state(delete=True)).ran
    assert stage("--from", "checkpoint") == ExitCode.REFUSED
    assert "was interrupted before it deleted models, and staging deletes no resources. Run `gemma up mine`" in (
        capsys.readouterr().err
    )
    assert ran == []


# A folder that is served never changes.


def contents(world, folder):
    return {name: each.generation for name, each in world.target.objects(f"{folder}/").items()}


def test_other_weights_leave_the_folder_of_the_first_alone(file, staging_world):
    """A stranger's files once replaced those that a running revision mounts, and a file of his stayed when the weights came back."""
    assert stage("--from", "checkpoint") == ExitCode.DONE
    served = staging_world.folder
    before = contents(staging_world, served)
    staging_world.put("evil/config.json", b'{"a": "stranger"}')
    staging_world.put("evil/model.safetensors", safetensors(b"others"))
    staging_world.put("evil/chat_template.jinja", b"{{ every prompt }}")
    assert stage("--from", f"gs://{staging_world.bucket}/evil") == ExitCode.DONE
    assert contents(staging_world, served) == before
    assert staging_world.folder != served
    assert stage("--from", "checkpoint") == ExitCode.DONE
    assert contents(staging_world, served) == before
    assert "chat_template" not in str(before)
    assert f"manifest: sha256:{staged_hash_in(staging_world, served)}" in file.read_text()


def test_a_template_of_the_project_is_staged_beside_the_model_and_its_age_written(
    file, staging_world, tmp_path, staged, capsys
):
    options = "  gemma-serving:vllm:\n"
    file.write_text(file.read_text().replace(options, f"{options}    thinking: {{ template: ./chat/tools.jinja }}\n"))
    (tmp_path / "checkpoint" / "chat_template.jinja").write_text("{{ messages }}")
    assert stage("--from", "checkpoint") == ExitCode.REFUSED
    assert "chat/tools.jinja is not a chat template: expected a file that ends in .jinja." in capsys.readouterr().err
    (tmp_path / "chat").mkdir()
    (tmp_path / "chat" / "other.jinja").write_text("{{ other }}")
    (tmp_path / "chat" / "tools.jinja").write_text(JULY)
    printed = staged(ExitCode.DONE, "--from", "checkpoint", "--json")
    assert "stage_model: chat_template.jinja has an unknown age: " in printed.err
    assert "stage_model: ./chat/tools.jinja has Google's fixes of April and 9 July 2026." in printed.err
    [part] = json.loads(printed.out)["parts"]
    settings = from_file(file)
    [extra] = extra_checkpoints(settings)
    assert (part["name"], part["prefix"]) == ("./chat/tools.jinja", extra.folder)
    assert settings.bucket.templates == {"chat_template.jinja": "unknown", "./chat/tools.jinja": "2026-07"}
    assert not settings.bucket.parts
    notes = (
        plan(to_question(settings)),
        plan(to_question(replace(settings, vllm=replace(settings.vllm, chat_template=None)))),
    )
    assert [[one.severity for one in each.findings if one.id == "MOD08"] for each in notes] == [[], ["info"]]
    assert sorted(contents(staging_world, extra.folder)) == [
        f"{extra.folder}/{MANIFEST}",
        f"{extra.folder}/tools.jinja",
    ]
    (tmp_path / "chat" / "tools.jinja").unlink()
    (tmp_path / "chat" / "tools.jinja").symlink_to("/etc/hostname")
    assert stage("--from", "checkpoint") == ExitCode.REFUSED
    assert "is a link to /etc/hostname, which is outside the folder" in capsys.readouterr().err


def staged_hash_in(world, folder):
    return manifest_hash(json.loads(world.content(f"{folder}/{MANIFEST}")))


@pytest.mark.usefixtures("file")
@pytest.mark.parametrize("origin", ["checkpoint", "bucket"])
def test_a_folder_with_anything_else_is_refused(staging_world, capsys, origin):
    staging_world.put("from/config.json", b"{}")
    staging_world.put("from/model.safetensors", WHOLE)
    place = "checkpoint" if origin == "checkpoint" else f"gs://{staging_world.bucket}/from"
    assert stage("--from", place) == ExitCode.DONE
    folder = staging_world.folder
    staging_world.put(f"{folder}/chat_template.jinja", b"{{ every prompt }}")
    before = contents(staging_world, folder)
    assert stage("--from", place) == ExitCode.REFUSED
    assert f"Delete it with `gcloud storage rm gs://{staging_world.bucket}/{folder}/chat_template.jinja`" in (
        capsys.readouterr().err
    )
    assert contents(staging_world, folder) == before
    [stranger] = staging_world.target.objects(f"{folder}/chat_template").values()
    staging_world.target.delete(stranger, staging_world.target.proof("a test's", "none"))
    assert stage("--from", place) == ExitCode.DONE
    staging_world.put(f"{folder}/{MANIFEST}", b'{"files": []}')
    assert stage("--from", place) == ExitCode.DONE
    assert folder.endswith(staged_hash_in(staging_world, folder)[:16])


@pytest.mark.usefixtures("file")
def test_a_bucket_that_states_the_hash_of_other_bytes_overwrites_nothing(file, staging_world, capsys):
    assert stage("--from", "checkpoint") == ExitCode.DONE
    folder = staging_world.folder
    before = contents(staging_world, folder)
    entries = json.loads(staging_world.content(f"{folder}/{MANIFEST}"))["files"]
    staging_world.put("liar/config.json", b"{}")
    staging_world.put("liar/model.safetensors", safetensors(b"weightz"))
    lies = [{**entry, "crc32c": None} for entry in entries]
    staging_world.put(f"liar/{MANIFEST}", json.dumps({"files": lies}).encode())
    assert stage("--from", f"gs://{staging_world.bucket}/liar") == ExitCode.REFUSED
    assert "differs from the source, although both state the same SHA-256" in capsys.readouterr().err
    assert contents(staging_world, folder) == before
    assert file.read_text().count("sha256:") >= 1


# Old folders.

SERVICE = "gcp:cloudrunv2/service:Service"


def serving(bucket, *folders, status="read"):
    """The states of a backend: one stack whose service mounts these folders."""
    resources = [
        {"type": SERVICE, "id": "", "inputs": {"bucket": bucket, "args": [f"/mnt/models/{each}"]}} for each in folders
    ]
    return [StackState(stack="other", status=status, resources=resources)]


@pytest.fixture
def google(monkeypatch):
    """What Google answers about the services: at first, that there are none."""
    answers = {}

    def get(_api, service, path):
        if path in answers:
            return answers[path]
        raise GoogleListError(404, f"{service} has no {path}", "")

    monkeypatch.setattr(GoogleApi, "get", get)
    monkeypatch.setattr(GoogleApi, "pages", lambda api, service, path: iter([get(api, service, path)]))
    return answers


def test_old_folders_are_listed_and_removed_unless_something_serves_them(  # noqa: PLR0917 - fixtures
    file, staging_world, monkeypatch, google, capsys, staged
):
    assert stage("--from", "checkpoint") == ExitCode.DONE
    old = staging_world.folder
    (file.parent / "checkpoint" / "model.safetensors").write_bytes(safetensors(b"others"))
    assert stage("--from", "checkpoint") == ExitCode.DONE
    new, bucket = staging_world.folder, staging_world.bucket
    staging_world.put("m/config.json", b"{}")
    staging_world.put("theirs/config.json", b"{}")
    capsys.readouterr()

    def folders(states):
        monkeypatch.setattr(housekeeping.states, "all_states", lambda: states)
        return {each["name"]: each for each in json.loads(staged(ExitCode.DONE, "--list", "--json").out)["folders"]}

    found = folders(serving(bucket, new))
    assert found.keys() == {"m", old, new}  # no folder of others in a bucket of theirs
    assert {name: (each["served_by"], each["settings"], each["complete"]) for name, each in found.items()} == {
        "m": ([], [], False),
        old: ([], [], True),
        new: (["stack other"], ["Pulumi.mine.yaml"], True),
    }
    monkeypatch.setattr(housekeeping.states, "all_states", lambda: serving(bucket, new))
    shown = staged(ExitCode.DONE, "--list").out
    assert f"  {new}\n    3 files, 0.00 GiB; read by stack other, Pulumi.mine.yaml (settings)\n" in shown
    assert "Readers in other projects, backends and programs are unknown." in shown
    assert stage("--remove", new, "--yes") == ExitCode.REFUSED
    assert f"gs://{bucket}/{new} is served by stack other. Nothing was deleted." in capsys.readouterr().err
    # A revision that has the requests after a roll-back is in no state.
    service = f"projects/{PROJECT}/locations/us-east4/services/gemma-mine"
    args = {"containers": [{"args": [f"/mnt/models/{old}"]}], "volumes": [{"gcs": {"bucket": bucket}}]}
    google[f"v2/{service}"] = {"traffic": [{"revision": "old-1", "percent": 100}], "latestReadyRevision": "x/new-2"}
    google[f"v2/{service}/revisions"] = {"revisions": [{"name": f"{service}/revisions/old-1", **args}]}
    assert f"gs://{bucket}/{old} is served by revision old-1." in staged(ExitCode.REFUSED, "--remove", old, "--yes").err
    google[f"v2/{service}"] = {"traffic": [{"revision": "new-2", "percent": 100}], "latestReadyRevision": "x/new-2"}
    assert folders([])[old]["older_revisions"] == ["revision old-1"]
    # What cannot be read proves nothing.
    monkeypatch.setattr(housekeeping.states, "all_states", lambda: serving(bucket, status="unreadable"))
    assert stage("--remove", old, "--yes") == ExitCode.REFUSED
    assert "the state of stack other could not be read. Nothing was deleted." in capsys.readouterr().err
    monkeypatch.setattr(housekeeping.states, "all_states", list)
    assert "Pass --yes to confirm" in staged(ExitCode.REFUSED, "--remove", old).err
    assert contents(staging_world, old)
    assert stage("--remove", old, "--yes") == ExitCode.DONE
    assert (contents(staging_world, old), len(contents(staging_world, new))) == ({}, 3)
    assert stage("--remove", "nothing", "--yes") == ExitCode.REFUSED


@pytest.mark.usefixtures("google")
def test_a_bucket_that_does_not_exist_yet_has_no_folders_and_one_of_others_is_named(file, monkeypatch, staged):
    monkeypatch.setattr(housekeeping.states, "all_states", list)
    file.write_text(file.read_text().replace("existing: ", "existing: no-"))
    shown = staged(ExitCode.FAILED, "--list").err
    assert re.fullmatch(r"stage_model: gs://no-\S+ does not exist\. Check its name, or create it\.\n", shown)
    own = re.sub(r"(?m)^  gemma-serving:bucket:.*\n", "", file.read_text())
    file.with_name("Pulumi.other.yaml").write_text(own)  # no other test stages for this stack
    other = ("--stack", "other")
    shown = staged(ExitCode.DONE, *other, "--list").out
    assert shown == f"gs://{PROJECT}-gemma-other-models has no weights. To copy them, run `gemma stage_model other`.\n"
    assert json.loads(staged(ExitCode.DONE, *other, "--list", "--json").out)["folders"] == []
    assert "Folders: none." in staged(ExitCode.REFUSED, *other, "--remove", "m", "--yes").err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--list", "--remove", "m"), "--list and --remove cannot be combined."),
        (("--list", "--from", "checkpoint"), "cannot be combined with --from"),
    ],
)
@pytest.mark.usefixtures("file")
def test_options_that_contradict_each_other(staged, options, said):
    assert said in staged(ExitCode.REFUSED, *options).err


@pytest.mark.parametrize("place", ["/nope", "checkpoint/config.json"])
@pytest.mark.usefixtures("file")
def test_a_source_that_is_no_folder_is_refused_before_google_is_asked(monkeypatch, staged, place):
    monkeypatch.setattr("gemma_serving.scripts.stage_model.staging.require_apis", None)
    said = f"stage_model: --from is {place}, which is not a folder. Pass a folder with a config.json, or gs://BUCKET/FOLDER.\n"
    assert staged(ExitCode.REFUSED, "--from", place).err == said


def test_a_link_to_a_file_of_elsewhere_is_not_copied_into_the_bucket(file, tmp_path, staging_world, capsys):
    secret = tmp_path / "application_default_credentials.json"
    secret.write_text('{"refresh_token": "canary"}')
    link = tmp_path / "checkpoint" / "tokenizer.json"
    link.symlink_to(secret)
    assert stage("--from", "checkpoint") == ExitCode.REFUSED
    assert f"tokenizer.json is a link to {secret}, which is outside the folder." in capsys.readouterr().err
    assert not staging_world.target.objects("m")
    link.unlink()
    link.symlink_to("config.json")
    assert stage("--from", "checkpoint") == ExitCode.DONE


def test_the_links_of_the_hubs_cache_are_followed(tmp_path):
    repository = tmp_path / "models--o--n"
    (repository / "blobs").mkdir(parents=True)
    (repository / "blobs" / "ab").write_text("{}")
    folder = repository / "snapshots" / ("c" * 40)
    folder.mkdir(parents=True)
    (folder / "config.json").symlink_to("../../blobs/ab")
    alias = tmp_path / "alias"
    alias.symlink_to(folder)
    for place in (folder, alias):
        assert [one.name for one in FolderSource(folder=place).files()] == ["config.json"]
    (folder / "tokenizer.json").symlink_to("/etc/hostname")
    with pytest.raises(CommandRefusedError, match=r"tokenizer\.json is a link to /etc/hostname"):
        FolderSource(folder=folder).files()
