"""Record of a stack that an assistant deployed with a limit in hours: the plans that the user approved."""

from dataclasses import dataclass
from typing import Final

from gemma_serving.contracts.fields import ContractError, from_json, json_object
from gemma_serving.engine.backend import memory

LIMIT: Final = "limit-"
"""Start of the names of these records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitRecord:
    """The deployments of one stack that the user approved, and the stack before the first of them."""

    project: str
    """Google Cloud project."""
    plans: tuple[str, ...]
    """Id of each approved plan, which is the message of its update."""
    since: str
    """Time of the first approval (RFC 3339, UTC)."""
    before: str = ""
    """The newest entry of the history before the first approval; empty if there was none."""


def limit_name(stack: str) -> str:
    """Return the name of a stack's record. A process that will delete the stack has its lock."""
    return f"{LIMIT}{stack}.json"


def limit_record(stack: str) -> LimitRecord | None:
    """Return the record of a stack; None without one that only this user can have written."""
    try:
        return from_json(LimitRecord, json_object(memory().read(limit_name(stack)) or ""))
    except ContractError:
        return None
