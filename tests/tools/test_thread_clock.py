"""The test clock for threads: waits take no time, and a busy thread holds it."""

import threading

import pytest

import tests.clock
from tests.clock import ThreadClock


@pytest.fixture
def clock():
    clock = ThreadClock()
    yield clock
    clock.close()


def test_threads_wait_for_hours_in_no_time_and_in_the_order_of_their_deadlines(clock):
    seen, began_s = [], clock.now()

    def wait(hours):
        clock.sleep(3600 * hours)
        seen.append((hours, clock.now() - began_s))

    for hours in (30, 10, 20):
        clock.start(wait, hours)
    clock.until(lambda: len(seen) == 3, "all have waited", limit_s=1e6)
    assert seen == [(10, 36_000), (20, 72_000), (30, 108_000)]


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


def test_a_notified_condition_ends_a_wait_before_its_deadline(clock):
    condition, found = threading.Condition(), []

    def wait():
        with condition:
            found.append(clock.wait(condition, 1000))

    def notify():
        clock.sleep(7)
        with condition:
            condition.notify_all()

    began_s = clock.now()
    clock.start(wait)
    clock.start(notify)
    clock.until(lambda: found, "it is notified")
    assert (found, clock.now() - began_s) == ([True], 7)


def test_a_thread_that_holds_the_time_for_ever_is_named(clock, monkeypatch):
    monkeypatch.setattr(tests.clock, "CAP_S", 0.05)
    go = threading.Event()
    clock.start(go.wait, name="holder")
    with pytest.raises(AssertionError, match=r"Busy, so the time stands: holder: .*wait"):
        clock.sleep(1)
    go.set()


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
