"""Kills of a TPU stack, fifteen at random moments and four at fixed ones: nothing is left, nothing foreign is touched, and `up` goes on."""

import sys

import pytest

from tests.kills.plan import TPU, Cycle, Edit, Kill, Moment, Whole
from tests.kills.series import assert_cycle_holds, assert_kills_lose_nothing

pytestmark = [
    pytest.mark.engine,
    pytest.mark.long,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]


def test_fifteen_kills_lose_nothing(tmp_path):
    assert_kills_lose_nothing(tmp_path, TPU, 15)


def test_up_ends_when_only_the_program_gets_sigint_before_a_hook_is_asked(tmp_path):
    """The machine becomes ready after the signal, and the engine then asks the hook that records it: of a program that waits for the engine."""
    moments = {"up": Moment(call=5, seconds=1.16), "update": Moment(call=2, seconds=0.07)}
    steps = tuple(
        Kill(command=command, target="program", signal="SIGINT", moment=moment) for command, moment in moments.items()
    )
    assert_cycle_holds(tmp_path, Cycle(number=0, stack=TPU, steps=steps, comes_back=True))


def test_a_second_day_goes_on_after_a_kill_in_the_middle_of_coming_back(tmp_path):
    """An expired run, then a preempted machine. A kill comes after the old request is deleted, and another after the new one is made."""
    steps = (
        Whole(command="up"),
        Edit(what="run expired"),
        Kill(command="come back", target="everything", signal="SIGKILL", moment=Moment(call=1, seconds=0.0)),
        Whole(command="come back"),
        Edit(what="preempted"),
        Kill(command="come back", target="everything", signal="SIGKILL", moment=Moment(call=2, seconds=0.2)),
    )
    assert_cycle_holds(tmp_path, Cycle(number=0, stack=TPU, steps=steps, comes_back=True))
