"""A boot imported from its log: its deployment, and its text in the corpus format."""

import datetime as dt
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, cast

from contracts.errors import CommandRefusedError
from contracts.masking import masked
from planning.model.catalog import find_id
from planning.question.fields import changed
from planning.question.types import Deployment
from planning.question.vllm_args import OPTIONS, VllmOption
from scripts.plan.boot_log import BootReport, read_boot
from scripts.plan.learned_log import BootLog
from scripts.plan.public_boot import public_deployment, public_flag, public_model
from scripts.plan.question import Question, deployment_from, parse_set
from scripts.plan.server_defaults import with_server_defaults
from scripts.plan.toml_text import deployment_lines, toml_value

_FLAGS: Final[Mapping[str, VllmOption]] = {
    option.flag.removeprefix("--").replace("-", "_"): option for option in OPTIONS.values() if option.flag
}
"""The options that the planner supports, by vLLM's names."""
_WITHOUT_EFFECT: Final = frozenset(
    {"model", "model_tag", "host", "port", "api_key", "uvicorn_log_level", "revision", "allowed_origins", "middleware"}
)
"""Flags that do not affect memory or speed. `model` is read separately."""
_USER: Final = re.compile(r"//[^/@]*@")
"""User and password of a URL."""
_ID_DIGITS: Final = 8
_EXPECTED: Final = ("weights", "kv_tokens", "load", "compile", "restart")
"""Figures that the log of a complete start contains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedBoot:
    """An imported boot, and the parts that could not be read."""

    report: BootReport
    deployment: Deployment
    """The deployment's fields that may be published."""
    device: str
    """GPU outside the catalog, as `--device` describes it; empty for an accelerator of the catalog."""
    not_read: tuple[str, ...]
    """Flags in the log without a planner option. Numbers and switches are kept as extra arguments."""
    dropped: tuple[str, ...]
    """Those of them whose values are text, which is not published."""
    missing: tuple[str, ...]
    """Figures missing from the log."""
    boot_id: str
    title: str
    citation: str
    url: str
    day: dt.date
    log_sha256: str


def boot_of(log: BootLog, question: Question, *, url: str = "") -> LearnedBoot:
    """Return the boot recorded in a log. Raises PlanningError or CommandRefusedError if it cannot be read."""
    report = read_boot(log.text)
    deployment, not_read = deployment_of(report, question)
    if deployment.model_spec is not None:
        raise CommandRefusedError(
            "learn does not record a model of --config, --from-hub or --from-bucket. Use a model of the catalog."
        )
    place = deployment.device.name if deployment.device else deployment.accelerator
    digest = log.sha256[:_ID_DIGITS]
    short = re.sub(r"[^a-z0-9]+", "-", f"{Path(deployment.model).name}-{place}".lower()).strip("-")
    return LearnedBoot(
        report=report,
        deployment=public_deployment(deployment),
        device=question.device or "" if deployment.device else "",
        not_read=not_read,
        dropped=tuple(
            name for name in not_read if public_flag(name, {**report.derived, **report.arguments}.get(name)) is None
        ),
        missing=tuple(name for name in _EXPECTED if name not in report.figures),
        boot_id=f"learned-{short}-{digest}",
        title=f"{Path(deployment.model).name}, {place}, {log.day}",
        citation=f"log {digest}, {log.day}",
        url=masked(_USER.sub("//", url)),
        day=log.day,
        log_sha256=log.sha256,
    )


def deployment_of(report: BootReport, question: Question) -> tuple[Deployment, tuple[str, ...]]:
    """Return the deployment that ran, and the flags without a planner option.

    The log's flags override the stack's; the command line overrides both.
    """
    model = question.model or report.model
    accelerator = question.accelerator or (None if question.has_own_device else report.accelerator)
    if question.stack is None:
        if model is None:
            raise CommandRefusedError("The log does not name a model. Add --model ID.")
        if accelerator is None and not question.has_own_device:
            raise CommandRefusedError(
                "The log does not name an accelerator. Add --accelerator NAME, or --device FIGURES for a GPU that is not listed."
            )
    _check_stack_model(question, report)
    named = question if question.stack else replace(question, model=public_model(model), accelerator=accelerator)
    deployment = deployment_from(replace(named, set=()))
    flags = {**report.derived, **report.arguments}
    others = {name: value for name, value in flags.items() if name not in {*_FLAGS, *_WITHOUT_EFFECT}}
    known: dict[str, object] = {
        f"vllm.{_FLAGS[name].name}": _value(_FLAGS[name], value) for name, value in flags.items() if name in _FLAGS
    }
    kept = tuple(flag for name, value in others.items() if (flag := public_flag(name, value)) is not None)
    deployment = changed(deployment, {**known, "vllm.extra_args": (*deployment.vllm.extra_args, *kept)})
    if question.set:
        deployment = changed(deployment, parse_set(question.set))
    if question.stack is None:
        deployment = with_server_defaults(deployment)
    return deployment, tuple(sorted(others))


