"""What is printed comes back: the text of each setting's value is that value again, in a file and on a command line."""

import json
import shlex
import typing
from collections.abc import Mapping
from typing import Any, Final

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma_serving.planning.settings.fields import SettingField, block_fields
from gemma_serving.planning.settings.paths import question_fields
from gemma_serving.planning.settings.reading import problem_with
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.scripts.plan.plan_options import NONE
from gemma_serving.scripts.plan.question import CommandWording
from gemma_serving.scripts.plan.set_option import parse_set, set_keys
from gemma_serving.stacks.loading import read_yaml
from gemma_serving.stacks.settings_wording import phrases
from tests.laws import examples

FIELDS: Final = {
    field.path: field for field in (*block_fields(Settings), *question_fields().values()) if not field.block
}
ODD_WORDS: Final = (
    "on no null ~ true 0x1f 1e3 .5 16k 1_000 2026-11-30 1:30 = << - it's a,b [a] {a} é @a `a` %a *a &a !a |"
)
ODD_TEXTS: Final = (
    *("", " ", "a b", " a", "a ", '"a"', "a: b", "a #b", "{{ a }}\n{% b %}\n", "a\n\n b", "\t", "\u2028", "> a", "- a"),
    *("? a", "gs://bucket/a", "--seed=1", '--x={"a": [1, "b"]}'),
    *ODD_WORDS.split(),
)
TEXTS: Final = st.sampled_from(ODD_TEXTS) | st.text(max_size=8)
PLAIN: Final[Mapping[object, st.SearchStrategy[Any]]] = {
    str: TEXTS,
    int: st.integers(-10, 2**60),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
}


def values_of(field: SettingField) -> st.SearchStrategy[Any]:
    """Values of a field's type, within its limits or not."""
    key, item = field.parts
    if item is not None:
        values = values_of(item)
        return (
            st.lists(values, max_size=3).map(tuple)
            if key is None
            else st.dictionaries(values_of(key), values, max_size=3)
        )
    choices = typing.get_args(field.hint)
    if typing.get_origin(field.hint) is typing.Literal:
        return st.sampled_from(choices)
    return st.one_of(PLAIN[one] for one in choices or (field.hint,))


@st.composite
def settings_values(draw: st.DrawFn, fields: Mapping[str, SettingField]) -> tuple[SettingField, Any]:
    field = fields[draw(st.sampled_from(sorted(fields)))]
    return field, draw(values_of(field))


@pytest.mark.law
@settings(max_examples=examples(test=150, part=3_000, night=30_000), deadline=None)
@given(settings_values(FIELDS))
def test_a_value_that_a_fix_prints_is_the_same_in_a_file(drawn):
    field, value = drawn
    stated = field.in_file(value)
    (text,) = phrases({field.key: stated})
    for read in (yaml.safe_load, read_yaml):
        assert repr(read(text.removeprefix("set "))) == repr({field.key: stated})
    assert text.splitlines() == [text]


VALID: Final = {key: field for key, field in set_keys().items() if field.path in question_fields()}


@pytest.mark.law
@settings(max_examples=examples(test=150, part=3_000, night=30_000), deadline=None)
@given(settings_values(VALID))
def test_a_value_that_a_fix_adds_to_a_command_is_the_same_there(drawn):
    field, value = drawn
    is_word = not isinstance(value, str) or (value.strip() == value and value not in {"", NONE})
    is_typed = is_word and json.dumps(value, ensure_ascii=False).isprintable()
    if is_typed and problem_with(field.annotated, value) is None:
        _, *words = shlex.split(CommandWording().change({field.path: value}))
        assert parse_set(words[1::2])[field.path] == value
