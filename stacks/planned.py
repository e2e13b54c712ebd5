"""Convert settings into the planner's question, and stop the program if the plan blocks the stack."""

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from gemma_serving.cloud.model_files import PROJECT, read_model
from gemma_serving.cloud.price_file import book_of
from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.planning.data.checkpoints import with_owner
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.memory.margins import margin_words
from gemma_serving.planning.model.spec import ModelSpec
from gemma_serving.planning.question.drafters import named_drafter
from gemma_serving.planning.question.types import Plan
from gemma_serving.planning.rules.findings import counted_notes, notes_of
from gemma_serving.planning.settings.accepted import acceptable_ids
from gemma_serving.planning.settings.finding import Finding
from gemma_serving.planning.settings.question import Facts, Question, WeightsMode
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.planning.solve.remedy_wording import (
    Wording,
    decode_of,
    message_of,
    remedy_of,
    together_text,
    with_band,
)
from gemma_serving.planning.units import CLOSE, figure
from gemma_serving.stacks.extra_checkpoints import extra_checkpoints


def today() -> str:
    """Return the date, YYYY-MM-DD in UTC: the planner has no clock."""
    return datetime.now(UTC).date().isoformat()


def to_question(settings: Settings, folder: Path = PROJECT, *, today: str | None = None) -> Question:
    """Return the planner's view of the settings, with everything that the planner can judge.

    `folder` has the files that settings name. Without `today` the age of prices is not checked.
    Raises PlanningError if a file that the settings name cannot be read or is invalid.
    """
    facts = Facts(
        platform="cloud-run" if settings.cloud_run else "tpu-vm",
        weights_mode=_weights_mode(settings),
        has_api_key=settings.has_secret("apiKey"),
        staged_parts=tuple(extra.source for extra in extra_checkpoints(settings) if extra.digest is not None),
        model_spec=_model(settings.model_config, folder, settings.model, key="modelConfig"),
        draft_spec=_model(settings.draft_config, folder, named_drafter(settings.vllm), key="draftConfig"),
        price_book=book_of(settings.prices, folder),
        today=today,
    )
    return Question(settings, facts)


def headline(plan: Plan) -> str:
    """Return the plan in two lines; in one for a model that does not fit."""
    memory, startup = plan.memory, plan.known_startup
    verdict = {"fits": "fits", "out-of-memory": "does not fit", "blocked": "is blocked"}[plan.verdict]
    risk = f", but may fail ({margin_words(plan.margin)})" if plan.fits and plan.margin else ""
    replicas = f" of each of {plan.replicas} replicas" if plan.replicas > 1 else ""
    fit = (
        f"{with_owner(plan.model)} {verdict} on {plan.accelerator}{risk}. "
        f"Weights: {figure(memory.weights_gib, CLOSE)} of {memory.usable_gib:.1f} GiB per device. "
        f"KV cache{replicas}: {figure(memory.kv_tokens, CLOSE)} tokens "
        f"({figure(memory.max_concurrency, CLOSE)} concurrent max-length requests)."
    )
    if plan.verdict == "out-of-memory":
        return fit
    if startup is None or plan.known_throughput is None:
        return f"{fit}\nStart and speed: unknown."
    speed = with_band(decode_of(plan), "tok/s for one request")
    return f"{fit}\nStarts in {startup.ready_words}. Speed: {speed}."


def preview_lines(plan: Plan, stack: str, wording: Wording) -> Iterator[tuple[str, bool]]:
    """Yield the lines of a preview, each with whether it is a warning.

    A blocking finding that was not accepted is part of the error that stops the program.
    """
    for line in headline(plan).splitlines():
        yield line, False
    notes = notes_of(plan)
    accepted = [finding.id for finding in plan.findings if finding.id in plan.accepted and finding not in notes]
    if plan.bill:
        yield f"Costs {plan.bill}", False
    for finding in plan.findings:
        if finding.severity != "block" and finding not in notes and finding.id not in accepted:
            yield finding_text(finding, wording), finding.severity == "warn"
    read = [counted_notes(plan), f"accepted findings {', '.join(accepted)}" if accepted else ""]
    if line := ", ".join(filter(None, read)):
        yield notes_line(stack, line, is_shown_by_plan=bool(accepted)), False


def notes_line(stack: str, what: str, *, is_shown_by_plan: bool) -> str:
    """Return the line that names what a preview only counts, with the command that shows it.

    `is_shown_by_plan`: `gemma plan` shows a part of it, and names the option for the rest.
    """
    return f"{what}: `gemma plan {stack}{'' if is_shown_by_plan else ' --explain'}`"


def doctor_hint(stack: str) -> str:
    """Return the sentence that names the command which finds missing APIs and permissions."""
    return f"Run `gemma doctor {stack}` to see the faults and how to fix them."


def require_unblocked(plan: Plan, stack: str, wording: Wording, more: Sequence[Finding] = ()) -> None:
    """Raise CommandRefusedError if findings block the stack and were not accepted. `more`: findings that no setting accepts."""
    stopping = [*plan.stopping, *(one for one in more if one.severity == "block")]
    if not stopping:
        return
    lines = [finding_text(finding, wording) for finding in stopping]
    lines += filter(None, [together_text(plan.together_to_start, wording)])
    ids = ", ".join(finding.id for finding in stopping)
    is_acceptable = all(finding.id in acceptable_ids() for finding in stopping)
    all_ids = ", ".join((*plan.accepted, ids))
    accept = f" To deploy anyway, set gemma-serving:acceptFindings: [{all_ids}]." if is_acceptable else ""
    hint = f"To see all figures, run `gemma plan {stack}`.{accept}"
    raise CommandRefusedError("\n".join([f"Stack {stack} is blocked by {ids}. Nothing was changed.", *lines, hint]))


def finding_text(finding: Finding, wording: Wording) -> str:
    """Return the text of a finding: its id, message, and the change to the settings file."""
    return f"{finding.id}: {message_of(finding, wording)} {remedy_of(finding, wording)}".rstrip()


def _model(file: str | None, folder: Path, name: str | None, *, key: str) -> ModelSpec | None:
    if file is None:
        return None
    try:
        return read_model(folder / file, name=name)
    except PlanningError as error:
        raise PlanningError(f"gemma-serving:{key} = {json.dumps(file)}: {error}") from None


def _weights_mode(settings: Settings) -> WeightsMode:
    if settings.weights == "hub":
        return "hub"
    if settings.weights == "prefetched-image":
        return "image"
    if settings.streams_on_tpu:
        return "streamer"
    return settings.cloud_run.mount.mode if settings.cloud_run else "disk"
