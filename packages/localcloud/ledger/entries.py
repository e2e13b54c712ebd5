"""Ledger entries, read from the TOML files in this folder.

Each file can contain `[[assumption]]` and `[[not_modelled]]` tables. To add an entry, append it to any of the files or add a file.
"""

import re
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

Text = Annotated[str, Field(min_length=1)]
Danger = Literal["critical", "high", "medium", "low"]
DANGERS: Final[dict[Danger, str]] = {
    "critical": "A stack does not serve, is unreachable, or leaves a billed machine. Only a real run detects it.",
    "high": "A command fails, a wrong result is trusted, or money is lost, in a common situation.",
    "medium": "An extra step, or a wrong wait, price or message, in a possible situation.",
    "low": "Affects only unusual settings, hand-written requests or the local cloud's own tests.",
}
"""Effect on a user if an entry is false, by danger, worst first."""


_DEPLOYED: Final = re.compile(r"pulumi|scripts\.|docker |on (?:a|any) (?:VM|TPU)|SERVICE_URL|\bssh\b")
"""Commands that need a deployed resource."""


class LedgerError(Exception):
    """A file of the ledger is invalid. The message is one sentence with the file's name."""


class _LedgerModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class AssumedAnswer(_LedgerModel):
    """The answer that Google is assumed to return to the request in an entry's `try`; `localcloud try` compares it."""

    status: Annotated[int, Field(ge=200, lt=600)]
    """The HTTP status. For an operation's error, the status of its code."""
    words: Text
    """A regular expression that the answer matches, ignoring case. Without it, another cause can have the same status."""
    operation: bool = False
    """True if the answer comes from the operation that the request starts."""
    refuted: str = ""
    """A regular expression for the answer of any step that shows that the entry is false. With it, an answer that matches neither is unknown."""


class Assumption(_LedgerModel):
    """One assumption of the local cloud about Google."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
    """Unique in the ledger, in kebab-case."""
    statement: Text
    """Google's behavior, in one or two sentences."""
    source: Text
    """Google's statement, with the source's date if it has one; `assumed` without a source."""
    kind: Literal["refusal", "behavior", "lenient"]
    """`refusal`: Google answers with an error. `behavior`: Google does it. `lenient`: the local cloud does not, so it is more lenient than Google."""
    danger: Danger
    """Severity for a user if the statement is false: one of DANGERS."""
    if_false: Text
    """The effect on a user, in one sentence."""
    test: str
    """The test that fails if the local cloud stops doing so: `FILE::[CLASS::]FUNCTION` or with `[PARAMETERS` at the end. Empty for kind `lenient`."""
    how_to_try: Annotated[str, Field(alias="try", min_length=1)]
    """The command that shows it on a real project. With `answer`, a sequence of the commands of `localcloud.trials.requests_of_entries`."""
    stack: Literal["", "try-tpu", "try-l4"] = ""
    """The stack that `try` deploys for it, once for all entries that name it."""
    answer: AssumedAnswer | None = None
    """The assumed answer to the last of these commands. None: it must be tried manually."""
    cost_usd: Annotated[float, Field(ge=0)]
    """Cost of trying it alone, in USD at the planner's prices."""
    tried: str
    """Date, place and result of a trial on a real project. Empty if not tried."""
    quotes: tuple[Text, ...] = ()
    """The sentences of the discovery documents that it enforces, verbatim."""

    @model_validator(mode="after")
    def _tested(self) -> Self:
        if (self.kind == "lenient") != (self.test == ""):
            raise ValueError("a refusal or behavior names its test, but a lenient entry names none")
        if self.kind == "lenient" and self.quotes:
            raise ValueError("a lenient entry enforces nothing, so it has no quotes")
        return self


def why_by_hand(entry: Assumption) -> str:
    """Return what trying an entry without an expected answer requires."""
    command = entry.how_to_try
    if entry.cost_usd > 0 or _DEPLOYED.search(command):
        return "a deployed stack, service or machine"
    if command.startswith(("gcloud", "api", "curl")):
        return "another account or policy, or a manual check of the answer"
    return "steps other than requests"


class NotModelled(_LedgerModel):
    """Sentences of the discovery documents that the local cloud does not enforce, for one reason."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
    reason: Text
    """The reason, as a sentence."""
    unsent: tuple[Text, ...] = ()
    """Fields that no recorded request sends, such as `compute.beta RouterBgp.*`: all their sentences belong to this entry."""
    quotes: tuple[Text, ...] = ()
    """Single sentences, verbatim."""


class Ledger(_LedgerModel):
    """All entries, by file name and then in the order of the file."""

    assumptions: Annotated[tuple[Assumption, ...], Field(validation_alias="assumption")] = ()
    not_modelled: tuple[NotModelled, ...] = ()


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
        assumptions=tuple(entry for part in parts for entry in part.assumptions),
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
