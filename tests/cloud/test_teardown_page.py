"""docs/teardown.md names each type of resource that a teardown searches, and no other."""

import re
from pathlib import Path

from gemma_serving.cloud.kinds import KINDS

PAGE = (Path(__file__).parents[2] / "docs" / "teardown.md").read_text()


def named(page):
    """Return the types of the table, without the notes in brackets and the grants, which are no resources."""
    table = page.partition("| type | ownership |\n| --- | --- |\n")[2].partition("\n\n")[0]
    cells = [row.split(" | ")[0].removeprefix("| ") for row in table.splitlines()]
    return {
        re.sub(r" \(.*\)", "", name) for cell in cells if not cell.startswith("IAM grants") for name in cell.split(", ")
    }


def test_the_page_names_every_searched_type():
    assert named(PAGE) == {kind.kind for kind in KINDS}
