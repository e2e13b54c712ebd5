"""Clocks are arguments: none is read or bound at import, and no test replaces a module's time or sleeps without a reason on its line.

ruff finds a clock in a default of a function (B008).
"""

import re
from pathlib import Path

from tests.tracked import tracked

ROOT = Path(__file__).resolve().parents[1]
READ = r"\b(?:time\.(?:time|monotonic|perf_counter|process_time)(?:_ns)?|(?:datetime|date)\.(?:now|utcnow|today))"
EVERYWHERE = {
    "a clock read at import": rf"^(?!.*\blambda\b)[A-Za-z@].*{READ}\(",
    "a clock read in a class, before its methods": rf"^class .*:\n(?:(?!    (?:async )?def )    .*\n|\n)*?    (?!.*\blambda\b)[a-z].*{READ}\(",
    "a clock bound by default_factory": rf"default_factory=(?:{READ}|monotonic|perf_counter)\b",
}
TESTS = {
    "a module's time replaced": r"setattr\([^()]*?[\"'](?:[\w.]+\.)?(?:time|monotonic|perf_counter|sleep|datetime)[\"'],",
    "a sleep without its reason on its line": r"^ *(?:time\.)?sleep\([^#\n]*$",
}
LIBRARIES = "tests/library_time.py"
"""Two libraries take no clock. Their pauses are replaced in this one place."""
PROGRAM = re.compile(r'"{3}.*?"{3}', re.DOTALL)
"""A program that a test holds as a text, or a docstring."""


def faults(text, *, is_test):
    rules = EVERYWHERE | TESTS if is_test else EVERYWHERE
    code = PROGRAM.sub("", text)
    return [kind for kind, rule in rules.items() if re.search(rule, code, re.MULTILINE)]


def test_clocks_are_arguments_and_sleeps_have_a_reason():
    found = {}
    for path in tracked():
        name = path.relative_to(ROOT).as_posix()
        if name != LIBRARIES:
            found[name] = faults(path.read_text(encoding="utf-8"), is_test="tests" in path.parts)
    assert len(found) > 1000
    assert {name: kinds for name, kinds in found.items() if kinds} == {}
