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
[[critical]]
id = "one"
statement = "Google refuses it."
source = "assumed"
test = "tests/test_one.py::test_it"
if_false = "A user reads the wrong status."
cost_usd = 0.0
tried = ""
"""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param(ENTRY + 'quote = ["x"]\n', "Extra inputs are not permitted", id="unknown"),
        pytest.param(ENTRY + ENTRY, "two entries with the id 'one'", id="twice"),
        pytest.param(ENTRY.replace('"assumed"', '""'), "source: String should have at least 1 character", id="source"),
        pytest.param(
            ENTRY.replace('if_false = "A user reads the wrong status."\n', ""), "if_false: Field required", id="no-harm"
        ),
        pytest.param(ENTRY.replace("= 0.0", "= -1"), "cost_usd: Input should be greater than", id="cost"),
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
    assert len(load().assumptions) == sum(
        len(part.get(kind, ())) for part in parts for kind in ("assumption", "critical")
    )


def untried(text):
    """The ids of the rows under "Critical assumptions, not yet tried"."""
    return re.findall(
        r"(?m)^\| `([a-z0-9-]+)` \| .* \| .* \|$", text.partition("not yet tried\n")[2].partition("\n## ")[0]
    )


def test_the_page_lists_what_is_not_tried_and_the_lines_that_try_it():
    text = page(load())
    assert untried(text) == [each.id for each in load().critical]
    lines = [each for each in load().critical if each.try_it]
    assert [each.id for each in lines] == re.findall(r"(?m)^`([a-z0-9-]+)`, at most \$\d\.\d\d\. True if ", text)
    assert all(f"```sh\n{each.try_it}clean\n```" in text and each.true_if for each in lines)


def test_every_entry_counts_by_source():
    (sources,) = re.findall(r"^Entries by source: (.*)\.$", page(load()), re.MULTILINE)
    assert sum(map(int, re.findall(r"\d+", sources))) == len(load().assumptions)


def test_an_entry_that_was_tried_leaves_the_list_and_shows_its_answer():
    tried = ENTRY.replace('tried = ""', 'tried = "2026-12-01, project p: as stated"')
    text = page(join({"some.toml": tried}))
    assert untried(text) == []
    assert "| `one` | `2026-12-01, project p: as stated` |" in text.partition("## Tried on a real project")[2]
