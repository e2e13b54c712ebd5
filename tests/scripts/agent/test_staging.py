"""`stage_weights`: sources that the person named, to the stack's own bucket."""

from dataclasses import replace

import anyio
import pytest

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.scripts.agent import staging
from gemma_serving.scripts.agent.tool_server import build
from gemma_serving.scripts.stack.settings import stack_settings
from tests.scripts.agent.conftest import STACK, call

SETTING = "sha256:" + "0" * 64
NAMED = "gs://our-models/gemma"


@pytest.fixture
def world(commands):
    """A stack with a bucket."""
    commands.documents["stage_model"] = {"setting": {"bucket.manifest": SETTING}}
    return commands


def stage(agent, audit, **arguments):
    return anyio.run(lambda: call(build(agent, audit), "stage_weights", {"stack": STACK, **arguments}))


def test_the_command_creates_a_missing_bucket_and_writes_the_hash(bench_of, audit, world):
    found = stage(bench_of("stage"), audit).structured_content
    assert world.run[0][2:4] == ["--stack", STACK]
    assert found["document"]["setting"] == {"bucket.manifest": SETTING}


def test_only_sources_that_the_person_named_are_copied(bench_of, audit, world):
    """Any bucket was taken once, so that a model could stage a stranger's weights."""
    for agent, source in (
        (bench_of("stage"), NAMED),
        (bench_of("stage", stage_from=[NAMED]), "gs://evil-bucket-x/x"),
        (bench_of("stage", stage_from=[NAMED]), f"{NAMED}/below"),
        (bench_of("stage", stage_from=[NAMED]), "gs://our-models"),
    ):
        found = stage(agent, audit, origin=source)
        assert f"origin is '{source}', which the user who started this server did not allow" in found.content[0].text
    assert world.run == []
    assert stage(bench_of("stage", stage_from=[f"{NAMED}/"]), audit, origin=NAMED).structured_content["ok"]
    assert world.run[0][4:6] == ["--from", NAMED]


PINNED = "1d2c2d7f2466070e69d6fb3fd5ce9a7d75f2f6ee"


@pytest.mark.parametrize(
    "revision",
    ["main", PINNED, "refs/pr/7", "REFS/pr/1", "pr/7", "refs%2Fpr%2F1", "0" * 40, "a-branch", PINNED[:7]],
)
def test_only_the_default_branch_and_the_users_commit_are_revisions(bench_of, audit, world, monkeypatch, revision):
    """A revision that anyone can propose at the hub is refused."""
    settings = replace(stack_settings(STACK), model_revision=PINNED)
    monkeypatch.setattr(staging, "stack_settings", lambda _: settings)
    found = stage(bench_of("stage"), audit, revision=revision)
    if revision in {"main", PINNED}:
        assert world.run[0][4:6] == ["--revision", revision]
        return
    assert f"revision is '{revision}', and anyone can propose a commit to the hub. Allowed: main, or" in str(found)
    assert world.run == []


@pytest.mark.parametrize("given", ["/home/me", "gs://", "gs://b/../c", "hf://x/y"])
def test_a_source_that_is_none_is_refused_at_the_start(given):
    with pytest.raises(CommandRefusedError, match=r"--stage-from is .*\. Write gs://BUCKET/FOLDER\."):
        staging.parse_sources([given])
