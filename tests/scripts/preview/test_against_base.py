"""Stacks without a state: what is added, changed and removed by the difference of two deployments, and which stacks need no engine."""

import copy
import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from contracts.errors import ScriptError
from engine import runner
from engine.changes import changes_of
from gcp_tpu_provider.properties import INPUTS
from scripts.preview import run
from scripts.preview.plans import describe_checkout
from scripts.preview.run import between, preview_stacks, same_stacks
from scripts.preview.verdicts import verdicts
from tests.scripts.preview.cases import DATE, ROOT, recorded

BASE, HEAD = recorded("base"), recorded("zone-added")
ADDED = [
    ("create", "network-asia-northeast1"),
    ("create", "network-asia-northeast1"),
    ("create", "network-asia-northeast1"),
    ("update", "capacity"),
]


def differing(base, head):
    changes, unchanged, _ = changes_of(between(base, head))
    return [(change.op, change.name) for change in changes], unchanged


def edited(preview, name, **inputs):
    """Return a preview with other inputs of a resource; None takes one out."""
    found = copy.deepcopy(preview)
    states = [step["newState"] for step in found["steps"] if step["urn"].endswith(f"QueuedResource::{name}")]
    (state,) = [state for state in states if state["inputs"]]
    state["inputs"] = {key: value for key, value in {**state["inputs"], **inputs}.items() if value is not None}
    return found


def test_an_added_zone_is_what_it_adds_and_not_the_whole_deployment():
    assert differing(BASE, HEAD) == (ADDED, 31)
    changes, _, _ = changes_of(between(BASE, HEAD))
    assert changes[-1].properties == ("metadata", "zones")
    assert [(one.path, one.before, one.after) for one in changes[-1].changes][1] == ("zones", "", "asia-northeast1-b")


def test_a_removed_zone_is_what_it_removes():
    removed = [("delete", name) for op, name in ADDED if op == "create"]
    assert differing(HEAD, BASE) == ([("update", "capacity"), *removed], 31)
    assert len(changes_of(between(HEAD, BASE))[0]) == 4


def test_the_same_declarations_in_another_order_are_no_difference():
    """The engine registers independent resources in any order."""
    shuffled = {**BASE, "steps": list(reversed(BASE["steps"]))}
    assert differing(BASE, shuffled) == ([], 32)


def test_messages_and_the_providers_bookkeeping_are_no_difference():
    other = edited(BASE, "capacity", nextSteps=["Another sentence."], __defaults=["api"])
    assert differing(BASE, other) == ([], 32)
    assert differing(BASE, edited(BASE, "capacity", validUntilDurationS=60)) == ([("update", "capacity")], 31)
    assert differing(BASE, edited(BASE, "capacity", validUntilDurationS=None)) == ([("update", "capacity")], 31)


def test_the_inputs_that_are_messages_are_those_of_the_provider():
    assert {item.name for item in INPUTS if item.change == "words"} == run._WORDS


def test_the_stack_itself_is_no_resource():
    assert all(change.type != "pulumi:pulumi:Stack" for change in changes_of(between({}, BASE))[0])


@pytest.fixture
def checkouts(tmp_path):
    """Two checkouts that are the same: two stacks and a program; one stack builds an image, with a provider's setting of its own."""
    folders = tmp_path / "base", tmp_path / "head"
    for folder in folders:
        (folder / "components").mkdir(parents=True)
        (folder / "image").mkdir()
        (folder / "image" / "Dockerfile").write_text("FROM scratch\n")
        (folder / "components" / "a.py").write_text("x = 1\n")
        (folder / "Pulumi.yaml").write_text("name: x\n")
        shutil.copy(ROOT / "Pulumi.tpu-v6e1.yaml", folder)
        document = yaml.safe_load((ROOT / "Pulumi.l4-qat.yaml").read_text())
        document["config"]["gemma-serving:image"] = {
            "buildContext": "image",
            "repository": "r/v",
            "digest": f"sha256:{'0' * 64}",
        }
        document["config"]["gcp:addPulumiAttributionLabel"] = False
        (folder / "Pulumi.l4-qat.yaml").write_text(yaml.safe_dump(document))
    return folders


def same(checkouts):
    base, head = checkouts
    found = verdicts(describe_checkout(base, date=DATE), describe_checkout(head, date=DATE))
    return same_stacks(base, head, [one.stack for one in found if one.is_same])


