"""Each word that was dropped is answered with its replacement, and is not a word of this release."""

import copy
from pathlib import Path

import pytest
import yaml

from contracts.dropped_words import COMMANDS, SETTINGS
from scripts.gemma.__main__ import main
from scripts.gemma.catalog import ENTRIES
from stacks.loading import SettingsError, validate_settings
from stacks.schema import blocks
from stacks.settings import Settings
from stacks.settings.gateway import GatewayStack

ROOT = Path(__file__).resolve().parents[2]
GATEWAY = {
    "target": "gateway",
    "gateway": {"region": "r", "regions": ["r"], "backends": [{"stack": "a"}], "invokers": []},
}


def base(key):
    """Return settings in which a key can be set: those of a gateway, of a Cloud Run stack or of a TPU stack."""
    if key.startswith("gateway"):
        return copy.deepcopy(GATEWAY)
    path = ROOT / f"Pulumi.{'l4-qat' if key.startswith('cloudRun') else 'tpu-v6e1'}.yaml"
    return {name.partition(":")[2]: value for name, value in yaml.safe_load(path.read_text())["config"].items()}


def with_key(key):
    values = base(key)
    *parents, last = key.split(".")
    place = values
    for part in parents:
        place = place.setdefault(part.removesuffix("[]"), {})
        place = place[0] if part.endswith("[]") else place
    place[last] = "x"
    return values


@pytest.mark.parametrize("key", SETTINGS)
def test_a_dropped_key_is_answered(key):
    kind = GatewayStack if key.startswith("gateway") else Settings
    with pytest.raises(SettingsError) as refused:
        validate_settings(kind, with_key(key), project="p", origin="Pulumi.x.yaml")
    shown = key.replace("[]", "[0]")
    assert f"Pulumi.x.yaml: gemma-serving:{shown} is not a known setting since 0.4.0. {SETTINGS[key]}" in str(
        refused.value
    )
    assert not any(
        f"{path.partition(':')[2]}.{name}".removeprefix(".") == key
        for path, one in blocks()
        for name in one["properties"]
    )


@pytest.mark.parametrize("words", COMMANDS)
def test_a_dropped_command_is_answered(words, capsys):
    assert words not in ENTRIES
    assert main([*words.split(), "tpu-v6e1"]) == 2
    assert capsys.readouterr() == ("", f"gemma: `gemma {words}` does not exist since 0.4.0. {COMMANDS[words]}\n")
