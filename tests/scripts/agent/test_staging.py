"""`stage_weights`: sources that the person named, a plan before the engine creates a bucket, and no settings file that is written."""

import anyio
import pytest

from contracts.errors import CommandRefusedError
from engine.steps import steps_of
from scripts.agent import staging
from scripts.agent.server import build
from tests.scripts.agent.conftest import PREVIEW, STACK, call, frozen, keep

SETTING = "sha256:" + "0" * 64
NAMED = "gs://our-models/gemma"


@pytest.fixture
def world(monkeypatch, commands):
    """A stack whose bucket the state does not have yet."""
    commands.documents["stage_model"] = {"setting": {"bucket.manifest": SETTING}}
    monkeypatch.setattr(staging, "freeze", frozen)
    monkeypatch.setattr(staging, "_has_bucket", lambda _stack: False)
    monkeypatch.setattr(staging, "creation_steps", lambda _frozen: steps_of(PREVIEW))
    return commands


def stage(agent, audit, **arguments):
    return anyio.run(lambda: call(build(agent, audit), "stage_weights", {"stack": STACK, **arguments}))


def test_what_would_change_more_is_refused(bench_of, audit, world, monkeypatch):
    def refuse(_stack):
        raise CommandRefusedError("The bucket would be replaced.")

    monkeypatch.setattr(staging, "_has_bucket", refuse)
    assert "would be replaced" in stage(bench_of("stage"), audit).content[0].text
    assert world.run == []


def test_a_plan_of_another_kind_creates_nothing(bench_of, audit, world):
    agent = bench_of("up,stage")
    found = stage(agent, audit, plan_id=keep(agent))
    assert "is not a plan for this call of stage_weights" in found.content[0].text
    creation = stage(agent, audit).structured_content["plan_id"]
    deployed = anyio.run(lambda: call(build(agent, audit), "up", {"plan_id": creation}))
    assert "is not a plan for this call of up" in deployed.content[0].text
    assert world.run == []


def test_only_sources_that_the_person_named_are_copied(bench_of, audit, world, monkeypatch):
    """Any bucket was taken once, so that a model could stage a stranger's weights."""
    monkeypatch.setattr(staging, "_has_bucket", lambda _stack: True)
    for agent, source in (
        (bench_of("stage"), NAMED),
        (bench_of("stage", stage_from=[NAMED]), "gs://evil-bucket-x/x"),
        (bench_of("stage", stage_from=[NAMED]), f"{NAMED}/below"),
        (bench_of("stage", stage_from=[NAMED]), "gs://our-models"),
    ):
        found = stage(agent, audit, source=source)
        assert f"source is '{source}', which the user who started this server did not allow" in found.content[0].text
    assert world.run == []
    assert stage(bench_of("stage", stage_from=[f"{NAMED}/"]), audit, source=NAMED).structured_content["staged"]
    assert world.run[0][5:7] == ["--from", NAMED]


def test_a_proposal_at_the_hub_is_not_a_revision(bench_of, audit, world):
    found = stage(bench_of("stage"), audit, revision="refs/pr/7")
    assert "which anyone can propose" in found.content[0].text
    assert world.run == []


@pytest.mark.parametrize("given", ["/home/me", "gs://", "gs://b/../c", "hf://x/y"])
def test_a_source_that_is_none_is_refused_at_the_start(given):
    with pytest.raises(CommandRefusedError, match=r"--stage-from is .*\. Write gs://BUCKET/FOLDER\."):
        staging.parse_sources([given])
