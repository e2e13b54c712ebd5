"""Versions of an API key, with the real CLI: two stay, and one that is gone is reported before the next start of an instance."""

import pytest

from tests.engine.conftest import PROJECT
from tests.engine.test_by_hand import STACK, assert_undone, serve, service, status, up

SECRETS = f"projects/{PROJECT}/secrets"
KEY = f"secretmanager/v1/{SECRETS}/gemma-{STACK}-api-key/versions"
THEIRS = f"{SECRETS}/theirs/versions"

pytestmark = [pytest.mark.engine, pytest.mark.long]


def test_two_versions_of_a_key_stay_and_a_return_beyond_them_is_refused(workspace):
    workspace.pulumi("stack", "init", STACK)
    workspace.stage(STACK)
    revisions = []
    for key in ("first-key-0123456789", "second-key-0123456789", "third-key-0123456789"):
        workspace.script("save_token", "apiKey", "--stack", STACK, stdin=key)
        up(workspace)
        revisions.append(service(workspace)["latestReadyRevision"])
    states = [version["state"] for version in workspace.call("GET", KEY)["versions"]]
    assert states == ["ENABLED", "ENABLED", "DESTROYED"]
    first, previous, current = revisions
    assert serve(workspace, previous) is None
    refused = serve(workspace, first)["message"]
    assert f"'{first.rpartition('/')[2]}' is not ready" in refused
    assert "versions/1 is in state DESTROYED and cannot be read" in refused
    found = status(workspace)
    assert found["next_command"] == f"gemma up {STACK} --refresh"
    assert f"100 % {first.rpartition('/')[2]}" in found["drift"][0]
    assert "Traffic was moved outside Pulumi" in up(workspace)
    serve(workspace, current)


def test_a_destroyed_key_is_seen_before_the_next_start_and_replaced(workspace):
    workspace.post(f"{KEY}/3:destroy", {})
    (said,) = status(workspace)["drift"]
    assert said.endswith("/versions/3 was destroyed, so no server that reads it can start again.")
    doctor = " ".join(workspace.script("doctor", "--stack", STACK, expect=1).out.split())
    assert "missing apiKey: " in doctor
    assert f"gemma up {STACK} --refresh" in doctor
    assert_undone(workspace, said, f"{STACK}: creates a new revision.")
    assert workspace.call("GET", KEY)["versions"][0]["state"] == "ENABLED"


def test_a_return_to_a_destroyed_version_of_ones_own_secret_is_refused_before_anything_changes(workspace):
    for key in ("their-key-0123456789", "their-next-key-0123456789"):
        workspace.script("save_token", "apiKey", "--stack", STACK, "--secret", "theirs", stdin=key)
    up(workspace)
    before = service(workspace)
    workspace.post(f"secretmanager/v1/{THEIRS}/1:destroy", {})
    workspace.configure(STACK, apiKeySecret=f"{THEIRS}/1")
    refused = " ".join(up(workspace, expect=2).split())
    assert f"apiKeySecret: {THEIRS}/1 is DESTROYED" in refused
    assert f"gemma save_token {STACK} apiKey --secret theirs" in refused
    assert service(workspace) == before
    workspace.teardown(STACK)
