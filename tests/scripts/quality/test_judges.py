"""Each judge accepts the right answer in the forms that models write, and no answer that is nearly right."""

import itertools
import json

import pytest

from scripts.quality.items import all_items, schema_of
from scripts.quality.judges import judge
from tests.scripts.quality.conftest import right_answer

ITEMS = {one.id: one for one in all_items()}
FRUIT = {"value": {"words": ["apple", "pear"], "count": 2, "fresh": True, "note": None}, "any_order": False}


def judged(kind, expected, message, *, cut=False):
    return judge(kind, expected, message if isinstance(message, dict) else {"content": message}, cut=cut)


def test_every_judge_accepts_the_right_answer_of_every_question():
    assert [one.id for one in all_items() if not judged(one.kind, one.expected, right_answer(one)).is_right] == []


def test_no_judge_accepts_an_empty_answer_or_that_of_another_question():
    for one in all_items():
        empty = judged(one.kind, one.expected, {"content": ""})
        assert empty.is_right is (one.expected == {"calls": []})
    for kind in ("exact", "json", "tools", "retrieval"):
        group = [one for one in all_items() if one.kind == kind]
        for one, other in itertools.pairwise(group):
            if one.expected.get("calls", 0) != other.expected.get("calls", 1):
                assert not judged(kind, one.expected, right_answer(other)).is_right, one.id


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        ("Answer: 1692", True),
        ("47 times 36 = 1,692\n\n**Answer:** 1,692.", True),
        ("**Answer: 1692**", True),
        ("Answer: $\\boxed{1692}$", True),
        ("1692", True),
        ("Answer: 1692.0", True),
        ("Answer: 1692 jars", True),
        ("Answer: 1629", False),
        ("Answer: 1692 crates", False),
        ("Answer: 1692 or 1693", False),
        ("Answer: 1690\nAnswer: 1691", False),
        ("Answer: 1690\nNo, I forgot 2.\nAnswer: 1692", True),
        ("Answer: 1692\nAnswer: 1690", False),
        ("Answer: -1692", False),
        ("Answer: about 1692", False),
        ("Answer: 16,92", False),
        ("The result is 1692.\nSo much for that.", False),
        ("", False),
    ],
)
def test_a_number_is_right_alone_or_with_its_unit(text, is_right):
    assert judged("exact", {"number": 1692, "units": ["jars"]}, text).is_right is is_right


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        ("Answer: The Femur.", True),
        ('Answer: "femur"', True),
        ("Answer: fémur", True),
        ("Answer: tibia", False),
        ("Answer: not the femur", False),
        ("Answer: femur or tibia", False),
    ],
)
def test_a_word_is_right_without_case_article_and_quotes(text, is_right):
    assert judged("exact", {"text": ["femur"]}, text).is_right is is_right


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (FRUIT["value"], ""),
        (FRUIT["value"] | {"words": ["Apple", " pear "]}, ""),
        (FRUIT["value"] | {"count": 2.0}, ""),
        (FRUIT["value"] | {"words": ["pear", "apple"]}, '`words`[0] is "pear", not "apple".'),
        (FRUIT["value"] | {"words": ["apple"]}, "`words` has 1 entries, not 2."),
        (FRUIT["value"] | {"count": "2"}, '`count` is "2", not 2.'),
        (FRUIT["value"] | {"count": 3}, "`count` is 3, not 2."),
        (FRUIT["value"] | {"fresh": 1}, "`fresh` is 1, not true."),
        (FRUIT["value"] | {"note": ""}, '`note` is "", not null.'),
        (FRUIT["value"] | {"more": 1}, "fields count, fresh, more, note, words"),
        ({"count": 2}, "the response has the fields count, not"),
        ([], "the response is [], not"),
    ],
)
def test_json_is_right_only_with_the_right_values(value, fault):
    found = judged("json", FRUIT, json.dumps(value))
    assert found.is_right is (not fault)
    assert fault in found.fault


def test_json_in_another_order_is_right_only_where_the_order_is_free():
    other = json.dumps(FRUIT["value"] | {"words": ["pear", "apple"]})
    assert judged("json", FRUIT | {"any_order": True}, other).is_right
    twice = json.dumps(FRUIT["value"] | {"words": ["pear", "pear"]})
    assert judged("json", FRUIT | {"any_order": True}, twice).fault == '`words` lacks "apple".'
    assert judged("json", FRUIT, f"```json\n{other}\n```").fault == "The response is not JSON."
    assert "cut off" in judged("json", FRUIT, '{"words": [', cut=True).fault


