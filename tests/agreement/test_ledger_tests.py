"""Each assumption of the local cloud's ledger names a test that exists, in its own suite or in another, and the README leads to the page."""

import ast
import functools
import json
import re
from pathlib import Path

from gemma_serving.contracts.settings_files import settings_file
from gemma_serving.planning.cost.costs import gateway_parts
from gemma_serving.planning.data import checkpoints
from gemma_serving.planning.planner import plan
from gemma_serving.stacks.loading import from_file
from gemma_serving.stacks.planned import to_deployment
from localcloud.ledger.entries import load
from localcloud.trials.requests_of_entries import trial
from localcloud.trials.resources import created_by

ROOT = Path(__file__).resolve().parents[2]
EVENING = ROOT / "docs" / "one-evening.md"
ROW = re.compile(r"(?m)^\| `(?P<id>[a-z0-9-]+)` \|.*\| (?P<runs>[^|]+) \| (?P<usd>\d+\.\d\d) \|$")
RUNS = re.compile(r"(?:`(?P<stack>[\w-]+)`|a gateway), (?P<minutes>\d+) min(?P<shared>, shared)?")


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
    entries = [entry for entry in load().assumptions if entry.kind != "lenient"]
    assert {entry.id: absent for entry in entries if (absent := missing(entry.test))} == {}


def critical():
    return {entry.id: entry for entry in load().assumptions if entry.danger == "critical"}


@functools.cache
def usd_per_hour(stack):
    """The planner's price of one instance of a stack, or of a gateway."""
    if not stack:
        return sum(part.usd_per_hour for part in gateway_parts("us-central1"))
    settings = from_file(settings_file(stack, ROOT), project="my-project")
    return plan(to_deployment(settings, ROOT)).cost.usd_per_hour


def planned_usd(runs):
    """The price of the column `runs`, rounded up to 0.05; 0 if it is free."""
    found = RUNS.fullmatch(runs)
    if found is None:
        assert runs == "free"
        return 0.0
    cents = usd_per_hour(found["stack"] or "") * int(found["minutes"]) / 60 * 100
    return -(-round(cents, 3) // 5) * 5 / 100


def test_every_critical_entry_is_on_the_page_of_the_first_evening():
    rows = [row["id"] for row in ROW.finditer(EVENING.read_text())]
    absent = [f"add a row for the critical entry '{name}' to docs/one-evening.md" for name in critical().keys() - rows]
    assert absent == []
    assert sorted(rows) == sorted(critical())


def test_the_prices_of_the_first_evening_are_the_planners_and_the_ledgers():
    text = EVENING.read_text()
    rows = {row["id"]: (row["runs"], float(row["usd"])) for row in ROW.finditer(text)}
    assert {name: usd for name, (_, usd) in rows.items()} == {each.id: each.cost_usd for each in critical().values()}
    assert {name: planned_usd(runs) for name, (runs, _) in rows.items()} == {
        name: usd for name, (_, usd) in rows.items()
    }
    own = sum(usd for runs, usd in rows.values() if not runs.endswith("shared"))
    together = own + max(usd for runs, usd in rows.values() if runs.endswith("shared"))
    assert f"for at most {together:.2f} USD" in text
    assert together <= 10


def test_the_command_of_the_first_evening_runs_every_critical_trial_within_its_budget():
    (line,) = re.findall(r"(?m)^python -m localcloud try .*$", EVENING.read_text())
    trials = [each for each in critical().values() if each.answer is not None]
    assert sorted(re.findall(r"--only ([\w-]+)", line)) == sorted(each.id for each in trials)
    assert f"--budget-usd {sum(each.cost_usd for each in trials):g} " in line


def test_no_machine_of_a_trial_can_cost_more_than_its_price():
    """Each machine that a trial expects to get ends by itself, also after a kill of `try`."""
    checked = []
    for entry in load().assumptions:
        found = trial(entry)
        requests = [] if found is None else found.requests
        for at, request in enumerate(requests, start=1):
            if (
                not request.url.endswith("queuedResourceId=TRY")
                or created_by(request.method, request.url, request.body) is None
            ):
                continue
            is_refused = at == len(requests) and entry.answer.status >= 400
            if is_refused and entry.id != "tpu-boot-disk-size":
                continue
            run = json.loads(request.body)["runDuration"]["maxRunDuration"]
            usd = float(run.removesuffix("s")) / 3600 * usd_per_hour("tpu-v6e1")
            checked.append(entry.id)
            assert usd <= entry.cost_usd, entry.id
    assert len(checked) == 5


def test_the_hubs_trial_asks_for_every_checkpoint():
    asked = re.findall(r"https://huggingface\.co/api/models/([\w./-]+)", critical()["hub-ids"].how_to_try)
    assert asked == [*checkpoints.CHECKPOINTS, *checkpoints.ABSENT]
