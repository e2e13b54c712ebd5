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
from localcloud.trials.attempt import Attempt, Surroundings
from localcloud.trials.command import by_cost, cost_usd, own_usd
from localcloud.trials.evening import ABSENT_HUB_ID, HUB_IDS, TRIALS
from localcloud.trials.product import STACKS
from localcloud.trials.sending import ApiReply

ROOT = Path(__file__).resolve().parents[2]
EVENING = ROOT / "docs" / "one-evening.md"
FIRST = ("tpu-delete-needs-force", "run-l4-driver")
"""Entries of the evening's first step: a queued resource that is deleted while it waits, and a job that reads an L4's driver."""
ROW = re.compile(r"(?m)^\| `(?P<id>[a-z0-9-]+)` \| \d+\.\d\d \|")


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


def rounded_up(usd):
    """A price in steps of 0.05."""
    return -(-round(usd * 100, 3) // 5) * 5 / 100


def test_every_critical_entry_is_tried_by_the_command_of_the_page():
    text = EVENING.read_text()
    assert [row["id"] for row in ROW.finditer(text)] == [entry.id for entry in sorted(critical().values(), key=by_cost)]
    budget = cost_usd(critical().values())
    assert f"for at most {budget:.2f} USD" in text
    assert f"--budget-usd {budget:.2f}\n" in text
    assert budget <= 10


def test_the_first_step_costs_five_cents():
    assert cost_usd(critical()[name] for name in FIRST) == 0.05
    (line,) = re.findall(r"(?m)^python -m localcloud try --project PROJECT --budget-usd 0\.05 .*$", EVENING.read_text())
    assert set(re.findall(r"--only ([\w-]+)", line)) == set(FIRST)


def test_the_prices_of_the_stacks_and_of_the_job_are_the_planners():
    planned = {name: rounded_up(usd_per_hour(row["like"]) * row["minutes"] / 60) for name, row in STACKS.items()}
    assert planned == {name: row["usd"] for name, row in STACKS.items()}
    assert rounded_up(usd_per_hour("l4-12b-qat") * 2 / 60) == critical()["run-l4-driver"].cost_usd
    smallest = instance_parts(
        LIST_PRICES, gpu=None, vcpu=1, memory_gib=0.5, zonal_redundancy=False, place="us-central1"
    )
    spent = rounded_up(sum(part.usd_per_hour for part in smallest))
    assert spent <= critical()["disabled-api-keeps-resources"].cost_usd
    for row in STACKS.values():
        text = settings_file(row["like"], ROOT).read_text()
        assert [before for before in row["settings"] if before not in text] == []


class Accepting(Attempt):
    """An attempt of which each step succeeds at once, which keeps the bodies of its requests for a machine."""

    def send(self, method, url, body=None, **_):
        if method == "POST" and "?queuedResourceId=" in url:
            self.bodies.append(body)
        return ApiReply(status=200, body={})

    def must_poll(self, *_, **__):
        return ApiReply(status=200)

    def run(self, *_):
        return ApiReply(status=200)

    def must_have(self, *_):
        pass

    def must_disable_run(self):
        pass


def machines(name):
    """The bodies of a trial's requests for a machine."""
    world = Surroundings(sender=None, project="my-project", report=print, product=None, sleep=lambda _: None)
    attempt = Accepting(world=world, run_id="a", name="x", expected=TRIALS[name].expected, owned=[])
    attempt.bodies = []
    TRIALS[name].run(attempt)
    return attempt.bodies


def test_no_machine_of_a_trial_can_cost_more_than_its_price():
    """Each machine that a trial expects to get ends by itself, also after a kill of `try`."""
    checked = []
    for entry in load().critical:
        for body in machines(entry.id):
            usd = float(body["runDuration"]["maxRunDuration"].removesuffix("s")) / 3600 * usd_per_hour("tpu-v6e1")
            checked.append(entry.id)
            if entry.id in FIRST:  # it is deleted while it waits; an hour after a kill it runs ten minutes
                assert (body["queueingPolicy"]["validAfterDuration"], rounded_up(usd)) == ("3600s", 0.25)
                assert "for 0.25 USD" in EVENING.read_text()
                continue
            assert usd <= own_usd(entry), entry.id
    assert len(checked) == 7


def test_the_hubs_trial_asks_for_every_checkpoint():
    assert [*HUB_IDS, ABSENT_HUB_ID] == [*checkpoints.CHECKPOINTS, *checkpoints.ABSENT]