def replace(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


BOTH = {"l4-qat", "tpu-v6e1"}


@pytest.mark.parametrize(
    ("path", "old", "new", "kept"),
    [
        ("Pulumi.yaml", "", "", BOTH),
        ("Pulumi.tpu-v6e1.yaml", "config:\n", "# A comment.\nencryptionsalt: v1:x=\nconfig:\n", BOTH),
        ("Pulumi.tpu-v6e1.yaml", "waitPerZone: ", "waitTotal: 3h\n    waitPerZone: ", {"l4-qat"}),
        ("Pulumi.l4-qat.yaml", "addPulumiAttributionLabel: false", "addPulumiAttributionLabel: true", {"tpu-v6e1"}),
        ("image/Dockerfile", "FROM scratch", "FROM debian", {"tpu-v6e1"}),
        ("Pulumi.l4-qat.yaml", "gemma-serving:target", "gemma-serving:tagret", {"tpu-v6e1"}),
        ("components/a.py", "x = 1", "x = 2", set()),
        ("Pulumi.yaml", "name: x", "name: y", set()),
    ],
)
def test_a_stack_is_the_same_only_with_everything_that_the_engine_reads(checkouts, path, old, new, kept):
    replace(checkouts[1] / path, old, new)
    assert same(checkouts) == kept


def test_a_stack_that_is_invalid_in_both_is_not_the_same(checkouts):
    """Its preview says why."""
    for folder in checkouts:
        replace(folder / "Pulumi.l4-qat.yaml", "gemma-serving:target", "gemma-serving:tagret")
    assert same(checkouts) == {"tpu-v6e1"}


@pytest.fixture
def engine(monkeypatch, checkouts):
    """An engine with recorded previews: of the base's folder, and of the other; it notes what it was called for."""
    base, head = checkouts
    seen, listed = [], []

    def previewed(stack, *, create, hide):
        assert create
        assert hide
        at = "base" if Path.cwd() == base else "head"
        seen.append((stack, at))
        found = engine.documents[at]
        if isinstance(found, ScriptError):
            raise found
        return found, stack in listed

    def engine():
        return seen

    engine.listed, engine.documents = listed, {"base": BASE, "head": HEAD}
    monkeypatch.chdir(head)
    monkeypatch.setattr(run, "_previewed", previewed)
    monkeypatch.setattr(runner, "pulumi", lambda: "pulumi")
    monkeypatch.setattr(runner, "listed_stacks", lambda: frozenset(listed))
    return engine


def previews(base, *names, same=frozenset()):
    found = preview_stacks(names, create=True, hide_secrets=True, base=base, same=same)
    return {preview.stack: preview for preview in found}


def test_only_a_changed_stack_is_previewed_twice(engine, checkouts, capsys):
    found = previews(checkouts[0], same=frozenset({"l4-qat"}))
    assert engine() == [("tpu-v6e1", "head"), ("tpu-v6e1", "base")]
    assert found["l4-qat"].skipped
    assert (found["l4-qat"].changes, found["l4-qat"].error) == ((), None)
    assert found["tpu-v6e1"].against_base
    assert len(found["tpu-v6e1"].changes) == 4
    assert Path.cwd() == checkouts[1]
    assert "1 of 2 stacks have the plan and settings of the base; skipping them" in capsys.readouterr().err


def test_a_deployed_stack_is_previewed_as_before(engine, checkouts):
    """With a state, the preview shows what `up` changes, the same plan or not."""
    engine.listed.extend(BOTH)
    found = previews(checkouts[0], same=frozenset(BOTH))
    assert engine() == [("l4-qat", "head"), ("tpu-v6e1", "head")]
    assert not any(preview.skipped or preview.against_base or preview.new_stack for preview in found.values())
    assert {len(preview.changes) for preview in found.values()} == {34}


@pytest.mark.parametrize("has_base", [True, False])
def test_a_new_stack_and_a_run_without_a_base_show_the_whole_deployment(engine, checkouts, has_base):
    (checkouts[0] / "Pulumi.tpu-v6e1.yaml").unlink()
    found = previews(checkouts[0] if has_base else None, "tpu-v6e1")
    assert engine() == [("tpu-v6e1", "head")]
    assert found["tpu-v6e1"].new_stack
    assert not found["tpu-v6e1"].against_base
    assert len(found["tpu-v6e1"].changes) == 34


def test_a_base_that_cannot_be_previewed_is_said_and_nothing_is_hidden(engine, checkouts, capsys):
    engine.documents["base"] = ScriptError("boom hf_Abcdefghijkl1")
    preview = previews(checkouts[0], "tpu-v6e1")["tpu-v6e1"]
    said = capsys.readouterr().err
    assert "tpu-v6e1 of the base failed, so the whole deployment is shown: boom " in said
    assert "bcdefghijkl1" not in said
    assert (preview.error, preview.against_base, len(preview.changes)) == (None, False, 34)


def test_a_stack_that_fails_is_not_previewed_for_the_base(engine, checkouts):
    engine.documents["head"] = ScriptError("boom")
    found = previews(checkouts[0], "tpu-v6e1")
    assert found["tpu-v6e1"].error == "boom"
    assert engine() == [("tpu-v6e1", "head")]


def test_a_backend_that_cannot_be_listed_skips_nothing(engine, checkouts, monkeypatch):
    def refuse():
        raise ScriptError("no access")

    monkeypatch.setattr(runner, "listed_stacks", refuse)
    found = previews(checkouts[0], same=frozenset(BOTH))
    assert len(engine()) == 4
    assert not any(preview.skipped for preview in found.values())


def test_the_engine_of_the_base_runs_in_the_folder_of_the_base(monkeypatch, checkouts):
    """The base's own program and settings, in a temporary backend."""
    folders = []

    def answer(*arguments, **_options):
        folders.append((arguments[0], Path.cwd()))
        if arguments[:2] == ("stack", "select"):
            return subprocess.CompletedProcess(arguments, 255, "", "error: no stack named 'tpu-v6e1' found")
        return subprocess.CompletedProcess(arguments, 0, json.dumps(BASE), "")

    base, head = checkouts
    monkeypatch.chdir(head)
    monkeypatch.setattr(runner, "run", answer)
    monkeypatch.setattr(runner, "pulumi", lambda: "pulumi")
    (found,) = preview_stacks(["tpu-v6e1"], create=True, base=base)
    assert [folder for command, folder in folders if command == "preview"] == [head, base]
    assert (found.changes, found.unchanged, found.against_base) == ((), 32, True)
