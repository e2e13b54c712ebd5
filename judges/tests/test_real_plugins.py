"""The real plugins and the image folders: how results of other programs become rows, and what a judge lacks is not a pass."""

import sys
from collections import Counter

import pytest

from judges.real import daemon
from judges.real.gcp_plugin import rows_of, unbuilt_stacks
from judges.real.rows import DifferenceError, NotJudgedError, RowVerdict
from judges.real.service import Service
from judges.real.upstream_tests import count_tests
from tests.polling import until

RESULTS = """<testsuites><testsuite>
<testcase name="test_both_plugins_send_the_same[tpu-v6e1]" time="61.04"/>
<testcase name="test_both_plugins_send_the_same[l4-qat]" time="3"><failure message="AssertionError: one&#10;  two"/></testcase>
<testcase name="test_what_the_real_plugin_refuses_is_refused_here" time="0"><skipped message="uses the plugin"/></testcase>
<testcase name="test_of_something_else" time="1"/>
</testsuite></testsuites>"""


def test_each_nightly_test_is_a_row_and_a_skipped_one_was_not_judged():
    passed, failed, skipped = rows_of(RESULTS, "10.2.0")
    assert (passed.verdict, passed.took_s, passed.version) == (RowVerdict.PASSED, 61.0, "10.2.0")
    assert passed.judged.startswith("tpu-v6e1, prepared project")
    assert (failed.verdict, failed.note) == (RowVerdict.FAILED, "AssertionError: one two")
    assert (skipped.verdict, skipped.note) == (RowVerdict.NOT_JUDGED, "uses the plugin")


def test_the_stacks_without_a_build_are_all_but_the_two_with_an_image_of_this_repository():
    stacks = unbuilt_stacks()
    assert {"l4-e2b-lora", "tpu-v6e4-turbo"} <= set(stacks)
    assert not [name for name in stacks if name.endswith("w4a16")]


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
    with pytest.raises(DifferenceError, match="test_x: assert 1 == 2"):
        count_tests(case('<failure message="assert 1 == 2"/>'))


def test_a_program_that_ends_before_it_is_ready_is_named_with_its_last_line(tmp_path):
    service = Service([sys.executable, "-c", "import sys; sys.exit('no room')"], tmp_path / "log")
    with pytest.raises(NotJudgedError, match="exited with 1: no room"):
        service.start(lambda: False)
    assert not service.runs


def test_a_stopped_program_leaves_no_process(tmp_path):
    child = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)', sys.argv[1]]).wait()"
    service = Service([sys.executable, "-c", child, str(tmp_path / "mark")], tmp_path / "log")
    service.start(lambda: len(daemon.processes_of(str(tmp_path / "mark"))) > 1)
    service.stop()
    until(lambda: not daemon.processes_of(str(tmp_path / "mark")), "a killed process ends")
