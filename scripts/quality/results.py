"""Results of a run: what was served, each answer, and the shares."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from contracts.exit_codes import ExitCode
from scripts.cli.measured.identity import deployment_key
from scripts.quality.chance import RightShare
from scripts.quality.items import KINDS, Kind

SCHEMA_VERSION: Final = 1
AnswerVerdict = Literal["right", "wrong", "unknown"]
"""`unknown`: the server returned no answer to judge."""
Ending = Literal["done", "interrupted", "unreachable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedAnswer:
    """One answer. Its fields are one line of `answers.jsonl`."""

    id: str
    kind: Kind
    verdict: AnswerVerdict
    asked: str
    expected: str
    found: str
    fault: str
    text: str
    """Content of the response, shortened."""
    prompt_tokens: int | None
    completion_tokens: int | None
    elapsed_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedDeployment:
    """What answered. None for what is unknown, as most is without a stack."""

    model: str
    """Name sent as `model`."""
    max_model_len: int | None
    vllm_version: str | None
    simulated: str | None
    """Name of the simulator; None for a real server."""
    stack: str | None = None
    checkpoint: str | None = None
    adapter: str | None = None
    """Name of the LoRA adapter that answered; None for the model itself."""
    weights: str | None = None
    """Scheme of the weights, such as bf16 or w4a16."""
    kv_cache: str | None = None
    """Type of the KV cache."""
    accelerator: str | None = None
    image: str | None = None
    usd_per_hour: float | None = None
    """Planned price."""
    image_digest: str | None = None
    settings_sha256: str | None = None
    """Together with the digest: the deployment, as in `results/STACK.measured.json`."""

    @property
    def deployment(self) -> str | None:
        """Identity of the deployment, as in a sweep's `run.json`; None without a stack."""
        return deployment_key(self.image_digest, self.settings_sha256)


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityHeader:
    """`quality.json`: what was asked of what."""

    schema_version: int
    date: str
    """RFC 3339, UTC."""
    url: str
    set_sha256: str
    """Identity of all questions with their right answers and the judges."""
    planned: int
    """Questions to ask."""
    thinking: bool
    served: ServedDeployment
    selected: bool = False
    """True if options left out questions that the server could answer."""
    left_out: Mapping[str, str] = field(default_factory=dict[str, str])
    """Reason, by kind of question, or for those that are too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityResult:
    """A run, complete or not."""

    folder: str
    header: QualityHeader
    answers: tuple[JudgedAnswer, ...]

    @property
    def is_complete(self) -> bool:
        """True if every question that the server could answer was asked."""
        return len(self.answers) >= self.header.planned

    @property
    def represents_stack(self) -> bool:
        """True if the run is complete, has all questions, and no adapter answered."""
        return self.is_complete and not self.header.selected and self.header.served.adapter is None

    @property
    def name(self) -> str:
        """The stack, or the name of the model."""
        return self.header.served.stack or self.header.served.model

    @property
    def unknown(self) -> int:
        """Questions without an answer to judge."""
        return sum(one.verdict == "unknown" for one in self.answers)

    def share(self, kind: Kind | None = None) -> RightShare:
        """Return the share of right answers of one kind, or of all."""
        return share_of([one for one in self.answers if kind in (None, one.kind)])


def share_of(answers: Sequence[JudgedAnswer]) -> RightShare:
    """Return the share of right answers among those that were judged."""
    judged = [one for one in answers if one.verdict != "unknown"]
    return RightShare(right=sum(one.verdict == "right" for one in judged), judged=len(judged))


def kinds_of(result: QualityResult) -> Sequence[Kind]:
    """Return the kinds with answers, in order."""
    found = {one.kind for one in result.answers}
    return [kind for kind in KINDS if kind in found]


def exit_code(result: QualityResult, ending: Ending) -> ExitCode:
    """Return the exit code of a run. Wrong answers are its result, not its failure; missing answers are."""
    if ending == "interrupted":
        return ExitCode.INTERRUPTED
    if ending == "unreachable":
        return ExitCode.REFUSED
    return ExitCode.DONE if result.is_complete and result.answers and not result.unknown else ExitCode.FAILED
