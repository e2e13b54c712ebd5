"""Tools from option tables: arguments and limits are those of the command, and a changed option is noticed when the server starts."""

from dataclasses import replace
from types import SimpleNamespace

import anyio
import pytest

from contracts.errors import CommandRefusedError
from scripts.agent import action_tools, command_tools, read_tools
from scripts.agent.command_tools import option_words
from scripts.agent.server import build


def listed(server):
    """The schema of each tool's arguments, by their names."""
    return {tool.name: tool.input_schema["properties"] for tool in anyio.run(server.list_tools)}


def test_limits_and_help_are_those_of_the_options(bench_of, audit, monkeypatch):
    fields = dict(command_tools.options_of("plan"))
    price = fields["max_usd_per_hour"]
    fields["max_usd_per_hour"] = replace(price, option=replace(price.option, above=3.0, most=9.0))
    fields["explain"] = replace(fields["explain"], option=replace(fields["explain"].option, help="Say why."))
    options_of = command_tools.options_of
    monkeypatch.setattr(command_tools, "options_of", lambda name: fields if name == "plan" else options_of(name))
    found = listed(build(bench_of(), audit))
    assert (found["solve"]["max_usd_per_hour"]["exclusiveMinimum"], found["solve"]["max_usd_per_hour"]["maximum"]) == (
        3,
        9,
    )
    assert found["plan"]["explain"]["description"] == "Say why."


def test_a_tool_of_an_option_that_is_gone_does_not_start(bench_of, audit, monkeypatch):
    fields = {name: field for name, field in command_tools.options_of("logs").items() if name != "since_s"}
    options_of = command_tools.options_of
    monkeypatch.setattr(command_tools, "options_of", lambda name: fields if name == "logs" else options_of(name))
    with pytest.raises(KeyError, match="since_s"):
        build(bench_of(), audit)


def test_words_are_written_as_the_options_are_read():
    assert option_words("plan", {"set": ["a=1", "b=2"], "explain": True, "costs": False, "stack": None}) == [
        "--set",
        "a=1",
        "--set",
        "b=2",
        "--explain",
    ]
    assert option_words("capacity", {"accelerators": ["v6e-1", "L4"]}) == ["v6e-1", "L4"]
    assert option_words("bench", {"concurrency": [1, 8], "requests": 5}) == ["--concurrency", "1,8", "--requests", "5"]
    assert option_words("bench", {"concurrency": []}) == []
    assert option_words("bench", {"requests": 0}) == ["--requests", "0"]
    for value in ("--yes", "-x", " ", "a\nb", "x" * 3000):
        with pytest.raises(CommandRefusedError, match=r"^accelerators "):
            option_words("capacity", {"accelerators": ["L4", value]})


def test_what_a_person_did_not_allow_runs_nothing(bench_of):
    """Also if the tool were there."""
    call = SimpleNamespace(tool=lambda **_words: lambda run: setattr(call, "run", run))
    for tool in (action_tools.smoke, action_tools.benchmark):
        tool.add(call, bench_of())
        with pytest.raises(Exception, match=r"is not allowed to (smoke|bench). The user has to start it"):
            anyio.run(lambda: call.run(context=None, stack="x", name="x"))
    assert read_tools.status.change is None
