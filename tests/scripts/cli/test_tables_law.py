"""The law of tables: at every width, each table of each command shows every number and name of its rows, or names the columns it leaves out."""

import ast
import re
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.text import Text

from dev.authors import demo
from gemma_serving.cloud.alerts import AlertReport, StackAlert
from gemma_serving.cloud.quotas import Quota
from gemma_serving.cloud.shortage import QuotaRead, Shortage
from gemma_serving.contracts.alerts import RUNBOOK, every_alert
from gemma_serving.contracts.labels import Ownership
from gemma_serving.contracts.settings_files import shipped_files
from gemma_serving.contracts.three_answers import Present
from gemma_serving.planning.data.prices import LIST_PRICES, slice_parts
from gemma_serving.planning.machine.hardware import ACCELERATORS
from gemma_serving.scripts.alerts.render import AlertTimes, print_alerts
from gemma_serving.scripts.capacity import table as capacity_table
from gemma_serving.scripts.cli.tables import FittedTable, console
from gemma_serving.scripts.doctor.places import (
    FORMS,
    ExistingRequest,
    JudgedForm,
    JudgedPlace,
    LocationCheck,
    QuotaCheck,
)
from gemma_serving.scripts.plan.__main__ import main as plan
from gemma_serving.scripts.smoke.render import print_table
from gemma_serving.scripts.smoke.results import FinishedCheck, SmokeReport, failed, passed, skipped, warned
from gemma_serving.scripts.status.render import ReportView
from tests.records import replace
from tests.scripts.status.test_status import REPORT
from tests.scripts.terminal import Terminal
from tests.tracked import tracked

ROOT = Path(__file__).parents[3]
WIDTHS = (60, 120)
NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
STACK = "l4-qat"
SOLVE = ("--solve", "--workload", "in=1000,out=200,users=8")
COMPARE = ("--model", "google/gemma-4-31B-it", "--compare")
OWNER = Ownership(project="gemma-serving", stack="tpu-v6e4")


# --- every table of every command ----------------------------------------------------------------------------------------------------


def place(zone, name, *, model="flex-start", used=0.0, **changes):
    """One location, with all that a row of capacity can have."""
    accelerator = ACCELERATORS[name]
    yes, unit = LocationCheck("passed"), "chips" if accelerator.is_tpu else "GPUs"
    found = JudgedPlace(
        accelerator=accelerator,
        place=zone,
        hardware=yes,
        asked=replace(
            form_of("flex-start", used, zone, quota=quota_of(used, zone, unit)),
            model=model,
        ),
        requests=(),
        forms=[form_of(form, used, zone) for form in FORMS] if accelerator.is_tpu else (),
    )
    return replace(found, **changes)


def quota_of(used, zone, unit):
    quota = Quota("tpu", "metric", "Id", unit)
    return QuotaCheck(
        "passed", read=QuotaRead(quota=quota, place=zone, limit=Present(64.0), used=Present(used), needed=4)
    )


def form_of(model, used, zone, **changes):
    """A form of capacity in a location."""
    found = JudgedForm(
        model=model,
        accepted=LocationCheck("passed"),
        quota=quota_of(used, zone, "chips"),
        parts=slice_parts(LIST_PRICES, generation="v6e", chips=4, provisioning=model, place=zone),
        in_stack=False,
        not_requested="",
        last_answer=None,
    )
    return replace(found, **changes)


def capacity():
    short = Shortage(
        cause="unknown", evidence=("Google gives no reason for WAITING_FOR_RESOURCES", "no quota is known")
    )
    started = NOW - timedelta(minutes=31)
    own = ExistingRequest("q", "tpu-v6e1-26b-w4a16", "WAITING_FOR_RESOURCES", started, model="spot", shortage=short)
    forms = [
        form_of("flex-start", 12.0, "southamerica-west1-a", in_stack=True),
        form_of("spot", 12.0, "southamerica-west1-a", in_stack=True, last_answer=own),
        form_of("standard", 0.0, "southamerica-west1-a", in_stack=True, not_requested="above"),
    ]
    places = [
        place("southamerica-west1-a", "v6e-4", used=12.0, position=0, requests=(own,), forms=forms),
        place("us-east5-b", "v6e-4"),
        place("us-south1-a", "v6e-4"),
        place("us-south1-a", "v6e-1"),
        place("asia-southeast1", "L4", model="instance"),
    ]
    capacity_table.show(places, ("Quota of us-east1: the call was refused. To fix it, run: gcloud x",), NOW)


