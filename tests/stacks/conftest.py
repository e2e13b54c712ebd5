"""Settings of a stack, with changes."""

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

import pulumi
import pytest
import yaml

from gemma_serving.contracts.settings_files import settings_file
from gemma_serving.stacks.program import run

ROOT = Path(__file__).resolve().parents[2]


@cache
def _read(stack: str) -> dict[str, Any]:
    config = yaml.safe_load(settings_file(stack, ROOT).read_text())["config"]
    return {key.partition(":")[2]: value for key, value in config.items()}


def values_of(stack: str) -> dict[str, Any]:
    return copy.deepcopy(_read(stack))


def changed(stack: str, changes: dict[str, Any]) -> dict[str, Any]:
    values = values_of(stack)
    for path, value in changes.items():
        place = values
        *parents, last = path.split(".")
        for part in parents:
            place = place.setdefault(part, {})
        if value is None:
            place.pop(last, None)
        else:
            place[last] = value
    return values


def with_parents(stack: str, path: str, value: object) -> dict[str, Any]:
    """Return the values with one key set, below the blocks that exist; an image or model named by text becomes a block."""
    values = values_of(stack)
    place: Any = values
    *parents, last = path.split(".")
    for part in parents:
        if not isinstance(place.get(part), dict):
            place[part] = {}
        place = place[part]
    place[last] = value
    return values


@pytest.fixture
def configured(monkeypatch):
    """Hand a stack's settings to the program as the engine does."""

    def configure(stack, **changes):
        config = {f"gemma-serving:{key}": value for key, value in values_of(stack).items()}
        config["gcp:project"] = "my-project"
        for path, value in changes.items():
            block, _, key = path.partition("__")
            if key:
                config.setdefault(f"gemma-serving:{block}", {})[key] = value
            else:
                config[f"gemma-serving:{block}"] = value
        texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in config.items()}
        monkeypatch.setenv("PULUMI_CONFIG", json.dumps(texts))
        monkeypatch.setenv("PULUMI_CONFIG_SECRET_KEYS", '["gemma-serving:apiKey"]' if "apiKey" in changes else "[]")

    return configure


@pytest.fixture
def declared(configured, declare):
    """Return what a stack with changes declares."""

    def of(stack, **changes):
        configured(stack, **changes)
        return declare(run)[0]

    return of


@pytest.fixture
def bound(declare, monkeypatch):
    """Run a part of the program that binds hooks. Return a function from a type of resource to its hooks; None if it has none."""

    def by(program):
        transforms = []
        monkeypatch.setattr(pulumi.runtime, "register_stack_transformation", transforms.append)
        declare(lambda: program() and None)

        def of(kind):
            given = pulumi.ResourceTransformationArgs(None, kind, "n", {}, pulumi.ResourceOptions(protect=True))
            changed = [found.opts for transform in transforms if (found := transform(given)) is not None]
            assert all(options.protect is True for options in changed)
            return changed[0].hooks if changed else None

        return of

    return by
