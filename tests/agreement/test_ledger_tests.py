"""Each assumption of the local cloud's ledger names a test that exists, in its own suite or in another, and the README leads to the page."""

import ast
from pathlib import Path

import pytest

from localcloud.ledger.entries import load

ROOT = Path(__file__).resolve().parents[2]


def functions(path, classes=()):
    """The body of a test file or of a class in it, as names of functions."""
    body = ast.parse((ROOT / path).read_text()).body
    for name in classes:
        body = next(item.body for item in body if isinstance(item, ast.ClassDef) and item.name == name)
    return {item.name for item in body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)}


def missing(test):
    """What of `FILE::[CLASS::]FUNCTION[PARAMETERS` does not exist; the parameters begin with a text of the file."""
    target, _, parameters = test.partition("[")
    path, *classes, function = target.split("::")
    if not (ROOT / path).is_file():
        return path
    try:
        if function not in functions(path, classes):
            return function
    except StopIteration:
        return "::".join(classes)
    start = parameters.removesuffix("]")
    texts = [
        item.value
        for item in ast.walk(ast.parse((ROOT / path).read_text()))
        if isinstance(item, ast.Constant) and isinstance(item.value, str)
    ]
    return "" if not start or any(text.startswith(start) or start.startswith(f"{text}-") for text in texts) else start


def test_every_entry_names_a_test_that_exists(subtests):
    for entry in (entry for entry in load().assumptions if entry.kind != "lenient"):
        with subtests.test(entry.id):
            assert missing(entry.test) == ""


@pytest.mark.parametrize(
    ("test", "absent"),
    [
        ("tests/none.py::test_x", "tests/none.py"),
        ("packages/localcloud/tests/test_ledger.py::test_none", "test_none"),
        ("packages/localcloud/tests/test_ledger.py::TestNone::test_x", "TestNone"),
        ("tests/agreement/test_local_cloud_page.py::test_the_page_names_every_variable[absent]", "absent"),
        ("packages/localcloud/tests/services/test_queue.py::TestOrder::test_the_states_follow_one_another", ""),
    ],
)
def test_a_test_that_does_not_exist_is_seen(test, absent):
    assert missing(test) == absent


def test_the_readme_names_the_page():
    assert "(docs/authors/assumptions.md" in (ROOT / "README.md").read_text()
