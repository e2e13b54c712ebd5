"""Laws about a state that is no proof: a copy, a renamed one and one that a folder brings delete nothing of another owner without a yes."""

import json
import re
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import pytest

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.labels import Ownership, owner_of
from gemma_serving.contracts.proof import in_project
from gemma_serving.contracts.search_results import FoundResource
from gemma_serving.engine import state as states
from gemma_serving.engine.state import StackState
from gemma_serving.scripts.stack import own_runs
from gemma_serving.scripts.stack.labelled import SearchedStacks, doubt, unstated
from gemma_serving.scripts.teardown.teardown_options import TeardownOptions
from tests.cloud.populated import owner
from tests.scripts.teardown.test_removal_laws import Case, World, inventory, opened

NAME = "projects/p/secrets/s"
OTHER = Ownership(project="billing", stack="prod")


def state_of(stated):
    """Return the state of stack x that names one secret, whose inputs have these labels."""
    inputs = {"project": "p", "secretId": "s", "labels": dict(stated.labels)}
    entry = {"type": "gcp:secretmanager/secret:Secret", "custom": True, "urn": "urn:pulumi:x::gemma-serving::t::s"}
    entry |= {"id": NAME, "inputs": inputs}
    raw = {"version": 3, "deployment": {"manifest": {}, "resources": [entry]}}
    return StackState(stack="x", status="read", resources=[entry], projects=("p",), raw=raw)


class Doubted(World):
    """A world with one secret, whose label has an owner, and the state of stack x that names it."""

    def __init__(self, stated, live, answer):
        super().__init__(Case(unstated=answer))
        self.state, self.live, self.destroyed, self.teardown = state_of(stated), live, [], None

    def search(self, *_, **__):
        item = FoundResource(kind="secret", name=NAME, command="", owner=self.live, labels=dict(self.live.labels))
        asker = self.teardown.known.asker
        is_ours = asker.owns(item.owner, item.name)
        claimed = [] if is_ours or in_project(NAME) not in asker.stated else [item]
        return inventory([item] if is_ours and NAME not in self.gone else [], claimed=claimed)

    def delete_all(self, _api, chosen, *_, **__):
        self.rounds.append([item.name for item in chosen])
        return []


LIVE = {"its own": owner("x"), "another stack's": owner("prod"), "another project's": OTHER}


@pytest.mark.parametrize("answer", [True, False, None], ids=["yes", "no", "no terminal"])
@pytest.mark.parametrize("live", LIVE)
def test_a_state_that_is_no_proof_deletes_nothing_without_a_yes(monkeypatch, subtests, live, answer):
    for stated, is_listed, is_brought, is_own in product(["x", "prod"], *[[False, True]] * 3):
        with subtests.test(f"{stated} {is_listed=} {is_brought=} {is_own=}"), monkeypatch.context() as patch:
            world = Doubted(owner(stated), LIVE[live], answer)
            listed = {"x", *(["prod"] if is_listed else [])}
            patch.setattr(states, "deployed_names", lambda listed=listed: frozenset(listed))
            patch.setattr("gemma_serving.scripts.stack.labelled.is_of_folder", lambda is_brought=is_brought: is_brought)
            patch.setattr("gemma_serving.scripts.stack.labelled.is_own", lambda *_, is_own=is_own, **__: is_own)
            patch.setattr("gemma_serving.scripts.stack.labelled.was_kept", lambda *_: False)
            patch.setattr("gemma_serving.scripts.stack.labelled.shown_url", lambda: "file://./state")
            destroyed = []
            patch.setattr(
                "gemma_serving.scripts.teardown.removal.engine_run.destroy",
                lambda *_, destroyed=destroyed, **__: destroyed.append(NAME),
            )
            options = TeardownOptions(stack="x", yes=True)
            teardown = opened(world, patch, options, has_price=lambda _: False)
            world.teardown, refused = teardown, ""
            try:
                teardown.run()
            except CommandRefusedError as error:
                refused = str(error)
            is_others = live != "its own"
            is_taken = live == "another project's" or (is_listed and (stated == "prod" or is_others))
            is_doubted = is_others or stated == "prod" or (is_brought and not is_own)
            writes = [*destroyed, *(name for names in world.rounds for name in names)]
            if is_taken or (is_doubted and not answer):
                assert writes == []
                assert refused or not teardown.receipt().clean
            else:
                assert {*destroyed} == {NAME}
                assert not refused
            assert not is_taken or refused
            assert ("of the Pulumi project billing" in refused) is (is_taken and live == "another project's")


@pytest.mark.parametrize(
    "name", ["", "-rf", "a b", "x`id`", "$(id)", "x;id", "x\n", "ünï", "x" * 101, "--all", "a/b", "'x'"]
)
def test_a_text_that_no_stack_or_project_can_be_called_is_no_owner(name):
    for own in (Ownership(project="gemma-serving", stack=name), Ownership(project=name, stack="x")):
        assert owner_of(labels=own.labels) is None
        assert owner_of(labels={**own.labels, "gemma-serving-stack": None}) is None
        found = owner_of(description=own.description)  # of words, so a space ends a name
        assert found is None or re.fullmatch(r"[a-z]\S*", f"{found.project}{found.stack}")


@pytest.mark.parametrize("kinds", [["bucket"], ["bucket", "secret"]])
@pytest.mark.parametrize("was_kept", [True, False])
def test_only_a_bucket_that_this_folders_teardown_kept_needs_no_state(monkeypatch, kinds, was_kept):
    """With another resource, another folder deployed the stack since, and may use the bucket."""
    monkeypatch.setattr("gemma_serving.scripts.stack.labelled.was_kept", lambda *_: was_kept)
    stacks = SearchedStacks(stack="x", states=[], settings={}, projects=["p"], is_name_known=True)
    found = [FoundResource(kind=kind, name=kind, command="", owner=owner("x")) for kind in kinds]
    left = [item.kind for item in unstated(stacks, found)]
    assert left == ([] if was_kept and kinds == ["bucket"] else kinds)


@pytest.mark.parametrize(
    ("state", "created", "kept"),
    [
        ("destroyed", "2026-01-01T00:00:00Z", True),
        ("destroyed", "2100-01-01T00:00:00Z", False),
        ("destroyed", "", False),
        ("done", "2026-01-01T00:00:00Z", False),
    ],
)
def test_a_resource_was_kept_if_it_is_older_than_the_record_of_a_deletion(monkeypatch, state, created, kept):
    record = SimpleNamespace(read=lambda _: json.dumps({"state": state}), written_s=lambda _: 1_800_000_000)
    monkeypatch.setattr(own_runs, "memory", lambda: record)
    assert own_runs.was_kept("x", created) is kept


@pytest.mark.parametrize(
    ("record", "doubted"), [("", [True, True]), ("done", [False, False]), ("destroyed", [False, True])]
)
def test_a_server_in_a_brought_state_is_anothers_after_this_folder_destroyed_the_stack(monkeypatch, record, doubted):
    text = json.dumps({"state": record}) if record else ""
    monkeypatch.setattr(own_runs, "memory", lambda: SimpleNamespace(read=lambda _: text))
    monkeypatch.setattr("gemma_serving.scripts.stack.labelled.is_of_folder", lambda: True)
    kept = state_of(owner("x"))
    server = {"type": "gcp:cloudrunv2/service:Service", "custom": True, "urn": "urn:pulumi:x::gemma-serving::t::v"}
    again = replace(kept, resources=[*kept.resources, server])
    assert [bool(doubt(state)) for state in (kept, again)] == doubted
