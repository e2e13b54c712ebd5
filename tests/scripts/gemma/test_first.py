"""`gemma` without words: what is deployed, or that nothing is, or that it is unknown; never the second for the third."""

import json

import pytest

from contracts.exit_codes import ExitCode
from engine import runner
from scripts.gemma.__main__ import main
from scripts.gemma.first import FIRST_DAY


@pytest.fixture
def engine(monkeypatch):
    """An engine with these stacks: name, and number of resources; None if it does not say it."""
    held = {}

    def query(_words, limit_s=0.0):
        del limit_s
        return json.dumps([{"name": name, "lastUpdate": "x", "resourceCount": count} for name, count in held.items()])

    monkeypatch.setattr(runner, "query", query)
    return held


def told(capsys):
    assert main([]) == ExitCode.DONE
    return capsys.readouterr().out


def test_the_deployed_stacks_are_named_and_status_is_next(engine, capsys):
    engine |= {"tpu-v6e1": 37, "half": 1, "never": 0}
    assert "Deployed: tpu-v6e1, half.\nNext, for state and costs: gemma status\n" in told(capsys)


def test_nothing_deployed_costs_nothing_and_the_next_command_is_free(engine, capsys):
    engine["never"] = 0
    text = told(capsys)
    assert "Nothing is deployed, nothing costs.\nNext: gemma plan tpu-v6e1\n" in text
    assert [name for name in FIRST_DAY if f"\n  {name} " not in text] == []
    assert "`gemma help` lists all commands.\n" in text
    assert max(map(len, text.partition("`gemma` is not")[0].splitlines())) <= 80


def test_a_backend_that_does_not_answer_is_unknown_and_never_nothing(monkeypatch, capsys):
    def logged_out(_words, limit_s=0.0):
        assert limit_s <= 5
        raise runner.PulumiFailedError(runner.NOT_LOGGED_IN, "")

    monkeypatch.setattr(runner, "query", logged_out)
    text = told(capsys)
    assert f"What is deployed, and what it costs, is unknown. {runner.NOT_LOGGED_IN}\n" in text
    assert "Nothing is deployed" not in text


def test_a_stack_without_a_count_is_not_taken_for_nothing(engine, capsys):
    engine["a"] = None
    assert "Deployed: a.\n" in told(capsys)


@pytest.mark.parametrize("found", ["/x/gemma", None])
def test_where_gemma_cannot_be_typed_as_printed_the_command_that_mends_it_is_named(engine, monkeypatch, capsys, found):
    monkeypatch.setattr("shutil.which", lambda _name: found)
    last = told(capsys).splitlines()[-1]
    assert ('is not on PATH here. Run `export PATH="' in last and '/.venv/bin:$PATH"`.' in last) is (found is None)
