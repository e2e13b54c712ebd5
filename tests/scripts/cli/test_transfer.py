"""Progress inside one file, on a planted clock."""

from gemma_serving.scripts.cli.transfer import Transfer

GIB = 1024**3


class Clock:
    now_s = 1000.0

    def __call__(self):
        return self.now_s


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
