"""No verdict depends on when a module was imported: clocks are read where they are used, and tests replace arguments, never a module's time."""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
READS = {
    "time": {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "process_time", "sleep"},
    "datetime": {"now", "utcnow", "today"},
    "date": {"today"},
}
"""Functions that read a clock or wait, by the name before their dot."""
BARE = {"monotonic", "perf_counter", "process_time", "sleep"}
"""Names under which modules import some of them."""
REPLACED = re.compile(r"(^|\.)(time|monotonic|perf_counter|sleep|datetime)$")
MENTIONED = re.compile(r"\b(time|monotonic|perf_counter|process_time|sleep|datetime|date)\b[.,)\"']|\bsleep\(")
"""Modules without these words are not parsed, because parsing takes most of the time of this test."""
LIBRARIES = {"tests/library_time.py"}
"""Libraries that take no clock. Their pauses are replaced in this one place."""


def reads_clock(node):
    """Return whether an expression names a clock."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return node.attr in READS.get(node.value.id, ())
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute):
        return node.attr in READS.get(node.value.attr, ())
    return isinstance(node, ast.Name) and node.id in BARE


def calls(node):
    """Yield the calls of clocks that happen when a statement runs: those in the bodies of functions and lambdas happen later."""
    if isinstance(node, ast.Lambda):
        return
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        parts = [*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)]
    else:
        parts = ast.iter_child_nodes(node)
    if isinstance(node, ast.Call) and reads_clock(node.func):
        yield node
    for part in parts:
        yield from calls(part)


def bound(tree):
    """Yield the fields whose factory is a clock: it is bound when the class is made, so no test can replace it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "default_factory" and reads_clock(node.value):
            yield node.value


def replaced(tree):
    """Yield the calls by which a test replaces the time of a module: `setattr(module, "time", ...)` or `setattr("module.time.sleep", ...)`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "setattr":
            names = [str(argument.value) for argument in node.args[:2] if isinstance(argument, ast.Constant)]
            if names and REPLACED.search(names[0]):
                yield node


def sleeps(tree, text):
    """Yield the calls of `time.sleep` on a line without a comment."""
    lines = {
        token.start[0]
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and not {node.lineno, node.end_lineno} & lines:
            name = ast.unparse(node.func)
            if name in {"time.sleep", "sleep"}:
                yield node


def faults(text, *, is_test):
    """Return the line and the kind of each fault of a module."""
    if not MENTIONED.search(text):
        return []
    tree = ast.parse(text)
    found = [(node.lineno, "a clock read at import") for node in calls(tree)]
    found += [(node.lineno, "a clock bound by default_factory") for node in bound(tree)]
    if is_test:
        found += [(node.lineno, "a module's time replaced") for node in replaced(tree)]
        found += [(node.lineno, "a sleep without its reason on its line") for node in sleeps(tree, text)]
    return sorted(found)


def modules():
    for path in sorted(ROOT.rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith((".", "build/")) and name not in LIBRARIES:
            yield name, path.read_text(encoding="utf-8")


def test_clocks_are_arguments_and_sleeps_have_a_reason():
    found = {
        f"{name}:{line} {kind}"
        for name, text in modules()
        for line, kind in faults(text, is_test=name.startswith("tests/") or "/tests/" in name)
    }
    assert sorted(found) == []


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("import time\nSTART = time.time()", "a clock read at import"),
        ("class A:\n    began_s = time.monotonic()", "a clock read at import"),
        ("@mark(datetime.now(UTC))\ndef test_it(): pass", "a clock read at import"),
        ("def test_it(now=datetime.datetime.now()): pass", "a clock read at import"),
        ("class A:\n    began_s: float = field(default_factory=time.monotonic)", "a clock bound by default_factory"),
        ("class A:\n    began_s: float = field(default_factory=monotonic)", "a clock bound by default_factory"),
        ("monkeypatch.setattr(module, 'time', fake)", "a module's time replaced"),
        ("monkeypatch.setattr('module.time.sleep', fake)", "a module's time replaced"),
        ("monkeypatch.setattr(module.time, 'sleep', fake)", "a module's time replaced"),
        ("monkeypatch.setattr('gemma_serving.cloud.clock.datetime', Frozen)", "a module's time replaced"),
        ("def test_it():\n    time.sleep(1)", "a sleep without its reason on its line"),
        ("def test_it():\n    sleep(1)", "a sleep without its reason on its line"),
    ],
)
def test_each_kind_is_found(text, kind):
    assert [found for _, found in faults(text, is_test=True)] == [kind]


@pytest.mark.parametrize(
    "text",
    [
        "def test_it(clock=time.monotonic): clock()",
        "def test_it():\n    time.sleep(1)  # the answer of a slow server",
        "class A:\n    began_s: float = field(default_factory=lambda: time.monotonic())",
        "monkeypatch.setattr(pulumi.runtime, 'is_dry_run', fake)",
    ],
)
def test_what_is_allowed_is_not_found(text):
    assert faults(text, is_test=True) == []
