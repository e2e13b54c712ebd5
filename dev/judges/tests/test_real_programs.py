"""Upstream's tests of the image folders, which do not pass without their parts, and programs that a run starts."""

import sys
from collections import Counter

import pytest

from dev.judges.real import daemon
from dev.judges.real.service import Service
from dev.judges.real.upstream_tests import count_tests
from tests.polling import until


def case(body=""):
    return f'<testsuite><testcase name="test_x">{body}</testcase></testsuite>'


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("", "passed"),
        ("<skipped/>", "skipped"),
        ('<failure message="ValueError: Unsupported TPU device kind: cpu"/>', "a TPU"),
        ("<error message=\"Value error, Invalid repository ID or local directory specified: 'google/x'\"/>", "the hub"),
    ],
)
def test_an_upstream_test_that_lacks_a_device_or_the_hub_is_counted_apart(body, kind):
    assert count_tests(case(body)) == Counter({kind: 1})


def test_an_upstream_test_that_fails_otherwise_is_a_difference():
    with pytest.raises(AssertionError, match="test_x: assert 1 == 2"):
        count_tests(case('<failure message="assert 1 == 2"/>'))


def test_a_program_that_ends_before_it_is_ready_is_named_with_its_last_line(tmp_path):
    service = Service([sys.executable, "-c", "import sys; sys.exit('no room')"], tmp_path / "log")
    with pytest.raises(pytest.skip.Exception, match="exited with 1: no room"):
        service.start(lambda: False)
    assert not service.runs


def test_a_stopped_program_leaves_no_process(tmp_path):
    child = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)', sys.argv[1]]).wait()"
    service = Service([sys.executable, "-c", child, str(tmp_path / "mark")], tmp_path / "log")
    service.start(lambda: len(daemon.processes_of(str(tmp_path / "mark"))) > 1)
    service.stop()
    until(lambda: not daemon.processes_of(str(tmp_path / "mark")), "a killed process ends")
