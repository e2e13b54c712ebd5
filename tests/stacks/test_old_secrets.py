"""Which versions of a secret are destroyed after a change of the server."""

import asyncio
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from gemma_serving.cloud.google_session import GoogleCallError
from gemma_serving.contracts.labels import Ownership
from gemma_serving.stacks.hooks import old_secrets

SECRET = "projects/p/secrets/gemma-x-api-key"
READ, LIST = f"v1/{SECRET}", f"v1/{SECRET}/versions?pageSize=100"
OWNER = Ownership(project="gemma-serving", stack="x")
OWNED = {READ: {"name": SECRET, "labels": dict(OWNER.labels)}}


@pytest.fixture
def run(monkeypatch):
    """Run the hook with these answers of Google, and return the paths of the calls."""
    hooks, calls = [], []
    monkeypatch.setattr(old_secrets.pulumi, "ResourceHook", lambda _name, callback: callback)
    monkeypatch.setattr(old_secrets, "bind_types", lambda _types, bound: hooks.extend(bound.after_update))
    names, settings = SimpleNamespace(base="gemma-x"), SimpleNamespace(project="p")
    context = {"settings": settings, "names": names, "ownership": OWNER, "secrets": {"apiKey": "a secret output"}}
    old_secrets.destroy_old_versions(SimpleNamespace(**context))

    def run(answers, inputs=None):
        async def call(_api, path, **_options):
            calls.append(path)
            if isinstance(answers.get(path), Exception):
                raise answers[path]
            return answers.get(path, {})

        monkeypatch.setattr(old_secrets, "call", call)
        asyncio.run(hooks[0](SimpleNamespace(new_inputs=inputs)))
        return calls

    return run


def version(number, state="ENABLED"):
    return {"name": f"{SECRET}/versions/{number}", "state": state}


def service(number):
    """Inputs of a service, as the engine hands them to a hook."""
    source = {"secretKeyRef": {"version": str(number), "secret": SECRET.rpartition("/")[2]}}
    return {"template": {"containers": [{"envs": [{"name": "KEY", "valueSource": source}]}]}}


def machine(number):
    """Inputs of a queued resource, whose document is text."""
    return {"metadata": {"document": json.dumps({"secretEnv": {"KEY": f"{SECRET}/versions/{number}"}})}}


@pytest.mark.parametrize("server", [service, machine])
@pytest.mark.parametrize(
    ("versions", "read", "destroyed"),
    [
        ([], 1, []),
        ([version(2), version(1)], 2, []),
        ([version(3), version(2, "DISABLED"), version(1)], 3, [1]),
        ([version(10), version(9), version(8, "DESTROYED")], 10, []),
        ([version(11), version(10), version(9), version(2)], 11, [2, 9]),
        ([version(5), version(4), version(3), version(2), version(1)], 3, [1]),  # two were added by hand
    ],
)
def test_all_but_the_version_that_the_server_reads_and_the_one_before_are_destroyed(
    run, server, versions, read, destroyed
):
    paths = [f"v1/{SECRET}/versions/{number}:destroy" for number in destroyed]
    reads = [LIST, READ] if destroyed else [LIST]
    assert run({**OWNED, LIST: {"versions": versions}}, server(read)) == [*reads, *paths]


@pytest.mark.parametrize("inputs", [None, {}, {"template": {"containers": [{"args": ["versions/9"]}]}}])
def test_nothing_is_destroyed_without_the_version_that_the_server_reads(run, inputs):
    assert run({LIST: {"versions": [version(3), version(2), version(1)]}}, inputs) == [LIST]


@pytest.mark.parametrize("other", [{"project": "billing"}, {"stack": "y"}])
def test_versions_of_another_owners_secret_stay(run, monkeypatch, other):
    said = []
    monkeypatch.setattr(old_secrets.pulumi.log, "warn", said.append)
    theirs = {READ: {"name": SECRET, "labels": dict(replace(OWNER, **other).labels)}}
    assert run({**theirs, LIST: {"versions": [version(3), version(2), version(1)]}}, service(3)) == [LIST, READ]
    assert "does not belong to stack x of the Pulumi project gemma-serving" in said[0]


def test_a_failure_is_a_warning_because_the_server_is_ready(run, monkeypatch):
    said = []
    monkeypatch.setattr(old_secrets.pulumi.log, "warn", said.append)
    run({LIST: GoogleCallError(403, "Permission denied.")})
    (text,) = said
    assert SECRET in text
    assert "Permission denied." in text
