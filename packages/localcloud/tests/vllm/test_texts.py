"""Tokens, and the answers of the table."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localcloud.vllm import answers, tokens
from localcloud.vllm.requests import parse


@given(st.text())
def test_any_text_round_trips(text: str):
    ids = tokens.encode(text)
    assert tokens.decode(ids) == text
    assert len(ids) == tokens.count(text)


@given(st.lists(st.integers(min_value=0, max_value=2**16 - 1)))
def test_special_ids_decode(ids: list[int]):
    assert isinstance(tokens.decode(ids), str)


@pytest.mark.parametrize("token", [999_999_999, -1, 2**50])
def test_an_id_outside_the_vocabulary_is_refused(token: int):
    with pytest.raises(ValueError, match="out of vocabulary"):
        tokens.decode([token])


@given(st.integers(min_value=0, max_value=2**60), st.integers(min_value=1, max_value=300))
def test_a_free_answer_has_exactly_the_tokens_that_it_is_made_of(seed: int, length: int):
    pieces = answers.sentences(seed, length)
    text = b"".join(pieces).decode()
    assert len(pieces) == length
    assert tokens.count(text) == length
    assert answers.sentences(seed, length + 5)[:length] == pieces
    assert text.startswith(answers.OPENING) or answers.OPENING.startswith(text)


def answer_to(*messages: tuple[str, str], **more: Any) -> answers.Completion:
    body = {"messages": [{"role": role, "content": text} for role, text in messages], **more}
    return answers.completion(parse(body, is_chat=True), most=300, seed="1", thinks=False, splits_reasoning=True)


def schema_of(*names: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in names}}
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


@pytest.mark.parametrize(
    ("messages", "more", "said"),
    [
        ([("user", "What is the capital of France? Answer with one word.")], {}, "Paris"),
        ([("user", "Please reply with exactly: OK")], {}, "OK"),
        ([("user", "Weather in Tokyo?"), ("tool", "sunny")], {}, "The tool returned: sunny."),
        (
            [("system", "Set the field code to the word heron."), ("user", "Give me the code.")],
            schema_of("code"),
            '{"code": "heron"}',
        ),
        ([("user", "Give me the code.")], schema_of("code"), '{"code": "none"}'),
        ([("user", "Is water wet, no or yes?")], {"structured_outputs": {"choice": ["yes", "no"]}}, "yes"),
        (
            [("user", "Return JSON with the keys city_2. Tell me about Paris, France.")],
            schema_of("city_2"),
            '{"city_2": "Paris"}',
        ),
    ],
)
def test_a_prompt_that_is_in_the_table_has_its_answer(messages: Any, more: dict[str, Any], said: str):
    assert answer_to(*messages, **more).content() == said


def test_any_other_prompt_gets_sentences_that_say_that_they_are_simulated():
    text = answer_to(("user", "Write a poem.")).content()
    assert text.startswith(answers.OPENING)
    assert text.endswith(".")


@pytest.mark.parametrize("more", [schema_of("other"), schema_of("city", "other")])
def test_a_form_that_no_row_has_is_refused(more: dict[str, Any]):
    with pytest.raises(answers.NoAnswerError):
        answer_to(("user", "Return JSON with the keys x. Tell me about Paris, France."), **more)


def test_every_row_names_what_it_is_for_and_answers_in_one_way():
    for row in answers._ROWS:
        assert row["check"]
        assert len({"text", "json", "tool"} & row.keys()) == 1
        assert ("arguments" in row) is ("tool" in row)
