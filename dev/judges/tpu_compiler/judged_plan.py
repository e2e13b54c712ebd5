"""Google's compiler as judge of a plan: what is asked, and the answer next to the plan."""

import re
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from dev.judges.tpu_compiler import environment
from dev.judges.tpu_compiler.answer import CompileAnswer, Event, Program, Stage, Total, answer_of
from dev.judges.tpu_compiler.child import command_of, run_child
from dev.judges.tpu_compiler.confined import clean_environment
from dev.judges.tpu_compiler.model_config import gemma4_config, gemma4_drafter_config
from dev.judges.tpu_compiler.question import CompileQuestion, require_topology
from dev.judges.tpu_compiler.store import key_of, store_answer, stored_answer
from dev.judges.tpu_compiler.verdict import CompileVerdict, Planned, judgement, planted_lie
from dev.judges.tpu_compiler.wheels import Nearest, Wheels, wheels_for
from gemma_serving.cloud.model_files import CONFIG, PROJECT, read_object
from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.planning.cost.subject import Subject
from gemma_serving.planning.data.checkpoints import find_checkpoint
from gemma_serving.planning.data.tables import data_file
from gemma_serving.planning.question.drafters import named_drafter
from gemma_serving.planning.question.types import Plan
from gemma_serving.planning.settings.vllm_args import vllm_arguments
from gemma_serving.planning.units import duration
from gemma_serving.scripts.cli.command import last_command, print_progress
from gemma_serving.scripts.cli.prompts import confirm
from gemma_serving.scripts.cli.transfer import overwrite_line
from gemma_serving.scripts.plan.plan_options import Judging, QuestionOptions
from gemma_serving.scripts.plan.question import settings_of

if TYPE_CHECKING:
    from gemma_serving.planning.settings.stack import Settings

_WORK: Final[Mapping[str, str]] = {
    "import": "loading JAX",
    "devices": "loading vLLM and Google's compiler",
    "config": "reading vLLM's options",
    "runner": "building the runner",
    "weights": "building the model",
    "kv-cache": "sizing the KV cache",
    "programs": "listing the programs",
}
"""Work of each stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedPlan:
    """An answer next to the plan."""

    planned: Planned
    answer: CompileAnswer
    judgement: CompileVerdict
    gap: str
    """Difference between the image and the wheels, as a sentence."""
    topology: str
    is_stored: bool
    seconds: float


def compiler_answer(
    question: QuestionOptions,
    options: Judging,
    subject: Subject,
    plan: Plan,
    *,
    wheels: Wheels | None = None,
    cache: Path | None = None,
) -> JudgedPlan:
    """Return the judge's answer about a plan: the stored one, or a new one. Raises CommandRefusedError and PlanningError.

    `wheels`: others than those nearest to the image. `cache`: a folder for the compiled programs, as a server on a TPU stores them.
    """
    planted_lie()
    asked = compile_question(question, subject, plan, options.compile or "default")
    if cache is not None:
        asked = replace(asked, environment={**asked.environment, "VLLM_XLA_CACHE_PATH": str(cache.resolve())})
    image = subject.resolved.question.settings.image
    nearest = wheels_for(plan.vllm_version, image.digest)
    if wheels is not None:
        nearest = Nearest(wheels=wheels, gap=f"The wheels are {wheels.words}, not those nearest to the image.")
    folder = environment.folder(nearest.wheels).parent
    environment.require_own(folder / "answers")
    key = key_of(asked, nearest.wheels.lock)
    answer, began_s = stored_answer(folder / "answers", key), time.monotonic()
    is_stored = answer is not None
    if answer is None:
        python = _installed(nearest.wheels, is_agreed=options.yes)
        answer = _new_answer(asked, python, folder, key, stores_programs=cache is not None)
    answer, planned = _of_the_image(answer, nearest.wheels), planned_of(plan)
    return JudgedPlan(
        planned=planned,
        answer=answer,
        judgement=judgement(planned, answer),
        gap=nearest.gap,
        topology=asked.topology.name,
        is_stored=is_stored,
        seconds=time.monotonic() - began_s,
    )


def _of_the_image(answer: CompileAnswer, wheels: Wheels) -> CompileAnswer:
    """Return the answer; one without a verdict if the wheels reject only what the image has and they have not."""
    refusal = answer.refusal
    if refusal is None or not wheels.lacks or not re.search(wheels.lacks_pattern, refusal.words):
        return answer
    return CompileAnswer(reason=f"the wheels lack {wheels.lacks}, which the image has: {refusal.words.rstrip('.')}")


def planned_of(plan: Plan) -> Planned:
    """Return the figures of a plan that the judge compares."""
    memory = plan.memory
    return Planned(
        fits=plan.fits,
        weights_gib=memory.weights_gib,
        kv_gib=memory.kv_gib,
        kv_blocks=memory.kv_blocks,
        outside_gib=memory.headroom_gib,
        outside_minimum_gib=memory.outside_needs_gib,
        outside_recommended_gib=memory.outside_enough_gib,
    )


def compile_question(question: QuestionOptions, subject: Subject, plan: Plan, programs: str) -> CompileQuestion:
    """Return what the judge builds: the words that the stack sends, or those of the planned options without a stack."""
    require_topology(subject.resolved)
    settings = settings_of(question) if question.stack else None
    device = subject.resolved.accelerator
    drafter = named_drafter(plan.vllm) or ""
    return CompileQuestion(
        arguments=_arguments(settings, plan),
        environment=dict(plan.environment),
        accelerator_type=device.name,
        devices=device.devices,
        usable_gib=device.usable_gib,
        config=_config(question, settings, subject),
        drafter=drafter,
        drafter_config=_drafter_config(question, settings, drafter) if drafter else None,
        programs=programs,
        copies=subject.resolved.dp,
    )


def _arguments(settings: "Settings | None", plan: Plan) -> tuple[str, ...]:
    if settings is None:
        return vllm_arguments(plan.vllm, model_or_path=plan.model)
    from gemma_serving.stacks.server_command import server_arguments, with_served_name  # noqa: PLC0415 - only with a stack

    return server_arguments(settings, with_served_name(settings, plan.vllm), model_or_path=settings.model)


def _config(question: QuestionOptions, settings: "Settings | None", subject: Subject) -> Mapping[str, object]:
    """Return the model's config.json: the user's or the hub's as it is, else the recorded one."""
    file = question.config or (PROJECT / settings.model_config if settings and settings.model_config else None)
    if question.from_hub:
        from gemma_serving.cloud.hub import config_of  # noqa: PLC0415 - only with --from-hub

        return config_of(settings.model if settings else question.model or "")[0]
    if file is not None:
        return _object_of(file)
    resolved = subject.resolved
    found, scheme = find_checkpoint(resolved.model_id), resolved.scheme.name
    if found is None or found.scheme not in {"bf16", "w4a16"}:
        raise CommandRefusedError(f"--compile needs the config.json of {resolved.model_id}. Add --from-hub.")
    recorded = data_file("models.json")[found.architecture]["config"]
    return gemma4_config(recorded, is_w4a16=scheme == "w4a16")


