"""Ledger entries, read from the TOML files in this folder.

`[[critical]]` and `[[assumption]]` are assumptions about Google, `[[enforced]]` and `[[not_modelled]]` sentences of discovery documents.
An `[[assumption]]` is one of which a false one makes a command fail, a wrong result trusted or money lost in a common situation, or one that a figure
or a page rests on.
"""

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

Text = Annotated[str, Field(min_length=1)]
Id = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
"""Unique in the ledger, in kebab-case."""


class LedgerError(Exception):
    """A file of the ledger is invalid. The message is one sentence with the file's name."""


class _LedgerModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Assumption(_LedgerModel):
    """One assumption of the local cloud about Google."""

    id: Id
    statement: Text
    """Google's behavior, in one or two sentences."""
    source: Text
    """Google's statement, with the source's date if it has one; `assumed` without a source."""
    test: str = ""
    """The test that fails if the local cloud stops doing so: `FILE::[CLASS::]FUNCTION` or with `[PARAMETERS` at the end. Empty if the local cloud
    does not do so, and is more lenient than Google."""


class CriticalAssumption(Assumption):
    """An assumption of which a false one leaves a stack that does not serve, is unreachable, or stays billed. Only Google can decide it."""

    if_false: Text
    """The effect on a user, in one sentence."""
    try_it: str = ""
    """Lines for a shell that decide it on a project, after `page.SHELL`. Empty if examples/one-evening.sh decides it."""
    true_if: str = ""
    """What these lines print if the assumption is true."""
    cost_usd: Annotated[float, Field(ge=0)] = 0.0
    """The most that these lines can cost, in USD at the planner's prices."""
    tried: str
    """Date, place and result of a trial on a real project. Empty if not tried."""


class Enforced(_LedgerModel):
    """Sentences of the discovery documents that the local cloud enforces, and the test that proves it."""

    test: Text
    quotes: tuple[Text, ...]
    """The sentences, verbatim."""


class NotModelled(_LedgerModel):
    """Sentences of the discovery documents that the local cloud does not enforce, for one reason."""

    id: Id
    reason: Text
    """The reason, as a sentence."""
    unsent: tuple[Text, ...] = ()
    """Fields that no recorded request sends, such as `compute.beta RouterBgp.*`: all their sentences belong to this entry."""
    quotes: tuple[Text, ...] = ()
    """Single sentences, verbatim."""


class Ledger(_LedgerModel):
    """All entries, by file name and then in the order of the file."""

    critical: tuple[CriticalAssumption, ...] = ()
    others: Annotated[tuple[Assumption, ...], Field(validation_alias="assumption")] = ()
    enforced: tuple[Enforced, ...] = ()
    not_modelled: tuple[NotModelled, ...] = ()

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """Return the critical and the other assumptions."""
        return (*self.critical, *self.others)


def load() -> Ledger:
    """Return the ledger of this distribution. Raises LedgerError."""
    found = sorted(
        (item for item in files("localcloud.ledger").iterdir() if item.name.endswith(".toml")), key=lambda i: i.name
    )
    return join({item.name: item.read_text(encoding="utf-8") for item in found})


def join(texts: Mapping[str, str]) -> Ledger:
    """Return the ledger of several files, by name. Raises LedgerError for an invalid file or a duplicate id."""
    parts = [_parse(name, text) for name, text in texts.items()]
    ledger = Ledger(
        critical=tuple(entry for part in parts for entry in part.critical),
        others=tuple(entry for part in parts for entry in part.others),
        enforced=tuple(entry for part in parts for entry in part.enforced),
        not_modelled=tuple(entry for part in parts for entry in part.not_modelled),
    )
    seen: set[str] = set()
    for entry in (*ledger.assumptions, *ledger.not_modelled):
        if entry.id in seen:
            raise LedgerError(f"The ledger has two entries with the id '{entry.id}'. Rename one of them.")
        seen.add(entry.id)
    return ledger


def _parse(name: str, text: str) -> Ledger:
    try:
        return Ledger.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise LedgerError(f"{name} is not TOML: {error}.") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(step) for step in first["loc"])
        raise LedgerError(f"{name}: {place}: {first['msg']}.") from None
