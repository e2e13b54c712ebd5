"""The ledger of assumptions: its files, the loader's errors, and the generated page."""

import re
import tomllib
from pathlib import Path

import pytest

from localcloud.ledger import entries
from localcloud.ledger.entries import LedgerError, join, load
from localcloud.ledger.page import page

LEDGER = Path(entries.__file__).parent
ENTRY = """
[[assumption]]
id = "one"
statement = "Google refuses it."
source = "assumed"
kind = "refusal"
danger = "low"
if_false = "A user reads the wrong status."
test = "tests/test_one.py::test_it"
try = "gcloud try"
cost_usd = 0
tried = ""
"""


def test_no_command_of_the_ledger_changes_the_policy_of_a_project():
    commands = [entry.how_to_try for entry in load().assumptions]
    assert [text for text in commands if "projects/PROJECT:setIamPolicy" in text or "projects set-iam" in text] == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param(ENTRY + 'quote = ["x"]\n', "Extra inputs are not permitted", id="unknown"),
        pytest.param(ENTRY + ENTRY, "two entries with the id 'one'", id="twice"),
        pytest.param(ENTRY.replace('"assumed"', '""'), "source: String should have at least 1 character", id="source"),
        pytest.param(ENTRY.replace('"refusal"', '"rule"'), "kind: Input should be 'refusal', 'behavior'", id="kind"),
        pytest.param(ENTRY.replace('"refusal"', '"lenient"'), "a lenient entry names none", id="lenient"),
        pytest.param(ENTRY.replace('"low"', '"bad"'), "danger: Input should be 'critical', 'high'", id="danger"),
        pytest.param(ENTRY.replace('danger = "low"\n', ""), "danger: Field required", id="no-danger"),
        pytest.param(
            ENTRY.replace('if_false = "A user reads the wrong status."\n', ""), "if_false: Field required", id="no-harm"
        ),
        pytest.param(ENTRY.replace("= 0", "= -1"), "cost_usd: Input should be greater than", id="cost"),
        pytest.param(ENTRY.replace('"one"', '"One_1"'), "id: String should match pattern", id="id"),
        pytest.param("[[assumption]\n", "is not TOML", id="toml"),
    ],
)
def test_an_invalid_file_is_one_sentence(text, says):
    with pytest.raises(LedgerError) as caught:
        join({"some.toml": text})
    assert says in str(caught.value)


def test_every_toml_file_is_read():
    files = sorted(LEDGER.glob("*.toml"))
    parts = [tomllib.loads(path.read_text()) for path in files]
    assert len(load().assumptions) == sum(len(part.get("assumption", ())) for part in parts) >= 60


def critical_rows(text):
    """(cost, id) of the rows under "Critical assumptions, not yet tried"."""
    rows = text.partition("not yet tried\n")[2].partition("\n\n[")[0].splitlines()
    return [(float(cells[1]), cells[2].strip(" `")) for cells in (row.split("|") for row in rows) if "`" in str(cells)]


def test_the_first_section_is_what_decides_by_price():
    text = page(load())
    critical = [entry.id for entry in load().assumptions if entry.danger == "critical" and not entry.tried]
    assert sorted(name for _, name in critical_rows(text)) == sorted(critical)
    assert critical_rows(text) == sorted(critical_rows(text))
    assert text.index("## Critical assumptions, not yet tried") < text.index("## Entries")


def test_every_entry_counts_by_danger_and_by_kind_and_by_source():
    ledger = load()
    tables = [part for part in page(ledger).split("\n\n") if "| entries |" in part]
    sums = [sum(int(row.split("|")[2]) for row in table.splitlines()[2:]) for table in tables]
    assert sums == [len(ledger.assumptions)] * 2
    (sources,) = re.findall(r"^Entries by source: (.*)\.$", page(ledger), re.MULTILINE)
    assert sum(map(int, re.findall(r"\d+", sources))) == len(ledger.assumptions)


def test_an_entry_that_was_tried_leaves_the_list_and_shows_its_answer():
    tried = ENTRY.replace('"low"', '"critical"').replace('tried = ""', 'tried = "2026-12-01, project p: as stated"')
    text = page(join({"some.toml": tried}))
    assert critical_rows(text) == []
    assert "| `one` | `2026-12-01, project p: as stated` |" in text.partition("## Tried on a real project")[2]
