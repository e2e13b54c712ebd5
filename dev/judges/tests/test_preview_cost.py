"""The page of the benchmark of previews shows each stack below its limit."""

import re

from dev.judges.benchmarks import preview_cost


def test_the_page_shows_each_stack_below_its_limit():
    rows = re.findall(
        r"^\| (\S+) \| \d+ \| [\d.]+ s \| [\d.]+ s \| ([\d.]+) \| ([\d.]+) \|$",
        preview_cost.PAGE.read_text(),
        re.MULTILINE,
    )
    assert {stack: float(limit) for stack, _, limit in rows} == preview_cost.STACKS
    for stack, ratio, limit in rows:
        assert float(ratio) <= float(limit), stack
