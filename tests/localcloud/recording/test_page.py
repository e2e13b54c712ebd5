"""docs/recording.md lists what a comparison ignores, all placeholders and all options."""

import re
from pathlib import Path

import pytest

from localcloud.recording.placeholders import Kind, Placeholders
from localcloud.recording.sent import IGNORED
from localcloud.recording.varying import VARYING

PAGE = Path(__file__).resolve().parents[3] / "docs" / "recording.md"
ROWS = {
    "varying": [(each.methods, each.shown, each.reason) for each in VARYING],
    "ignored": [(each.methods, f"`{each.name}`", each.reason) for each in IGNORED],
}


@pytest.mark.parametrize("mark", ROWS)
def test_the_page_lists_what_may_differ_with_the_reason(mark):
    rows = [f"| {_shown(methods)} | {names} | {reason} |" for methods, names, reason in ROWS[mark]]
    wanted = "\n".join(["| methods | fields | reason |", "| --- | --- | --- |", *rows])
    found = re.search(rf"<!-- {mark} -->\n(.*?)\n?<!-- /{mark} -->", PAGE.read_text(), re.DOTALL)
    assert found is not None
    assert found[1] == wanted, f"put this between the marks in {PAGE.name}:\n{wanted}"


def _shown(methods):
    return "all" if methods == ".*" else f"`{methods.replace('.*', '*').replace(chr(92), '')}`"


@pytest.mark.parametrize("kind", Kind)
def test_the_page_shows_the_placeholder_of_each_kind(kind):
    assert f"`{Placeholders().learn(kind, 'a-value')}`" in PAGE.read_text()
