"""Tools from option tables: arguments and limits are those of the command, and a changed option is noticed when the server starts."""

from types import SimpleNamespace

import anyio
import pytest

from scripts.agent import action_tools, command_tools, read_tools
from scripts.agent.server import build


def test_a_tool_of_an_option_that_is_gone_does_not_start(bench_of, audit, monkeypatch):
    fields = {name: field for name, field in command_tools.options_of("logs").items() if name != "since_s"}
    options_of = command_tools.options_of
    monkeypatch.setattr(command_tools, "options_of", lambda name: fields if name == "logs" else options_of(name))
    with pytest.raises(KeyError, match="since_s"):
        build(bench_of(), audit)


def test_what_a_person_did_not_allow_runs_nothing(bench_of):
    """Also if the tool were there."""
    call = SimpleNamespace(tool=lambda **_words: lambda run: setattr(call, "run", run))
    for tool in (action_tools.smoke, action_tools.benchmark):
        tool.add(call, bench_of())
        with pytest.raises(Exception, match=r"is not allowed to (smoke|bench). The user has to start it"):
            anyio.run(lambda: call.run(context=None, stack="x", name="x"))
    assert read_tools.status.change is None
