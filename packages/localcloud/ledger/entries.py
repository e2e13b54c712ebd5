"""The entries of the ledger, read from the TOML files beside this module.

Each file may hold `[[assumption]]` and `[[not_modelled]]` tables. To add an entry, append it to any of the files or add a file.
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
    "critical": "A stack does not serve, cannot be reached, or leaves a billed machine, and no test can see it before a real run.",
    "high": "A command fails, a wrong answer is trusted, or money is lost, in a situation that a user will meet.",
    "medium": "A detour, a wrong wait, price or message, in a situation that a user can meet.",
    "low": "Only unusual settings, hand-written requests or the local cloud's own tests notice.",
}
"""What breaks for a user if an entry is false, the worst first, and what each word means."""


_DEPLOYED: Final = re.compile(r"pulumi|scripts\.|docker |on (?:a|any) (?:VM|TPU)|SERVICE_URL|\bssh\b")
"""Commands that need something that runs."""


class LedgerError(Exception):
    """A file of the ledger is invalid. The message is one sentence with the file's name."""


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Answer(_Entry):
    """What Google is assumed to answer to the request in an entry's `try`; `localcloud try` compares it."""

    status: Annotated[int, Field(ge=200, lt=600)]
    """The HTTP status; for an error of an operation, the one that belongs to its code."""
    words: Text
    """A regular expression that the answer contains, in any case: without it another cause could have the same status."""
    operation: bool = False
    """Whether the answer is that of the operation that the request starts."""


class Assumption(_Entry):
    """One thing that the local cloud assumes about Google."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
    """Unique in the ledger, in kebab-case."""
    statement: Text
    """What Google does, as one or two sentences."""
    source: Text
    """Where Google says so, with a date where the source has one; `assumed` if nothing says so."""
    kind: Literal["refusal", "behaviour", "kinder"]
    """`refusal`: Google answers with an error. `behaviour`: Google does it. `kinder`: the local cloud does not do it."""
    danger: Danger
    """How bad it is for a user if the statement is false: one of DANGERS."""
    if_false: Text
    """What then breaks for a user, as one sentence."""
    test: str
    """The test that fails if the local cloud stops doing so: `FILE::[CLASS::]FUNCTION` or with `[PARAMETERS` at the end. Empty if kinder."""
    how_to_try: Annotated[str, Field(alias="try", min_length=1)]
    """The command that shows it on a real project. With `answer`, a sequence of `api`, `curl` and `sleep` commands."""
    answer: Answer | None = None
    """What the last of these commands is assumed to get. None: a person has to try it."""
    cost_usd: Annotated[float, Field(ge=0)]
    """What trying it costs, in USD, at list prices."""
    tried: str
    """When and where it was tried on a real project, and what came of it. Empty if nobody has."""
    quotes: tuple[Text, ...] = ()
    """The sentences of the discovery documents that it enforces, word by word."""

    @model_validator(mode="after")
    def _tested(self) -> Self:
        if (self.kind == "kinder") != (self.test == ""):
            raise ValueError("a refusal or behaviour names its test, and a kinder entry names none")
        if self.kind == "kinder" and self.quotes:
            raise ValueError("a kinder entry enforces nothing, so it has no quotes")
        return self


def why_by_hand(entry: Assumption) -> str:
    """Return what an entry without an expected answer needs instead of a request."""
    command = entry.how_to_try
    if entry.cost_usd > 0 or _DEPLOYED.search(command):
        return "a deployed stack, service or machine"
    if command.startswith(("gcloud", "api", "curl")):
        return "another account or policy, or someone who reads the answer"
    return "steps that are not requests"


class NotModelled(_Entry):
    """Sentences of the discovery documents that the local cloud does not enforce, for one reason."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
    reason: Text
    """Why, as a sentence."""
    unsent: tuple[Text, ...] = ()
    """Fields that no recorded request sends, such as `compute.beta RouterBgp.*`: all their sentences belong to this entry."""
    quotes: tuple[Text, ...] = ()
    """Single sentences, word by word."""


class Ledger(_Entry):
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
    """Return the ledger of several files, given by name. Raises LedgerError for an invalid file and an id that is used twice."""
    parts = [_parse(name, text) for name, text in texts.items()]
    ledger = Ledger(
        assumptions=tuple(entry for part in parts for entry in part.assumptions),
        not_modelled=tuple(entry for part in parts for entry in part.not_modelled),
    )
    seen: set[str] = set()
    for entry in (*ledger.assumptions, *ledger.not_modelled):
        if entry.id in seen:
            raise LedgerError(f"The ledger has two entries with the id '{entry.id}'; rename one of them.")
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
