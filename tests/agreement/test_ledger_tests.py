"""Each assumption of the local cloud's ledger names a test that exists, in its own suite or in another, and the README leads to the page."""

import ast
import functools
import re
from pathlib import Path

from gemma_serving.contracts.settings_files import settings_file
from gemma_serving.planning.data import checkpoints
from gemma_serving.planning.data.prices import LIST_PRICES, instance_parts
from gemma_serving.planning.planner import plan
from gemma_serving.stacks.loading import from_file
from gemma_serving.stacks.planned import to_question
from localcloud.ledger.entries import load
from localcloud.ledger.page import SHELL

ROOT = Path(__file__).resolve().parents[2]
EVENING = ROOT / "examples" / "one-evening.sh"
RUN_S = float(re.search(r'"maxRunDuration": "(\d+)s"', SHELL)[1])
SMALLEST = instance_parts(LIST_PRICES, gpu=None, vcpu=1, memory_gib=0.5, zonal_redundancy=False, place="us-east4")


@functools.cache
def parsed(path):
    return ast.parse((ROOT / path).read_text())


def functions(path, classes=()):
    """The body of a test file or of a class in it, as names of functions."""
    body = parsed(path).body
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
    if not start:
        return ""
    texts = [
        item.value for item in ast.walk(parsed(path)) if isinstance(item, ast.Constant) and isinstance(item.value, str)
    ]
    return "" if any(text.startswith(start) or start.startswith(f"{text}-") for text in texts) else start


def test_every_entry_names_a_test_that_exists():
    tests = {entry.id: entry.test for entry in load().assumptions if entry.test}
    tests |= {each.test: each.test for each in load().enforced}
    assert {name: absent for name, test in tests.items() if (absent := missing(test))} == {}


def critical():
    return {entry.id: entry for entry in load().critical}


@functools.cache
def usd_per_hour(stack):
    """The planner's price of one instance of a stack."""
    settings = from_file(settings_file(stack, ROOT), project="my-project")
    return plan(to_question(settings, ROOT)).cost.usd_per_hour


def test_the_evening_says_something_of_each_critical_entry_and_the_page_has_lines_for_what_it_cannot_decide():
    text = EVENING.read_text()
    said = dict(re.findall(r"(?m)^    entry ([a-z0-9-]+) .* (''|['\"].*['\"])$", text))
    said |= dict.fromkeys(re.findall(r'(?m)^    say "([a-z-]+): \$\(loaded\)"$', text), "its times")
    assert {name: true == "''" for name, true in said.items()} == {
        name: bool(entry.try_it) for name, entry in critical().items()
    }


def test_no_line_of_the_page_can_cost_more_than_it_says():
    for entry in critical().values():
        usd = usd_per_hour("tpu-v6e1") * RUN_S / 3600 if "machine " in entry.try_it else 0
        if "minInstanceCount" in entry.try_it:
            usd += sum(part.usd_per_hour for part in SMALLEST)
        assert usd <= entry.cost_usd <= usd + 0.1, entry.id


def test_the_page_asks_for_every_checkpoint():
    asked = re.search(r"for id in (.*?); do", critical()["hub-ids"].try_it)[1].split()
    assert asked == [*checkpoints.CHECKPOINTS, *checkpoints.ABSENT]


def test_the_page_says_what_the_evening_can_cost():
    hours = float(re.search(r"L4_BILLED_H=([0-9.]+)", EVENING.read_text())[1])
    most = usd_per_hour("tpu-v6e1") + round(usd_per_hour("l4-12b-qat"), 2) * hours
    assert f"for at most {most:.2f} USD" in (ROOT / "docs" / "one-evening.md").read_text()
