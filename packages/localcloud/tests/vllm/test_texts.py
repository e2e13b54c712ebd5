"""Tokens, and the answers of the table."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localcloud.vllm import answers, tokens
from localcloud.vllm.requests import RequestError, parse


@given(st.text())
def test_any_text_round_trips(text: str):
    ids = tokens.encode(text)
    assert all(map(tokens.is_known, ids))
    assert tokens.decode(ids) == text
    assert len(ids) == len(tokens.pieces(text))


@given(st.lists(st.integers(min_value=0, max_value=2**16 - 1)))
def test_special_ids_decode(ids: list[int]):
    assert isinstance(tokens.decode(ids), str)


@pytest.mark.parametrize("token", [999_999_999, -1, 2**50])
def test_an_id_outside_the_vocabulary_is_unknown(token: int):
    assert not tokens.is_known(token)


@given(st.sampled_from(["", "sql"]), st.integers(min_value=1, max_value=900))
def test_a_free_answer_has_exactly_the_tokens_that_it_is_made_of(adapter: str, length: int):
    pieces = answers.free(adapter, length)
    text = b"".join(pieces).decode()
    assert len(pieces) == len(tokens.pieces(text)) == length
    assert answers.free(adapter, length + 5)[:length] == pieces
    assert text.startswith(answers.OPENING) or answers.OPENING.startswith(text)
    assert answers.free("other", 32) != answers.free(adapter, 32)


def answer_to(*messages: tuple[str, str], **more: Any) -> answers.Completion:
    body = {"messages": [{"role": role, "content": text} for role, text in messages], **more}
    return answers.completion(parse(body, is_chat=True, server={}), most=300)


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


TOOL = {"type": "function", "function": {"name": "get_weather"}}


@pytest.mark.parametrize(
    "more",
    [
        schema_of("other"),
        schema_of("city", "other"),
        {"response_format": {"type": "json_object"}},
        {"tools": [TOOL], "tool_choice": "required"},
    ],
)
def test_a_form_that_no_row_has_is_refused(more: dict[str, Any]):
    with pytest.raises(RequestError, match="no answer of this form"):
        answer_to(("user", "Return JSON with the keys x. Tell me about Paris, France."), **more)


def test_every_row_names_what_it_is_for_and_answers_in_one_way():
    for row in answers._ROWS:
        assert row["check"]
        assert len({"text", "json", "tool"} & row.keys()) == 1
        assert ("arguments" in row) is ("tool" in row)