def _check_stack_model(question: Question, report: BootReport) -> None:
    """Raise CommandRefusedError if the log is of another model than the stack's: it is of an earlier deployment, or of another server."""
    logged = find_id(public_model(report.model) or "")
    if question.stack is None or logged is None:
        return
    model = deployment_from(replace(question, set=())).model
    if find_id(model) not in {None, logged}:
        raise CommandRefusedError(
            f"The log is of {logged}, but stack {question.stack} has {model}. Pass the log of the stack's server, or --model and "
            "--accelerator instead of --stack."
        )


def _value(option: VllmOption, value: object) -> object:
    """Return a logged value in the planner's form. Raises PlanningError if the planner does not support it."""
    if isinstance(value, list | tuple):
        found = [str(item) for item in cast("list[object]", value)]
        return tuple(found) if option.kind is tuple else found[0]
    if option.kind is str and not isinstance(value, str):
        value = str(value)
    option.check(value)
    return value


def boot_text(boot: LearnedBoot, *, first: Mapping[str, float] | None = None, first_right: bool | None = None) -> str:
    """Return the boot's file. `first` and `first_right` are the predictions of the planner that has not seen it."""
    report, first = boot.report, first or {}
    source = [f"[sources.{boot.boot_id}]", f"citation = {toml_value(boot.citation)}", f"date = {boot.day.isoformat()}"]
    source += [f"url = {toml_value(boot.url)}"] * bool(boot.url)
    source += [f"failures = [{toml_value(boot.boot_id)}]"] * (report.outcome == "dies")
    source += ["unseen = true", f"log_sha256 = {toml_value(boot.log_sha256)}"]
    deployment = [f"[deployments.{boot.boot_id}]", *_deployment_lines(boot)]
    lines = [
        "[[boots]]",
        f"id = {toml_value(boot.boot_id)}",
        f"title = {toml_value(boot.title)}",
        f"deployment = {toml_value(boot.boot_id)}",
        f"sources = [{toml_value(boot.boot_id)}]",
        f"outcome = {toml_value(report.outcome)}",
    ]
    if report.died_at:
        lines += [f"at = {toml_value(report.died_at)}", f"message = {toml_value(report.message)}"]
    lines += [f"image = {toml_value(f'vllm {report.version}')}"] * bool(report.version)
    if boot.dropped:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in boot.dropped)
        lines.append(f"ambiguous = {toml_value(f'Values of these flags are not recorded: {flags}.')}")
    lines += [] if first_right is None else [f"first_right = {toml_value(first_right)}"]
    figures = [
        _figure_line(name, value, report.notes.get(name), first.get(name)) for name, value in report.figures.items()
    ]
    blocks = [source, deployment, lines, *([["[boots.figures]", *figures]] if figures else [])]
    return "\n".join("\n".join(block) + "\n" for block in blocks)


def _deployment_lines(boot: LearnedBoot) -> list[str]:
    """Return the deployment's lines: with a device of its own instead of an accelerator, and the release if the log does not name it."""
    lines = [line for line in deployment_lines(boot.deployment) if line != 'accelerator = ""']
    lines += [f"device = {toml_value(boot.device)}"] * bool(boot.device)
    version = boot.deployment.image_version
    if version is None or boot.report.version:
        return lines
    return [*lines, f"image_version = {toml_value(version)}"]


def _figure_line(name: str, value: float, note: str | None, first: float | None) -> str:
    if note is None and first is None:
        return f"{name} = {toml_value(value)}"
    parts: dict[str, object] = {"logged": value}
    parts |= {} if note is None else {"note": note}
    parts |= {} if first is None else {"first": float(f"{first:.6g}")}
    return f"{name} = {toml_value(parts)}"


def what_is_missing(boot: LearnedBoot) -> str:
    """Return one sentence on the parts that could not be read; empty if there are none."""
    parts = [f"the effect of {', '.join(boot.not_read)}"] if boot.not_read else []
    if boot.missing and boot.report.outcome == "runs":
        parts.append(f"the figures {', '.join(boot.missing)}")
    if not boot.report.arguments:
        parts.append("the server's flags (using the command line's or the stack's)")
    return f"Could not read {' and '.join(parts)}." if parts else ""
