"""Results of a pytest that ran as a child, from the file that it writes (JUnit XML)."""

import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PytestResult:
    """Result of one test. `failures`: messages, of its set-up and clean-up too; `skipped`: the reason, or None if it was not skipped."""

    name: str
    failures: tuple[str, ...]
    skipped: str | None
    took_s: float


def pytest_results(text: str) -> Iterator[PytestResult]:
    """Yield the result of each test."""
    for case in ET.fromstring(text).iter("testcase"):  # noqa: S314 - written by the child
        skipped = case.find("skipped")
        yield PytestResult(
            name=case.get("name", ""),
            failures=tuple(one.get("message", "") for kind in ("failure", "error") for one in case.iter(kind)),
            skipped=None if skipped is None else skipped.get("message", ""),
            took_s=float(case.get("time", "0")),
        )
