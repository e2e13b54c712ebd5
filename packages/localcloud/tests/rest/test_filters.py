"""List filters."""

import pytest

from localcloud.rest.errors import CloudError
from localcloud.rest.filters import chosen

ENTRIES = [
    ("1", {"severity": "INFO", "timestamp": "2026-11-20T10:00:00.5Z", "size": 9, "logName": "a"}),
    ("2", {"severity": "ERROR", "timestamp": "2026-11-20T12:00:00Z", "size": 10, "logName": "b"}),
    ("3", {"logName": "c"}),
]


@pytest.mark.parametrize(
    ("expression", "kept"),
    [
        ('timestamp>="2026-11-20T12:00:00+01:00"', ["2"]),
        ('timestamp<"2026-11-20T11:00:00Z"', ["1"]),
        ('timestamp>="2026-11-19T00:00:00Z" AND severity>=WARNING', ["2"]),
        ("severity<ERROR", ["1", "3"]),
        ("size>9", ["2"]),
        ("size<=9", ["1"]),
        ('logName>"a"', ["2", "3"]),
        ('size>"text"', []),
        ("severity eq ERROR", ["2"]),
        ("severity ne ERROR", ["1", "3"]),
    ],
)
def test_comparisons_compare_times_numbers_and_severities(expression: str, kept: list[str]):
    assert [item["logName"] for _, item in ENTRIES if item in [found for _, found in chosen(ENTRIES, expression)]] == [
        {"1": "a", "2": "b", "3": "c"}[key] for key in kept
    ]


def test_an_expression_outside_the_supported_part_is_refused():
    with pytest.raises(CloudError, match="Unparseable filter"):
        chosen(ENTRIES, "severity=INFO OR")
