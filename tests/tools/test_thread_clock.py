"""The test clock for threads: what would make its users fail only now and then. Their tests show the rest."""

import threading

import pytest

from tests.clock import ThreadClock


@pytest.fixture
def clock():
    clock = ThreadClock()
    yield clock
    clock.close()


def test_time_stands_while_a_thread_is_busy(clock):
    go, ended = threading.Event(), []

    def work():
        go.wait()
        ended.append(clock.now())

    began_s = clock.now()
    clock.start(work)
    sleeper = clock.start(lambda: clock.sleep(5))
    assert not clock._rest(began_s + 1), "a busy thread holds the time"
    go.set()
    clock.until(lambda: not sleeper.is_alive(), "the sleeper has waited")
    assert ended == [began_s]
    assert clock.now() == began_s + 5


def test_a_thread_is_known_to_the_clock_only_once_it_has_started(clock, monkeypatch):
    start, seen = threading.Thread.start, []

    def look():
        seen.append(clock._changed.acquire(blocking=False))
        if seen[-1]:
            clock._changed.release()

    def observed(thread):
        other = threading.Thread(target=look)
        start(other)
        other.join()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", observed)
    clock.start(lambda: None)
    assert seen == [False], "who closes the clock waits, and joins no thread that has not started"
