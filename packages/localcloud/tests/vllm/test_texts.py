"""Tokens, known answers and values that fit a schema."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localcloud.vllm import answers, tokens
from localcloud.vllm.schema import SchemaError, fitting_value


@given(st.text())
def test_any_text_round_trips(text: str):
    ids = tokens.encode(text)
    assert tokens.decode(ids) == text
    assert len(ids) == tokens.count(text)
    assert all(0 <= token < tokens.VOCABULARY for token in ids)


@given(st.lists(st.integers(min_value=256, max_value=tokens.VOCABULARY - 1)))
def test_any_ids_decode(ids: list[int]):
    assert isinstance(tokens.decode(ids), str)


def test_an_id_outside_the_vocabulary_is_refused():
    with pytest.raises(ValueError, match="out of vocabulary"):
        tokens.decode([tokens.VOCABULARY])


@given(st.integers(min_value=0, max_value=2**60), st.integers(min_value=1, max_value=300))
def test_a_free_answer_has_exactly_the_tokens_that_it_is_made_of(seed: int, length: int):
    pieces = answers.sentences(seed, length)
    text = b"".join(pieces).decode()
    assert len(pieces) == length
    assert tokens.count(text) == length
    assert answers.sentences(seed, length + 5)[:length] == pieces
    assert text.startswith(answers.OPENING) or answers.OPENING.startswith(text)


@given(st.integers(min_value=0, max_value=2**60), st.integers(min_value=1, max_value=300))
def test_a_natural_answer_says_that_it_is_simulated_and_ends_with_a_sentence(seed: int, length: int):
    pieces = answers.whole_sentences(seed, length)
    text = b"".join(pieces).decode()
    assert text.startswith("This is a simulated answer")
    assert text.endswith(".")
    assert tokens.count(text) == len(pieces) <= max(length, tokens.count(answers.OPENING))


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("What is 2+2? Answer with the number only.", "4"),
        ("What is 17 * 3? Reply with only the number.", "51"),
        ("what is 12 - 20", "12 - 20 = -8"),
        ("2+2=", "4"),
        ("Reply with exactly: OK", "OK"),
        ("Please reply with exactly the word pong", "pong"),
        ('Say exactly "hello there" and nothing else.', "hello there"),
        ("Repeat after me: blue whale", "blue whale"),
        ("What is the capital of France?", "Paris"),
        ("Tell me about 1914 - 1918", None),
        ("Write a poem.", None),
    ],
)
def test_known_questions_have_known_answers(question: str, answer: str | None):
    assert answers.known_answer(question) == answer


def test_a_schema_is_filled_with_values_that_fit():
    schema = {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "unit": {"enum": ["celsius", "kelvin"]},
            "days": {"type": "integer", "minimum": 3, "maximum": 5},
            "share": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
            "code": {"type": "string", "pattern": "^[A-Z]{3}$"},
            "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "minItems": 2},
            "note": {"type": ["null", "string"], "minLength": 12},
        },
        "required": ["city", "unit"],
        "$defs": {"tag": {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}},
    }
    value = fitting_value(schema, "What is the weather in Paris?")
    assert value["city"] == "Paris"
    assert value["unit"] == "celsius"
    assert 3 <= value["days"] <= 5
    assert 0 < value["share"] < 1
    assert value["code"] == "ABC"
    assert len(value["tags"]) == 2
    assert all(isinstance(tag["id"], int) for tag in value["tags"])
    assert len(value["note"]) >= 12
    assert json.loads(json.dumps(value)) == value


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"type": "string", "pattern": "^z{40}$"}, "no string for the pattern"),
        ({"$ref": "#/$defs/a", "$defs": {}}, "points nowhere"),
        ({"$ref": "https://example.com/x"}, "not inside the schema"),
        ({"type": "set"}, "does not exist in JSON schema"),
        ({"properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "nests deeper"),
        ([], "not an object"),
    ],
)
def test_a_schema_that_cannot_be_filled_is_named(schema: object, says: str):
    with pytest.raises(SchemaError, match=says):
        fitting_value(schema)
