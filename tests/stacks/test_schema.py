"""Editors check the stacks' files with the JSON schema; it refuses what the program refuses by key and by type."""

from pathlib import Path

import jsonschema
import pytest

from gemma_serving.contracts.settings_files import settings_file, shipped_files
from gemma_serving.stacks.loading import SettingsError, from_file, read_yaml
from gemma_serving.stacks.schema import file_schema

ROOT = Path(__file__).resolve().parents[2]
FILES = shipped_files(ROOT)
FIRST_LINE = "# yaml-language-server: $schema=docs/settings.schema.json"
SCHEMA = file_schema()
"""Contents of docs/settings.schema.json."""
VALIDATOR = jsonschema.validators.validator_for(SCHEMA)(SCHEMA)


def is_valid(text):
    return VALIDATOR.is_valid(read_yaml(text))


def loads(tmp_path, text):
    path = tmp_path / "Pulumi.x.yaml"
    path.write_text(text)
    try:
        from_file(path, project="my-project")
    except SettingsError:
        return False
    return True


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_stack_names_the_schema_on_its_first_line_and_keeps_it(path):
    schema = "" if path.parent == ROOT else "../../"
    assert path.read_text().splitlines()[0] == FIRST_LINE.replace("docs/", f"{schema}docs/")
    assert list(VALIDATOR.iter_errors(read_yaml(path.read_text()))) == []


TPU, RUN = (settings_file(stack, ROOT).read_text() for stack in ("tpu-v6e4", "l4-qat"))
WRONG = {
    "a key of another namespace": TPU + "  gemma:maxAge: 24h\n",
    "a key without a namespace": TPU + "  maxAge: 24h\n",
    "an unknown key": TPU.replace("maxModelLen", "maxModelLength"),
    "an unknown key of our namespace": TPU + "  gemma-serving:modle: x\n",
    "an unknown key in a block": TPU.replace("waitPerZone", "waitPerZoen"),
    "a duration without a unit": TPU.replace("maxRunDuration: 4h", "maxRunDuration: 4"),
    "a duration with a wrong unit": TPU.replace("maxRunDuration: 4h", "maxRunDuration: 4 hours"),
    "a memory size with a decimal unit": RUN.replace("memory: 20Gi", "memory: 20GB"),
    "a number as text": TPU.replace("maxModelLen: 16384", "maxModelLen: '16384'"),
    "a number out of range": TPU.replace("gpuMemoryUtilization: 0.4", "gpuMemoryUtilization: 40"),
    "a region instead of a zone": TPU.replace("us-east5-a", "us-east5"),
    "an unknown image": TPU + "  gemma-serving:image: vllm-gpu\n",
    "an unknown precision": TPU.replace("kvCacheDtype: fp8", "kvCacheDtype: int3"),
    "a missing model": "\n".join(line for line in TPU.splitlines() if "model:" not in line),
    "a token in clear": TPU + "  gemma-serving:hfToken: hf_canary\n",
    "an API key in clear": TPU + "  gemma-serving:apiKey: canary\n",
    "a secret that changes under the server": TPU
    + "  gemma-serving:apiKeySecret: projects/p-1/secrets/t/versions/latest\n",
    "an unknown target": TPU.replace("target: tpu", "target: gpu"),
}


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG)
def test_wrong_files_are_wrong_for_the_schema_and_for_the_program(tmp_path, text):
    assert text not in {TPU, RUN}
    assert not is_valid(text)
    assert not loads(tmp_path, text)
