"""Settings of a stack for the program."""

import json
from pathlib import Path

import pytest
import yaml

from gemma_serving.contracts.settings_files import settings_file

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def configured(monkeypatch):
    """Hand a stack's settings to the program as the engine does."""

    def configure(stack, **changes):
        config = yaml.safe_load(settings_file(stack, ROOT).read_text())["config"]
        config = {**config, "gcp:project": "my-project"}
        for path, value in changes.items():
            block, _, key = path.partition("__")
            if key:
                config[f"gemma-serving:{block}"][key] = value
            else:
                config[f"gemma-serving:{block}"] = value
        texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in config.items()}
        monkeypatch.setenv("PULUMI_CONFIG", json.dumps(texts))
        monkeypatch.setenv("PULUMI_CONFIG_SECRET_KEYS", "[]")

    return configure