def calls(*made):
    functions = [{"name": name, "arguments": raw if isinstance(raw, str) else json.dumps(raw)} for name, raw in made]
    return {"content": None, "tool_calls": [{"id": "1", "type": "function", "function": one} for one in functions]}


MAIL = {"to": "petra@example.com", "subject": "Late train", "body": "I arrive at 18:40."}


@pytest.mark.parametrize(
    ("name", "message", "fault"),
    [
        ("weather", calls(("get_weather", {"city": "oslo"})), ""),
        ("weather", calls(("get_weather", {"city": "Oslo", "unit": "celsius"})), ""),
        ("weather", calls(("get_weather", {"city": "Oslo", "unit": "fahrenheit"})), '`unit` is "fahrenheit"'),
        ("weather", calls(("get_weather", {"city": "Bergen"})), '`city` is "Bergen", not "Oslo".'),
        ("weather", calls(("find_route", {"city": "Oslo"})), "The call is to find_route, not to get_weather."),
        ("weather", calls(("get_weather", "{")), "are not a JSON object"),
        ("weather", calls(("get_weather", {"city": "Oslo", "day": "today"})), "has day, which nothing asked for"),
        ("weather", {"content": "It is cold."}, "Tool calls: 0, expected: 1."),
        ("weather-unit", calls(("get_weather", {"city": "Denver"})), "get_weather lacks unit."),
        ("weather-two", calls(("get_weather", {"city": "Lima"}), ("get_weather", {"city": "Cairo"})), ""),
        ("weather-two", calls(("get_weather", {"city": "Lima"}), ("get_weather", {"city": "Lima"})), '"Lima", not "Cairo"'),
        ("weather-two", calls(("get_weather", {"city": "Lima"})), "Tool calls: 1, expected: 2."),
        ("mail", calls(("send_email", MAIL)), ""),
        ("mail", calls(("send_email", MAIL | {"body": ""})), "send_email lacks body."),
        ("mail", calls(("send_email", MAIL | {"to": "jonas@example.com"})), "`to` is"),
        ("currency", calls(("convert_currency", {"amount": 250.0, "from": "eur", "to": "CHF"})), ""),
        ("currency", calls(("convert_currency", {"amount": "250", "from": "EUR", "to": "CHF"})), '`amount` is "250"'),
        ("none-no-tool", {"content": "I cannot do that."}, ""),
        ("none-no-tool", calls(("send_email", MAIL)), "Tool calls: 1, expected: 0."),
    ],
)  # fmt: skip
def test_a_tool_call_is_right_only_with_the_right_tool_and_arguments(name, message, fault):
    found = judged("tools", ITEMS[f"tools/{name}"].expected, message)
    assert found.is_right is (not fault), found.fault
    assert fault in found.fault


def test_each_call_counts_once():
    city = {"name": "get_weather", "arguments": {"city": "Oslo"}}
    twice = {"calls": [city, city]}
    same, other = ("get_weather", {"city": "Oslo"}), ("get_weather", {"city": "Lima"})
    assert judged("tools", twice, calls(same, same)).is_right
    assert not judged("tools", twice, calls(same, other)).is_right


@pytest.mark.parametrize(
    ("text", "is_right"),
    [("48213", True), ("The code is 48,213.", True), ("77120", False), ("48213 or 77120", False), ("4821", False), ("482130", False)],
)  # fmt: skip
def test_a_retrieved_code_is_right_alone(text, is_right):
    assert judged("retrieval", {"code": "48213", "others": ["77120"]}, text).is_right is is_right


def test_a_shape_becomes_a_strict_schema():
    found = schema_of({"name": "string?", "level": "low|high", "rows": [{"count": "integer"}]})
    assert found["required"] == ["name", "level", "rows"]
    assert found["properties"]["name"] == {"type": ["string", "null"]}
    assert found["properties"]["level"] == {"type": "string", "enum": ["low", "high"]}
    assert found["properties"]["rows"]["items"]["additionalProperties"] is False
    with pytest.raises(ValueError, match="'text' is not a type"):
        schema_of({"name": "text"})