def _drafter_config(question: QuestionOptions, settings: "Settings | None", drafter: str) -> Mapping[str, object]:
    if question.draft_config is not None:
        return _object_of(question.draft_config)
    if settings is not None and settings.draft_config is not None:
        return _object_of(PROJECT / settings.draft_config)
    found = find_checkpoint(drafter)
    if found is None:
        raise CommandRefusedError(
            f"--compile needs the config.json of the draft model {drafter}. Add --draft-config PATH."
        )
    row = data_file("models.json")[found.architecture]
    return gemma4_drafter_config(row["drafter"], row["config"])


def _object_of(path: Path) -> Mapping[str, object]:
    return read_object(path / CONFIG if path.is_dir() else path)


def _installed(wheels: Wheels, *, is_agreed: bool) -> Path:
    """Return the Python of the wheels' environment, installed after one question. Raises CommandRefusedError."""
    python = environment.installed(wheels)
    if python is not None:
        return python
    cost = (
        f"{wheels.download_gb:.1f} GB to download, {wheels.disk_gb:.1f} GB on disk, about {duration(wheels.install_s)}, in "
        f"{environment.folder(wheels).parent}"
    )
    if not is_agreed:
        confirm(
            f"Install Google's TPU compiler and vLLM for this image: {cost}?",
            without_terminal=f"Google's TPU compiler and vLLM for this image are not installed ({cost}), and stdin is not a terminal. "
            f"Run `{shlex.join((*last_command(), '--yes'))}` to install them.",
            declined="Nothing was installed, and the plan was not judged.",
        )
    return environment.install(wheels, report=lambda text: print_progress("plan", text))


def _new_answer(
    asked: CompileQuestion, python: Path, folder: Path, key: str, *, stores_programs: bool
) -> CompileAnswer:
    """Return the answer of a child process. A complete one is stored."""
    log = folder / "logs" / f"{key[:16]}.log"
    work = Path(tempfile.mkdtemp(prefix="gemma-compile-"))
    try:
        request, home = asked.write(work), work / "home"
        home.mkdir()
        variables = {
            "TMPDIR": str(home),
            "VLLM_CACHE_ROOT": str(folder / "vllm"),
            "VLLM_DISABLE_COMPILE_CACHE": "0" if stores_programs else "1",
        }
        with _CompileProgress() as progress:
            events, reason = run_child(
                command_of(python, request),
                clean_environment({**asked.environment, **variables}, home),
                log,
                report=progress.note,
            )
    finally:
        shutil.rmtree(work, ignore_errors=True)
    answer = answer_of(events, reason)
    if not reason:
        log.unlink(missing_ok=True)
        store_answer(folder / "answers", key, events)
    return answer


class _CompileProgress:
    """One line on a terminal; otherwise a line for each piece of work."""

    def __init__(self) -> None:
        self._work = "starting"
        self._total = 0
        self._compiled = 0
        self._began_s = time.monotonic()
        self._said = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if sys.stderr.isatty():
            overwrite_line("")

    def note(self, event: Event | None) -> None:
        """Show what is being done, and for how long."""
        if isinstance(event, Stage):
            self._start(_WORK[event.name])
        elif isinstance(event, Total):
            self._total = event.total
        elif isinstance(event, Program):
            self._compiled += 1
        if isinstance(event, Total | Program) and self._compiled < self._total:
            self._start(f"compiling program {self._compiled + 1} of {self._total}")
        self._show()

    def _start(self, work: str) -> None:
        self._work, self._began_s = work, time.monotonic()

    def _show(self) -> None:
        if sys.stderr.isatty():
            overwrite_line(f"plan: {self._work}, {duration(time.monotonic() - self._began_s)}")
        elif self._said != self._work:
            self._said = self._work
            print_progress("plan", self._work)
