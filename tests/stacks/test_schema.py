"""Editors check the stacks' files with the JSON schema; it refuses what the program refuses by key and by type."""

from pathlib import Path

import jsonschema
import pytest

from gemma_serving.contracts.settings_files import settings_file, shipped_files
from gemma_serving.stacks.loading import read_yaml
from gemma_serving.stacks.schema import blocks, file_schema

ROOT = Path(__file__).resolve().parents[2]
FILES = shipped_files(ROOT)
FIRST_LINE = "# yaml-language-server: $schema=docs/settings.schema.json"
SCHEMA = file_schema()
"""Contents of docs/settings.schema.json."""
VALIDATOR = jsonschema.validators.validator_for(SCHEMA)(SCHEMA)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_stack_names_the_schema_on_its_first_line_and_keeps_it(path):
    schema = "" if path.parent == ROOT else "../../"
    assert path.read_text().splitlines()[0] == FIRST_LINE.replace("docs/", f"{schema}docs/")
    assert list(VALIDATOR.iter_errors(read_yaml(path.read_text()))) == []


TPU = settings_file("tpu-v6e4", ROOT).read_text()
WRONG = {
    "a key of another namespace": TPU + "  gemma:maxAge: 24h\n",
    "a key without a namespace": TPU + "  maxAge: 24h\n",
    "a missing model": "\n".join(line for line in TPU.splitlines() if "model:" not in line),
    "a token in clear": TPU + "  gemma-serving:hfToken: hf_canary\n",
    "an API key in clear": TPU + "  gemma-serving:apiKey: canary\n",
}
"""tests/stacks/refusals.golden.txt has their messages, and tests/stacks/test_setting_laws.py compares both for each key."""


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG)
def test_a_file_that_the_program_refuses_is_wrong_for_the_schema(text):
    assert not VALIDATOR.is_valid(read_yaml(text))


def test_every_block_and_key_has_a_description():
    for path, block in blocks():
        assert block["description"], path
        for key, value in block["properties"].items():
            assert len(value.get("description", "")) > 10, f"{path}.{key}"