def smoke_report():
    model = "google/gemma-4-26B-A4B-it-qat-q4_0"
    outcomes = {
        "ready": replace(passed("after 0.3 s"), wanted="600 s"),
        "served model": replace(passed(model), wanted=model),
        "options in effect": replace(
            warned("8,255 blocks of 32 tokens, fp8", "8,255 blocks of 32 tokens are 718% more than planned. " * 3),
            wanted="1,009 blocks of 256 tokens",
        ),
        "single stream": replace(
            failed("TTFT 0.307 s, 98.6 tok/s", "66.4 tok/s (40%) short"), wanted="TTFT 0.5 s, 165.0 tok/s"
        ),
        "anonymous access": skipped("the endpoint is reached through a tunnel, so it cannot be called without it"),
    }
    checks = tuple(FinishedCheck(name=name, outcome=one, elapsed_s=12.25) for name, one in outcomes.items())
    url = "https://gemma-l4-qat-1234567890.us-east4.run.app"
    return SmokeReport(
        stack=STACK, url=url, model=model, simulated="planted", checks=checks, interrupted=False, elapsed_s=61.3
    )


def demo_summary(folder):
    steps = [(f"step {number}", f"{number * 11.5:.1f}", "result of it " * number) for number in (1, 5, 9)]
    demo._summary([demo.Demo(folder=folder, stack="tpu-v6e4", steps=steps)], 61.0, "No failures.", failed=False)


def alerts():
    """Every alert, as two series fire for days in another time zone, and as one that ended."""
    rows = {row.title: row for row in every_alert()}.values()
    firing = [
        StackAlert(
            title=row.title,
            severity=row.severity,
            opened=(NOW - timedelta(days=number, minutes=7)).isoformat(),
            closed=None,
            meaning=row.meaning,
            command=row.command.replace("$stack", "tpu-v6e4-e4b-turbo"),
            runbook=f"{RUNBOOK}#{row.anchor}",
            incident=f"projects/my-project-1234/alerts/{number}",
        )
        for number, row in enumerate((*rows, *rows))
    ]
    closed = replace(firing[2], severity=None, closed=NOW.isoformat())
    report = AlertReport(
        stack="tpu-v6e4-e4b-turbo",
        project="my-project-1234",
        policies=19,
        firing=firing,
        closed=(closed,),
        unread=("Closed incidents: the call was refused. " * 3,),
        notes=("The local cloud does not evaluate alerts on log lines. " * 2,),
    )
    zone = timezone(timedelta(hours=5, minutes=45), "UTC+05:45")
    print_alerts(console(sys.stdout), report, AlertTimes(now=NOW, zone=zone), simulated=True)


TABLES = {
    "alerts": ("scripts/alerts/render.py", lambda _: alerts()),
    "solve": ("scripts/plan/rows.py", lambda _: plan(SOLVE)),
    "compare": ("scripts/plan/rows.py", lambda _: plan(COMPARE)),
    "stacks": ("scripts/plan/rows.py", lambda _: plan(())),
    "costs of a TPU": ("scripts/plan/costs.py", lambda _: plan(("--stack", "tpu-v6e4", "--costs"))),
    "plan of a TPU": ("scripts/plan/table.py", lambda _: plan(("--stack", "tpu-v6e4", *SOLVE[1:]))),
    "capacity": ("scripts/capacity/table.py", lambda _: capacity()),
    "smoke": ("scripts/smoke/render.py", lambda _: print_table(smoke_report(), console(sys.stdout))),
    "status": ("scripts/status/render.py", lambda _: console(sys.stdout).print(ReportView(REPORT, zone_is_utc=True), crop=False)),
    "demo": ("dev/authors/demo.py", demo_summary),
}  # fmt: skip


