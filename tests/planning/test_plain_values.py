"""A value of a command line that needs no pydantic is what pydantic reads, for each key of `--set`."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma_serving.planning.settings import reading
from gemma_serving.planning.settings.reading import read_text
from gemma_serving.scripts.plan.set_option import set_keys
from tests.laws import examples

TEXTS = [
    "true",
    "false",
    "True",
    "1",
    "1.0",
    "0",
    "-1",
    "16",
    "17",
    "0.5",
    "1e3",
    "1e400",
    "nan",
    "auto",
    "fp8",
    "fp4",
    "x",
    "",
    " ",
    "\x00",
    "null",
    "[]",
    "[1]",
    "a b",
    "--seed=1 --x",
    '{"image": 0}',
    '{"image": 0.5}',
    '{"x": 1}',
    '{"image": "1"}',
    '{"a": {"b": 1}}',
    "{}",
]
VALUES = st.sampled_from(TEXTS) | st.text(max_size=8) | st.integers(-10, 2**60).map(str) | st.floats().map(str)


def _read(field, text):
    try:
        found = read_text(field, text)
    except ValueError as error:
        return str(error)
    return type(found), repr(found)


@settings(max_examples=examples(test=300, part=2_000, night=50_000))
@given(key=st.sampled_from(sorted(set_keys())), text=VALUES)
def test_a_plain_value_is_what_pydantic_reads(key, text):
    field = set_keys()[key]
    short = _read(field, text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "_is_plain", lambda _field, _value: False)
        assert short == _read(field, text)


def test_usual_values_need_no_pydantic():
    plain = {
        "vllm.maxModelLen": 8192,
        "vllm.gpuMemoryUtilization": 0.9,
        "vllm.dtype": "auto",
        "vllm.enforceEager": True,
    }
    assert all(reading._is_plain(set_keys()[key], value) for key, value in plain.items())
    assert not reading._is_plain(set_keys()["vllm.gpuMemoryUtilization"], 0)
    wrong = {"vllm.maxModelLen": 0, "vllm.gpuMemoryUtilization": math.nan, "vllm.dtype": "int3", "vllm.blockSize": 17}
    assert not any(reading._is_plain(set_keys()[key], value) for key, value in wrong.items())
