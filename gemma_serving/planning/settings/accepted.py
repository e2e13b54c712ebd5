"""The findings that `acceptFindings` may name."""

from collections.abc import Mapping, Sequence
from functools import cache

from gemma_serving.contracts.spelling import did_you_mean
from gemma_serving.planning.data.tables import data_file


@cache
def _rules() -> Mapping[str, tuple[str, bool]]:
    """Return the title of each rule, and whether its finding can be accepted."""
    return {row["id"]: (row["what"], row.get("is_acceptable", True)) for row in data_file("rules.json")}


@cache
def acceptable_ids() -> tuple[str, ...]:
    """Return the ids that `acceptFindings` may name."""
    return tuple(identifier for identifier, (_, is_acceptable) in _rules().items() if is_acceptable)


def check_accepted(ids: Sequence[str]) -> Sequence[str]:
    """Return a list of accepted findings. Raises ValueError with its problem, as one sentence without a full stop."""
    for identifier in ids:
        if identifier not in _rules():
            near = did_you_mean(identifier, acceptable_ids())
            raise ValueError(f'"{identifier}" is not a finding.{near} docs/reference/rules.md lists them')
        what, is_acceptable = _rules()[identifier]
        if not is_acceptable:
            raise ValueError(f"{identifier} ({what}) cannot be accepted; remove it and change the deployment")
    return ids
