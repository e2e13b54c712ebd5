"""The questions are the same on every machine, belong to one digest, and fit into the server that is asked."""

from collections import Counter
from dataclasses import replace

import pytest

from scripts.quality.items import THINKING_TOKENS, all_items, digest, tool_rows
from scripts.quality.long_text import TOKENS_PER_WORD, codes_of, long_text, read_words, tokens_of

DIGEST = "bc720cd6a3a6d86318bd467c1b2a94bee74e3ebb82aa57ac209505cb2c2b753a"
"""Results with another digest do not compare. Change it together with a question, a text or a judge."""


def test_the_set_is_the_one_that_results_name():
    assert digest(all_items()) == DIGEST
    assert Counter(one.kind for one in all_items()) == {"exact": 62, "json": 30, "tools": 38, "retrieval": 40}
    assert len({one.id for one in all_items()}) == len({one.prompt for one in all_items()}) == len(all_items())


@pytest.mark.parametrize("change", [{"prompt": "other"}, {"expected": {"number": 2}}, {"extra": {"tools": []}}])
def test_a_changed_question_changes_the_digest(change):
    first, *rest = all_items()
    assert digest((replace(first, **change), *rest)) != digest(all_items())


def test_each_text_has_each_code_once_at_its_depth():
    words = read_words()
    for window in words.windows[:4]:
        text, codes = long_text(window, words), codes_of(window, words)
        assert len(set(codes.values())) == len(codes) == len(words.depths)
        for depth, (keeper, code) in zip(words.depths, codes.items(), strict=True):
            assert text.count(code) == 1
            assert f"The code of the {keeper} is {code}." in text
            assert text.index(code) / len(text) == pytest.approx(depth, abs=0.04)
        assert len(text.split()) * TOKENS_PER_WORD < window
        assert len(text.split()) * TOKENS_PER_WORD > 0.75 * window


def test_questions_of_one_text_follow_one_another_and_share_their_beginning():
    one, two = [item for item in all_items() if item.id.startswith("retrieval/4096")][:2]
    assert len(one.prompt) - len(one.ask) < 40 + len(long_text(4096, read_words()))
    assert one.prompt[:-60] != two.prompt[:-80]
    assert one.prompt.partition("\n\n")[0] == two.prompt.partition("\n\n")[0]


@pytest.mark.parametrize(("limit", "texts"), [(1024, 0), (2048, 5), (16_384, 20), (262_144, 40), (None, 40)])
def test_only_texts_that_fit_are_asked(limit, texts):
    fitting = [one for one in all_items() if one.fits(limit, thinking=False)]
    assert sum(one.kind == "retrieval" for one in fitting) == texts
    for one in fitting:
        room = one.body("m", limit, thinking=False)["max_tokens"]
        assert limit is None or one.prompt_tokens + room <= limit
    assert all(one.prompt_tokens >= tokens_of(2048) for one in all_items() if one.kind == "retrieval")


def test_a_request_is_greedy_and_thinking_has_more_room():
    first = all_items()[0]
    body = first.body("gemma", 32_768, thinking=False)
    assert (body["temperature"], body["seed"], body["chat_template_kwargs"]) == (0, 0, {"enable_thinking": False})
    thinking = first.body("gemma", 32_768, thinking=True)
    assert (thinking["max_tokens"], thinking["chat_template_kwargs"]) == (THINKING_TOKENS, {"enable_thinking": True})


def test_expected_calls_are_calls_that_the_tools_allow():
    for item in all_items():
        for call in item.expected.get("calls", ()):
            row = tool_rows()[call["name"]]
            required = {
                name for name in row["parameters"] if name not in (*row.get("optional", ()), *row.get("free", ()))
            }
            assert required <= set(call["arguments"]) <= set(row["parameters"]), item.id
