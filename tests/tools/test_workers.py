"""Forked workers report what one process would report, and a test that never finished is a failure."""

import pytest

from tests.tools.test_suite import PLUGINS, lean

FILES = {
    "test_a": """
import warnings

def test_good(): print("seen")
def test_bad(): assert 1 == 2
def test_warns(): warnings.warn("careful")
""",
    "test_b": """
import pytest

@pytest.mark.skip(reason="not now")
def test_skipped(): pass

@pytest.mark.xfail
def test_xfailed(): assert False
""",
    "test_c": """
import pytest

@pytest.fixture(scope="session")
def ended():
    yield
    raise OSError("at its end")

def test_ends(ended): pass
""",
}
SUBTESTS = """
def test_parts(subtests):
    for number in range(3):
        with subtests.test(number=number):
            assert number != 1
"""


@pytest.fixture
def run(pytester, monkeypatch):
    lean(monkeypatch)

    def run(workers, *options, **files):
        if files:
            pytester.makepyfile(**files)
        return pytester.runpytest_subprocess(*PLUGINS, "--workers", str(workers), *options)

    return run


def test_three_workers_report_what_one_process_reports(run):
    one, three = run(1, **FILES), run(3)
    assert three.parseoutcomes() == one.parseoutcomes()
    assert (one.ret, three.ret) == (1, 1)
    for line in ("*assert 1 == 2*", "*UserWarning: careful*", "*OSError: at its end*"):
        three.stdout.fnmatch_lines([line])


def test_good_tests_end_with_0(run):
    assert run(2, test_e="def test_one(): pass\n", test_f="def test_two(): pass\n").ret == 0


def test_a_test_whose_worker_crashes_and_those_after_it_fail(run):
    done = run(2, test_g="import os\n\ndef test_crash(): os._exit(7)\n\ndef test_after(): pass\n")
    assert done.ret == 1
    assert done.parseoutcomes()["errors"] == 2
    done.stdout.fnmatch_lines(
        ["*test_g.py::test_crash did not finish: a worker ended with 7 in test_g.py::test_crash*"]
    )


def test_a_failed_part_of_a_test_fails_the_run(run):
    done = run(2, test_d=SUBTESTS, test_e="def test_good(): pass\n")
    assert done.ret == 1
    done.stdout.fnmatch_lines(["SUBFAILED* test_d.py::test_parts - assert 1 != 1"])


def test_an_interrupt_ends_the_workers_with_their_fixtures(pytester, monkeypatch):
    lean(monkeypatch)
    pytester.makepyfile(
        test_j="""
import os, pathlib, signal, time
import pytest

@pytest.fixture
def ended():
    yield
    pathlib.Path("ended").touch()

def test_waits(ended):
    os.kill(os.getppid(), signal.SIGINT)
    for _ in range(600):  # Python acts on a signal between two sleeps
        time.sleep(0.1)
""",
        test_k="def test_good(): pass\n",
    )
    assert pytester.runpytest_subprocess(*PLUGINS, "--workers", "2").ret == 2
    assert (pytester.path / "ended").exists()


def test_the_first_failure_ends_the_run_if_that_is_requested(run):
    slow = "import time\n\n" + "".join(f"def test_{number}(): time.sleep(0.1)\n" for number in range(50))
    done = run(2, "-x", test_h="def test_bad(): assert False\n", test_i=slow)
    assert (done.ret, done.parseoutcomes()["failed"]) == (1, 1)
    assert done.parseoutcomes().get("passed", 0) < 50, "the report of the failure is faster than five seconds of tests"
