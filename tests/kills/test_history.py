"""The history of a series of kills: it names the seed, each kill and the end, and keeps what a stopped series did."""

import json

import pytest

from tests.kills import series
from tests.kills.plan import GPU, cycle
from tests.kills.run import Done, Outcome


class Cloud:
    """A cloud that does nothing."""

    def __init__(self, **_):
        pass

    def close(self):
        pass

    def snapshot(self):
        return {}


def test_the_history_names_the_seed_each_kill_and_the_end(tmp_path, monkeypatch):
    planned = cycle(7, 0, 2, (GPU,))
    done = [Done(kill=step, missed=False, seconds=1.0) for step in planned.steps[:1]]
    outcomes = iter([Outcome(cycle=planned, kills=done), Outcome(cycle=planned, kills=done, problems=["it broke"])])

    class Runner:
        def __init__(self, *_):
            pass

        def run(self):
            found = next(outcomes, None)
            if found is None:
                raise KeyboardInterrupt
            return found

    monkeypatch.setattr(series, "Runner", Runner)
    monkeypatch.setattr(series.Series, "_world", lambda *_: Cloud())
    path = tmp_path / "new" / "history.jsonl"
    made = series.Series(folder=tmp_path, seed=7, each=2, history=path)
    made.run(2)
    first, held, broken, last = [json.loads(line) for line in path.read_text().splitlines()]
    assert (first["seed"], first["count"]) == (7, 2)
    assert held["kills"] == [{"kill": str(planned.steps[0]), "hit": True, "seconds": 1.0}]
    assert (held["problems"], broken["problems"]) == ([], ["it broke"])
    assert (last["end"], last["kills"], last["failed"]) == ("failed", 2, 1)
    with pytest.raises(KeyboardInterrupt):
        made.run(9)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert "end" not in lines[-1]
