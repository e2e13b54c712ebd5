"""What commands say about one stack, as claims that can be compared with the cloud: whether a server exists, and what it costs."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypedDict

from gemma_serving.cloud.kinds import QUEUED, SERVICE
from gemma_serving.contracts.exit_codes import ExitCode
from tests.scripts.test_printed_commands import refusal_of

REACHED: Final = "The server was reached."
"""What a test lets a command say that opens its access to the server."""
CENT: Final = 0.0151
"""Two roundings to a cent, and some seconds between two questions."""
_RATE: Final = re.compile(r"\$([\d,.]+)/h")
_EXISTS: Final = re.compile(
    r"(?:Exists now: )?(?P<what>unknown|nothing|No server exists|[\d,]+ resources? in Google Cloud|[\d,]+ resources? found|capacity|service)"
)
_NO_CLAIM: Final = (
    "outputs of stack",
    "A teardown did not finish",
    "Cannot check whether",
    "that the stack's state does not have",
    "cannot be read",
    REACHED,
)
"""Refusals of a command that say nothing about whether the server exists, or that it does."""
_COMMAND: Final = r"(?:gemma|pulumi|gcloud) [^`\n]+"
_ORDERED: Final = re.compile(
    rf"(?<=[Rr]un )`({_COMMAND})`|^(?: +|Next: +| *next +)({_COMMAND}?)(?= +#|$)", re.MULTILINE
)
_NAMED: Final = re.compile(rf"`({_COMMAND})`")
EXPLAINS: Final = re.compile(r"--(?:help|explain|costs)$")
"""Commands that only say more about what is printed."""
READS: Final = re.compile(r"gemma (?:status|chat|smoke|logs|connect|plan|preview|doctor|capacity)\b")
"""Commands that change nothing."""
Word = Literal["yes", "waiting", "no", "unknown", ""]


@dataclass(frozen=True, kw_only=True)
class Truth:
    """What the cloud has of a stack, and what that costs."""

    word: Literal["yes", "waiting", "no"]
    usd_per_hour: float
    usd: tuple[float, float]
    """Least and most so far. They differ where nobody can know the end of a machine."""
    names: frozenset[str]
    """Full names of its queued resources and services, also of those that ended."""
    age_s: tuple[float, float] | None
    """Seconds since the first start, and since its request, which counts if nobody saw the start; None without one that a command can see."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a command says. None and "": it says nothing about it."""

    command: str
    word: Word = ""
    usd_per_hour: float | None = None
    usd: float | None = None
    is_least: bool = False
    age_s: float | None = None
    names: frozenset[str] | None = None
    unknown: tuple[str, ...] = ()
    """Why something is unknown."""
    said: str = ""

    def untrue(self, truth: Truth) -> Iterator[str]:
        """Yield what contradicts the cloud."""
        if self.word not in {"", "unknown", truth.word}:
            yield self.word
        if self.usd_per_hour is not None and abs(self.usd_per_hour - truth.usd_per_hour) > CENT:
            yield f"${self.usd_per_hour}/h"
        if self.names is not None and self.names != truth.names:
            yield str(sorted(self.names))
        least, most = truth.usd
        if self.usd is not None and (self.usd > most + CENT or (self.usd < least - CENT and not self.is_least)):
            yield f"${self.usd} so far"
        if self.age_s is not None and truth.age_s is not None and not self.is_least:
            least_s, most_s = truth.age_s
            if not least_s - 1 <= self.age_s <= most_s + 1:
                yield f"an age of {self.age_s} s"


class Asked(Protocol):
    """The stack that is asked about."""

    stack: str
    has_state: bool


class Run(Protocol):
    """Runs a command with words. Returns exit code, stdout and stderr."""

    def __call__(self, command: str, *words: str) -> tuple[int, str, str]: ...


def has_failed(out: str) -> bool:
    """Return whether a command printed nothing, or its error as its only object."""
    return not out or "error" in json.loads(out)