# --- the law -------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def on_terminal(monkeypatch, tmp_path):
    """Run what prints on a terminal of a width; returns the text, and each table with the columns that it says it leaves out."""
    for path in (ROOT / "Pulumi.yaml", *shipped_files(ROOT)):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.chdir(tmp_path)
    for name, value in {"TERM": "xterm", "NO_COLOR": "1", "GOOGLE_CLOUD_PROJECT": "my-project"}.items():
        monkeypatch.setenv(name, value)
    render = FittedTable.__rich_console__

    def on_width(name, width):
        drawn = {}

        def observed(table, *context):
            parts = list(render(table, *context))
            said = [part.plain for part in parts if isinstance(part, Text) and part.plain.startswith("Not shown at")]
            drawn[id(table)] = (table, said)
            return iter(parts)

        stream = Terminal()
        monkeypatch.setenv("COLUMNS", str(width))
        with monkeypatch.context() as patch:
            patch.setattr(FittedTable, "__rich_console__", observed)
            patch.setattr(sys, "stdout", stream)
            patch.setattr(sys, "stderr", stream)
            TABLES[name][1](tmp_path)
        return re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue()), list(drawn.values())

    return on_width


def missing(text, tables, width):
    """Return the words and numbers of the rows that a text shows less often than its tables have them, without the columns it names as left out."""
    plain, whole = " ".join(text.split()), re.sub(r"[\s│]+", "", text)
    expected = Counter()
    for table, said in tables:
        assert len(said) <= 1
        assert all(" ".join(note.split()) in plain for note in said)
        left_out = re.search(r"columns: (.*)\. A wider", said[0])[1].split("; ") if said else []
        expected.update(
            word
            for cells, _ in table._rows
            for heading, cell in zip(table.headings, cells, strict=True)
            if heading not in left_out
            for word in cell.plain.split()
        )
    lacking = expected - Counter(re.split(r"[\s│]+", text))
    # A name that is longer than a line is folded, as the terminal folds it.
    return [word for word in lacking if cell_len(word) <= width - 4 or word not in whole]


def too_wide(text, width):
    """Return the lines that are wider than the terminal, without those that are a single word, a URL or a command to paste."""
    wide = [line.strip() for line in text.splitlines() if cell_len(line.rstrip()) > width]
    return [line for line in wide if " " in line and "://" not in line and "`" not in line]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", TABLES)
def test_every_number_and_name_of_a_table_is_shown_or_said_to_be_left_out(on_terminal, name, width):
    text, tables = on_terminal(name, width)
    assert tables
    assert all(table._rows for table, _ in tables)
    assert missing(text, tables, width) == []
    assert too_wide(text, width) == []


@pytest.mark.parametrize("name", ["solve", "compare"])
def test_a_planned_deployment_is_one_line_of_120_columns(on_terminal, name):
    text, ((table, _),) = on_terminal(name, 120)
    assert sum("│" in line for line in text.splitlines()) == len(table._rows)


@pytest.mark.parametrize("width", [80, 120])
def test_a_stack_is_one_line_below_one_line_of_headings(on_terminal, monkeypatch, tmp_path, width):
    """Of all shipped stacks and examples. A narrow terminal has the model, and a wide one has all columns."""
    monkeypatch.setattr("gemma_serving.scripts.plan.stacks.ROOT", tmp_path)
    for path in (ROOT / "examples/stacks").glob("Pulumi.*.yaml"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    text, ((table, left_out),) = on_terminal("stacks", width)
    assert sum("│" in line for line in text.splitlines()) == len(table._rows) >= 15
    (headings,) = (line for line in text.splitlines() if "┃" in line)
    assert {"stack", "model", "verdict"} <= set(headings.split())
    assert width < 120 or not left_out


# --- all of them ---------------------------------------------------------------------------------------------------------------------


def test_the_law_holds_for_the_tables_of_all_commands():
    """A command with a new table has to be added above."""
    makers = {
        path.relative_to(ROOT).as_posix()
        for path in tracked("scripts", "dev/authors", "gemma_serving/engine", "gemma_serving/cloud")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
        and (node.module == "rich.table" or (node.module == "gemma_serving.scripts.cli.tables" and "FittedTable" in {one.name for one in node.names}))
    }  # fmt: skip
    assert makers - {"scripts/cli/tables.py"} == {path for path, _ in TABLES.values()}
