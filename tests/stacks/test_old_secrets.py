"""Which versions of a secret are destroyed after a change of the server."""

import asyncio
from types import SimpleNamespace

import pytest

from gemma_serving.cloud.google_session import GoogleCallError
from gemma_serving.stacks.hooks import old_secrets

SECRET = "projects/p/secrets/gemma-x-api-key"
LIST = f"v1/{SECRET}/versions?pageSize=100"


@pytest.fixture
def run(monkeypatch):
    """Run the hook with these answers of Google, and return the paths of the calls."""
    hooks, calls = [], []
    monkeypatch.setattr(old_secrets.pulumi, "ResourceHook", lambda _name, callback: callback)
    monkeypatch.setattr(old_secrets, "bind_types", lambda _types, bound: hooks.extend(bound.after_update))
    names, settings = SimpleNamespace(base="gemma-x"), SimpleNamespace(project="p")
    old_secrets.destroy_old_versions(
        SimpleNamespace(settings=settings, names=names, secrets={"apiKey": "a secret output"})
    )

    def run(answers):
        async def call(_api, path, **_options):
            calls.append(path)
            if isinstance(answers.get(path), Exception):
                raise answers[path]
            return answers.get(path, {})

        monkeypatch.setattr(old_secrets, "call", call)
        asyncio.run(hooks[0](None))
        return calls

    return run


def version(number, state="ENABLED"):
    return {"name": f"{SECRET}/versions/{number}", "state": state}


@pytest.mark.parametrize(
    ("versions", "destroyed"),
    [
        ([], []),
        ([version(2), version(1)], []),
        ([version(3), version(2, "DISABLED"), version(1)], [1]),
        ([version(10), version(9), version(8, "DESTROYED")], []),
        ([version(11), version(10), version(9), version(2)], [2, 9]),
    ],
)
def test_all_but_the_newest_two_are_destroyed(run, versions, destroyed):
    paths = [f"v1/{SECRET}/versions/{number}:destroy" for number in destroyed]
    assert run({LIST: {"versions": versions}}) == [LIST, *paths]


def test_a_failure_is_a_warning_because_the_server_is_ready(run, monkeypatch):
    said = []
    monkeypatch.setattr(old_secrets.pulumi.log, "warn", said.append)
    run({LIST: GoogleCallError(403, "Permission denied.")})
    (text,) = said
    assert SECRET in text
    assert "Permission denied." in text