def of_status(world: Asked, run: Run) -> Claim:
    """Return what `gemma status` says."""
    code, out, err = run("status", "--stack", world.stack, "--json")
    if has_failed(out):
        assert code in {1, 2}, err
        word: Word = "unknown" if code == 1 or not world.has_state else "no"
        return Claim(command="status", word=word, unknown=(err,) if code == 1 else (), said=err)
    (found,) = [one for one in json.loads(out)["stacks"] if one["stack"] == world.stack]
    words: dict[str, Word] = {"deployed": "yes", "waiting": "waiting", "unknown": "unknown"}
    word, cloud = words.get(found["serves"]["word"], "no"), found["cloud"] or {}
    rate = cloud.get("usd_per_hour")
    return Claim(
        command="status",
        word=word,
        usd_per_hour=0.0 if word == "no" and rate is None else rate,
        usd=cloud.get("usd"),
        is_least=bool(cloud.get("usd_is_least")),
        age_s=cloud.get("age_s"),
        unknown=tuple(f"{one['source']}: {one['why']}" for one in found["unanswered"]),
        said=out,
    )


def of_teardown(world: Asked, run: Run) -> Claim:
    """Return what a dry run of `gemma teardown` says."""
    code, out, err = run("teardown", "--stack", world.stack, "--dry-run", "--json")
    if has_failed(out):
        is_unknown = code == ExitCode.FAILED
        return Claim(
            command="teardown", word="unknown" if is_unknown else "no", unknown=(err,) if is_unknown else (), said=err
        )
    receipt = json.loads(out)
    servers = [one for one in receipt["leaked"] if one["kind"] in {QUEUED, SERVICE}]
    rates = [one["usd_per_hour"] for one in servers]
    known = [one["usd_so_far"] for one in receipt["leaked"] if one["usd_so_far"] is not None]
    unknown = tuple(receipt["unknown"])
    return Claim(
        command="teardown",
        word="unknown" if unknown else "",
        usd_per_hour=None if None in rates or unknown else sum(rates),
        usd=sum(known) if servers and not unknown else None,
        names=None if unknown else frozenset(one["name"] for one in servers),
        unknown=unknown,
        said=out,
    )


def of_guard(owner: str, run: Run) -> Claim:
    """Return what a dry run of the guard says. `owner`: the stack's name in the labels."""
    code, out, err = run("teardown", "--all", "--over-limit", "--dry-run", "--json")
    if has_failed(out):
        assert code == ExitCode.FAILED, err
        return Claim(command="guard", unknown=(err,), said=err)
    found = json.loads(out)
    row = next((one for one in found["stacks"] if one["stack"] == owner), None)
    if row is None:
        unknown = tuple(found["unknown"])
        return Claim(command="guard", unknown=unknown, usd_per_hour=None if unknown else 0.0, said=out + err)
    unknown = (*found["unknown"], *row["unknown"])
    return Claim(
        command="guard",
        usd_per_hour=None if unknown else row["usd_per_hour"],
        usd=row["usd"],
        is_least=bool(unknown) or row["record"] != "present",
        age_s=row["age_s"],
        unknown=unknown,
        said=out + err,
    )


def of_up(text: str) -> Claim:
    """Return what `gemma up` says after a failure."""
    found = _EXISTS.match(text)
    assert found, text
    if found["what"] == "unknown" or "found" in found["what"]:  # more may exist
        return Claim(command="up", word="unknown", unknown=(text,), said=text)
    if found["what"] in {"nothing", "No server exists"}:
        return Claim(command="up", word="no", usd_per_hour=0.0, said=text)
    if "in Google Cloud" in found["what"]:
        rates = [float(rate.replace(",", "")) for rate in _RATE.findall(text)]
        unknown = (text,) if "an unknown price" in text else ()
        return Claim(command="up", usd_per_hour=None if unknown else sum(rates), unknown=unknown, said=text)
    return Claim(command="up", **_of_sentence(text), said=text)


def of_gemma(world: Asked, lines: Sequence[str]) -> Claim:
    """Return what `gemma` without words says."""
    starts = (f"  {world.stack} ", "The deployed stacks and their cost are unknown.")
    row = next((line for line in lines if line.startswith(starts)), "")
    if not row:
        return Claim(command="gemma", word="no", usd_per_hour=0.0, said="\n".join(lines))
    if "incomplete" in row or "unknown" in row:
        return Claim(command="gemma", word="unknown", said=row)
    return Claim(command="gemma", **_of_sentence(row), said=row)


