"""The locks of the compiler's wheels name, for each package, the one wheel that is installed on Linux x86-64 with Python 3.12."""

import pytest

from dev.judges.compiler_locks import best_wheel, lock_text
from dev.judges.tests.tpu_compiler.test_wheels import BLOCK


def files(*names):
    return [{"url": f"https://registry.example/a/b/{name}"} for name in names]


@pytest.mark.parametrize(
    ("offered", "wanted"),
    [
        (("a-1-py3-none-any.whl", "a-1-cp312-cp312-manylinux_2_28_x86_64.whl"), 1),
        (("a-1-cp312-abi3-manylinux_2_17_x86_64.whl", "a-1-cp310-abi3-manylinux_2_28_x86_64.whl"), 0),
        (("a-1-cp312-cp312-manylinux_2_34_x86_64.whl", "a-1-cp312-cp312-manylinux_2_31_x86_64.whl"), 1),
        (("a-1%2Bcu128-cp312-cp312-manylinux2014_aarch64.whl", "a-1%2Bcu128-cp312-cp312-manylinux2014_x86_64.whl"), 1),
    ],
)
def test_the_wheel_with_the_best_tag_is_locked(offered, wanted):
    assert best_wheel(files(*offered)) == files(*offered)[wanted]


def test_a_lock_is_sorted_and_has_the_form_that_its_test_reads():
    text = lock_text([("b", "2", "1" * 64), ("a", "1", "0" * 64)])
    assert BLOCK.sub("", text) == ""
    assert [found["name"] for found in BLOCK.finditer(text)] == ["a", "b"]
