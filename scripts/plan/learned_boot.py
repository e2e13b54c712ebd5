"""A boot imported from its log: its deployment, and its text in the corpus format."""

import datetime as dt
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, cast

from contracts.errors import CommandRefusedError
from planning.data.checkpoints import id_of_folder
from planning.question.fields import changed
from planning.question.types import Deployment
from planning.question.vllm_args import OPTIONS, VllmOption
from scripts.plan.boot_log import BootReport, read_boot
from scripts.plan.learn_options import LearnOptions
from scripts.plan.question import Question, deployment_from, parse_set
from scripts.plan.toml_text import deployment_lines, toml_value

_FLAGS: Final[Mapping[str, VllmOption]] = {
    option.flag.removeprefix("--").replace("-", "_"): option for option in OPTIONS.values() if option.flag
}
"""The options that the planner supports, by vLLM's names."""
_WITHOUT_EFFECT: Final = frozenset(
    {"model", "model_tag", "host", "port", "api_key", "uvicorn_log_level", "revision", "allowed_origins", "middleware"}
)
"""Flags that do not affect memory or speed. `model` is read separately; keys are never shown."""
_SECRET: Final = re.compile(r"key|token|secret|password|credential")
_EXPECTED: Final = ("weights", "kv_tokens", "load", "compile", "restart")
"""Figures that the log of a complete start contains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedBoot:
    """An imported boot, and the parts that could not be read."""

    report: BootReport
    deployment: Deployment
    not_read: tuple[str, ...]
    """Flags in the log without a planner option. They are kept as extra arguments unless they may contain a secret."""
    missing: tuple[str, ...]
    """Figures missing from the log."""
    boot_id: str
    text: str
    """The boot in the corpus format."""


def read_log(options: LearnOptions, path: Path) -> LearnedBoot:
    """Return the boot recorded in a log. Raises PlanningError or CommandRefusedError if it cannot be read."""
    try:
        text = options.log.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise CommandRefusedError(f"Cannot read {options.log}: {error.strerror}. Pass the path of a log.") from None
    report = read_boot(text)
    deployment, not_read = deployment_of(report, options.question)
    boot_id = _boot_id(deployment, path)
    day = dt.datetime.fromtimestamp(options.log.stat().st_mtime, tz=dt.UTC).date()
    return LearnedBoot(
        report=report,
        deployment=deployment,
        not_read=not_read,
        missing=tuple(name for name in _EXPECTED if name not in report.figures),
        boot_id=boot_id,
        text=_toml(report, deployment, boot_id, citation=f"{options.log.name}, {day}", url=options.url, day=day),
    )


def deployment_of(report: BootReport, question: Question) -> tuple[Deployment, tuple[str, ...]]:
    """Return the deployment that ran, and the flags without a planner option.

    The log's flags override the stack's; the command line overrides both.
    """
    model = question.model or report.model
    accelerator = question.accelerator or report.accelerator
    if question.stack is None:
        if model is None:
            raise CommandRefusedError("The log does not name a model. Add --model ID.")
        if accelerator is None:
            raise CommandRefusedError("The log does not name an accelerator. Add --accelerator NAME.")
    named = question if question.stack else replace(question, model=_on_hub(model), accelerator=accelerator)
    deployment = deployment_from(replace(named, set=()))
    flags = {**report.derived, **report.arguments}
    others = {name: value for name, value in flags.items() if name not in {*_FLAGS, *_WITHOUT_EFFECT}}
    known: dict[str, object] = {
        f"vllm.{_FLAGS[name].name}": _value(_FLAGS[name], value) for name, value in flags.items() if name in _FLAGS
    }
    kept = tuple(_spelled(name, value) for name, value in others.items() if not _SECRET.search(name))
    deployment = changed(deployment, {**known, "vllm.extra_args": (*deployment.vllm.extra_args, *kept)})
    if question.set:
        deployment = changed(deployment, parse_set(question.set))
    return deployment, tuple(sorted(others))


def _on_hub(model: str | None) -> str | None:
    """Return the Hugging Face id of a checkpoint that was served from a folder of the same name."""
    return id_of_folder(Path(model).name) if model and model.startswith("/") else model


def _spelled(name: str, value: object) -> str:
    """Return a flag in vLLM's syntax."""
    flag = f"--{name.replace('_', '-')}"
    if value is True:
        return flag
    return f"{flag}={value if isinstance(value, str) else json.dumps(value)}"


def _value(option: VllmOption, value: object) -> object:
    """Return a logged value in the planner's form. Raises PlanningError if the planner does not support it."""
    if isinstance(value, list | tuple):
        found = [str(item) for item in cast("list[object]", value)]
        return tuple(found) if option.kind is tuple else found[0]
    if option.kind is str and not isinstance(value, str):
        value = str(value)
    option.check(value)
    return value


def _boot_id(deployment: Deployment, path: Path) -> str:
    """Return an id that the file does not use yet."""
    short = re.sub(r"[^a-z0-9]+", "-", f"learned-{Path(deployment.model).name}-{deployment.accelerator}".lower()).strip(
        "-"
    )
    taken = path.read_text(encoding="utf-8") if path.exists() else ""
    number = 1
    while f'id = "{short}-{number}"' in taken:
        number += 1
    return f"{short}-{number}"


def _toml(report: BootReport, deployment: Deployment, boot_id: str, *, citation: str, url: str, day: dt.date) -> str:
    source = [f"[sources.{boot_id}]", f"citation = {toml_value(citation)}", f"date = {day.isoformat()}"]
    source += [f"url = {toml_value(url)}"] * bool(url)
    source += [f"failures = [{toml_value(boot_id)}]"] * (report.outcome == "dies")
    died = [f"at = {toml_value(report.died_at)}", f"message = {toml_value(report.message)}"] if report.died_at else []
    image = [f"image = {toml_value(f'vllm {report.version}')}"] * bool(report.version)
    boot = [
        "[[boots]]",
        f"id = {toml_value(boot_id)}",
        f"title = {toml_value(f'{Path(deployment.model).name} on {deployment.accelerator}, {citation}')}",
        f"deployment = {toml_value(boot_id)}",
        f"sources = [{toml_value(boot_id)}]",
        f"outcome = {toml_value(report.outcome)}",
        *died,
        *image,
        "held_out = true",
    ]
    figures = [
        f"{name} = {toml_value({'logged': value, 'note': report.notes[name]} if name in report.notes else value)}"
        for name, value in report.figures.items()
    ]
    blocks = [source, [f"[deployments.{boot_id}]", *deployment_lines(deployment)], boot]
    blocks += [["[boots.figures]", *figures]] if figures else []
    return "\n".join("\n".join(block) + "\n" for block in blocks) + "\n"


def what_is_missing(boot: LearnedBoot) -> str:
    """Return one sentence on the parts that could not be read; empty if there are none."""
    parts = [f"the effect of {', '.join(boot.not_read)}"] if boot.not_read else []
    if boot.missing and boot.report.outcome == "runs":
        parts.append(f"the figures {', '.join(boot.missing)}")
    if not boot.report.arguments:
        parts.append("the server's flags (using the command line's or the stack's)")
    return f"Could not read {' and '.join(parts)}." if parts else ""
