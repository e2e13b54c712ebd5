"""The page of settings and the JSON schema are what the models say, and every setting says what it is for."""

from gemma_serving.stacks.reference import page
from gemma_serving.stacks.schema import blocks


def test_every_setting_has_a_meaning_and_a_type():
    rows = [line for line in page().partition("## Images")[0].splitlines() if line.startswith("| `")]
    assert len(rows) > 70
    for row in rows:
        _, key, kind, default, meaning, *_ = [cell.strip() for cell in row.split("|")]
        assert key
        assert kind, row
        assert default, row
        assert len(meaning) > 10, row


def test_every_block_and_key_of_the_schema_has_a_description():
    for path, block in blocks():
        assert block["description"], path
        for key, value in block["properties"].items():
            assert len(value.get("description", "")) > 10, f"{path}.{key}"
