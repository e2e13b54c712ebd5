"""Tools from option tables: arguments and limits are those of the command, and a changed option is noticed when the server starts."""

from types import SimpleNamespace

import anyio
import pytest

from scripts.agent import action_tools, read_tools


def test_what_a_person_did_not_allow_runs_nothing(bench_of):
    """Also if the tool were there."""
    call = SimpleNamespace(tool=lambda **_words: lambda run: setattr(call, "run", run))
    for tool in (action_tools.smoke, action_tools.benchmark):
        tool.add(call, bench_of())
        with pytest.raises(Exception, match=r"is not allowed to (smoke|bench). The user has to start it"):
            anyio.run(lambda: call.run(context=None, stack="x", name="x"))
    assert read_tools.status.change is None
