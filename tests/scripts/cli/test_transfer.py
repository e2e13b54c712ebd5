"""Progress inside one file, on a planted clock."""

import threading

from scripts.cli.transfer import PERIOD_S, Transfer

GIB = 1024**3


class Clock:
    now_s = 1000.0

    def __call__(self):
        return self.now_s


def test_a_line_has_share_rate_and_time_left():
    said, clock = [], Clock()
    transfer = Transfer(said.append, clock=clock)
    for done in range(17):
        transfer("uploading a", done * GIB, 16 * GIB)
        clock.now_s += 8
    assert said[0] == "uploading a: 1.00 of 16.00 GiB (6%), 128.0 MiB/s, 2 min left"
    assert said[3] == "uploading a: 4.00 of 16.00 GiB (25%), 128.0 MiB/s, 96 s left"
    assert len(said) == 15  # not at the beginning, and not at the end


def test_lines_come_no_faster_than_their_period():
    said, clock = [], Clock()
    transfer = Transfer(said.append, clock=clock)
    for done in range(1, 100):
        clock.now_s += PERIOD_S / 10
        transfer("uploading a", done, 100)
    assert len(said) == 9


def test_a_stalled_transfer_is_reported():
    said, clock = [], Clock()
    transfer = Transfer(said.append, clock=clock)
    transfer("uploading a", GIB // 4, GIB)
    clock.now_s += 30
    transfer("uploading a", GIB // 4, GIB)
    assert said == ["uploading a: 0.25 of 1.00 GiB (25%), 0.0 MiB/s, stalled"]


def test_a_terminal_has_one_line_that_changes_and_lines_that_stay():
    stays, line, clock = [], [], Clock()
    transfer = Transfer(stays.append, overwrite=line.append, clock=clock)
    transfer("copying", 0, GIB)
    clock.now_s += 1
    transfer("copying", GIB // 4, GIB)
    transfer.note("copied a")
    clock.now_s += 1
    transfer("copying", GIB // 2, GIB)
    shown = "copying: 0.25 of 1.00 GiB (25%), 256.0 MiB/s, 3 s left"
    assert line == [shown, "", "copying: 0.50 of 1.00 GiB (50%), 256.0 MiB/s, 2 s left"]
    assert stays == ["copied a"]


def test_a_transfer_that_ended_leaves_no_line_and_says_no_more():
    stays, line, clock = [], [], Clock()
    with Transfer(stays.append, overwrite=line.append, clock=clock) as transfer:
        transfer("copying", 0, GIB)
        clock.now_s += 1
        transfer("copying", GIB // 4, GIB)
    assert line == ["copying: 0.25 of 1.00 GiB (25%), 256.0 MiB/s, 3 s left", ""]
    # Threads that the work left behind.
    clock.now_s += 1
    transfer("copying", GIB // 2, GIB)
    transfer.note("copied a")
    assert (len(line), stays) == (2, [])


def test_a_line_that_stays_is_not_written_into_one_that_changes():
    said, clock = [], Clock()
    cleared, written = threading.Event(), threading.Event()

    def overwrite(text):
        if not text:
            cleared.set()
            assert not written.wait(0.2)
        said.append(text)

    transfer = Transfer(said.append, overwrite=overwrite, clock=clock)
    transfer("copying", 0, GIB)
    clock.now_s += 1

    def work():
        cleared.wait(60)
        transfer("copying", GIB // 4, GIB)
        written.set()

    thread = threading.Thread(target=work)
    thread.start()
    transfer.note("copied a")
    thread.join(60)
    assert said == ["", "copied a", "copying: 0.25 of 1.00 GiB (25%), 256.0 MiB/s, 3 s left"]