def of_user(command: str, world: Asked, run: Run, *words: str) -> Claim:
    """Return what a command says that uses the server: it reaches it, or refuses."""
    code, _, err = run(command, "--stack", world.stack, *words)
    is_silent = code == 0 or not world.has_state or any(text in err for text in _NO_CLAIM)
    return Claim(command=command, word="" if is_silent else "no", said=err)


def of_logs(world: Asked, run: Run) -> Claim:
    """Return what `gemma logs` says beside the lines."""
    code, _, err = run("logs", "--stack", world.stack)
    is_refused = code == 2 and world.has_state and ("not deployed" in err or "has no server" in err)
    return Claim(command="logs", word="no" if is_refused or "Nothing serves" in err else "", said=err)


class _Cost(TypedDict, total=False):
    word: Word
    usd_per_hour: float
    unknown: tuple[str, ...]


def _of_sentence(text: str) -> _Cost:
    """Return word and rate of a sentence about the cost."""
    if "nothing now" in text or "Nothing serves" in text:
        return {"word": "no", "usd_per_hour": 0.0}
    if "nothing until its capacity" in text:
        return {"word": "waiting", "usd_per_hour": 0.0}
    if "if Google bills it" in text or "an unknown price" in text:
        return {"word": "unknown", "unknown": (text,)}
    rates = [float(rate.replace(",", "")) for rate in _RATE.findall(text)]
    return {"word": "yes", "usd_per_hour": rates[-1]} if rates else {}


def faults_of(
    claims: Sequence[Claim], truth: Truth, *, is_in_step: bool, has_resources: bool, is_readable: bool = True
) -> Iterator[str]:
    """Yield what contradicts the cloud, or another command.

    `is_in_step`: nothing happened in the cloud since the last `up`, except what the state foretells. `has_resources`: the state has some.
    `is_readable`: every source answers, so no command may say that it does not know.
    """
    for claim in claims:
        is_as_of_up = claim.command == "gemma"
        if is_as_of_up and not is_in_step:
            if claim.word == "no" and "Nothing serves" not in claim.said and truth.word != "no" and has_resources:
                yield f"gemma shows no stack, but {truth}"
            continue
        if claim.unknown and is_readable and not is_as_of_up:
            yield f"{claim.command} does not know, but every source answers: {claim.unknown}"
        yield from (f"{claim.command} says {what}, but {truth}: {claim.said}" for what in claim.untrue(truth))
    yield from _contradictions(claims)


def _contradictions(claims: Sequence[Claim]) -> Iterator[str]:
    """Yield costs so far that differ between two commands."""
    whole = [claim for claim in claims if claim.usd is not None and not claim.is_least and not claim.unknown]
    costs = {claim.command: claim.usd for claim in whole if claim.usd is not None}
    if costs and max(costs.values()) - min(costs.values()) > CENT:
        yield f"so far: {costs}"


def next_in(text: str, left_out: re.Pattern[str] = EXPLAINS) -> str:
    """Return the first command that a text says to run, else the first that it names; empty without one."""
    flat = re.sub(r"(?<=[\w,.`:]) *\n +(?=\w|`|\()", " ", text)
    for pattern, where in ((_ORDERED, text), (_ORDERED, flat), (_NAMED, flat)):
        for match in pattern.finditer(where):
            command = next(filter(None, match.groups())).strip()
            if not left_out.search(command):
                return command
    return ""


def next_of_status(text: str) -> str:
    """Return the next command of a report in JSON, or of an error."""
    first = text.partition("\n")[0]
    report = json.loads(first) if first.startswith("{") else {}
    return report["stacks"][0]["next_command"] if "stacks" in report else next_in(text)


def next_faults(texts: Mapping[str, str]) -> Iterator[str]:
    """Yield each printed command that does not exist, and two commands that name different changes of the stack as the next one. `texts`: by command."""
    found = {
        command: next_of_status(text) if command == "status" else next_in(text)
        for command, text in texts.items()
        if command != "teardown"  # who asks for its dry run wants to know what it deletes
    }
    yield from (
        f"{command}: {refused}"
        for command, line in found.items()
        if line.startswith("gemma ") and (refused := refusal_of(line))
    )
    changes = {command: line for command, line in found.items() if line and not READS.match(line)}
    if len(set(changes.values())) > 1:
        yield f"the next command differs: {changes}"
