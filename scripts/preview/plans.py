"""Plans of all stacks in a checkout, as data: settings, flags, metrics and findings as text."""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, cast

from pydantic import BaseModel, ConfigDict

from gemma_serving.contracts.labels import PRODUCT
from gemma_serving.contracts.masking import masked
from gemma_serving.contracts.server_change import flags_of
from gemma_serving.engine.runner import stacks_in
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.planner import plan
from gemma_serving.planning.question.types import Plan
from gemma_serving.planning.settings.fields import SettingField, block_fields
from gemma_serving.planning.settings.secrets import SECRET_KEYS
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.planning.settings.vllm_args import vllm_arguments
from gemma_serving.planning.units import CLOSE, ROUGH, figure, format_duration
from gemma_serving.stacks.loading import SettingsError, from_file, read_yaml
from gemma_serving.stacks.planned import finding_text, to_question, today
from gemma_serving.stacks.settings_wording import StackWording, inline_yaml, stated

UNKNOWN_PROJECT: Final = "unknown-project"
"""Stand-in if no project is set. A plan needs none."""
START: Final = "first start"
RESTART: Final = "server restart"
HOURLY: Final = "USD per hour"
MOST: Final = "USD maximum"
_UNKNOWN: Final = "unknown"
_APART: Final = frozenset({"project", "provider_keys", "vllm", "vllm_in_blocks", "secrets"})
"""Fields of the settings that are shown in another form."""
_IN_ONE_LINE: Final = "workload"
"""Block whose values are shown together."""


class DescribedFinding(BaseModel):
    """A finding as text."""

    model_config = ConfigDict(frozen=True)
    id: str
    severity: Literal["block", "warn", "info"]
    text: str
    accepted: bool = False

    @property
    def stops(self) -> bool:
        """True if it blocks and is not accepted."""
        return self.severity == "block" and not self.accepted


class StackDescription(BaseModel):
    """One stack of a checkout. `settings` and `flags` are texts by key; `error` is set if planning failed."""

    model_config = ConfigDict(frozen=True)
    stack: str
    settings: dict[str, str] = {}
    flags: dict[str, str] = {}
    environment: dict[str, str] = {}
    figures: dict[str, str] = {}
    recompile: str = ""
    """Duration of a restart in place that compiles again."""
    later: str = ""
    """Duration of each start but the first, which finds compiled programs in the bucket; empty if none are stored there."""
    findings: tuple[DescribedFinding, ...] = ()
    error: str | None = None

    @property
    def is_missing(self) -> bool:
        """True if the checkout has no such stack."""
        return not self.settings and self.error is None

    @property
    def stopping(self) -> tuple[DescribedFinding, ...]:
        """Findings that block preview and up."""
        return tuple(finding for finding in self.findings if finding.stops)

    @property
    def is_tpu(self) -> bool:
        """True if its target is a TPU."""
        return self.settings.get("target") == "tpu"


Plans = Mapping[str, StackDescription]
"""The stacks of a checkout by name."""


def describe_checkout(folder: Path, *, date: str | None = None) -> Plans:
    """Return the plans of all stacks with a settings file in a folder. A stack that cannot be planned has its error.

    `date` (YYYY-MM-DD, default: today) determines which prices are out of date.
    """
    on = date or today()
    return {stack: describe_stack(folder, stack, date=on) for stack in stacks_in(folder)}


def describe_stack(folder: Path, stack: str, *, date: str) -> StackDescription:
    """Return one stack's plan, or the error message."""
    path = folder / f"Pulumi.{stack}.yaml"
    try:
        return _described(path, stack, date)
    except (SettingsError, PlanningError) as error:
        return StackDescription(stack=stack, error=masked(str(error)))


def _described(path: Path, stack: str, date: str) -> StackDescription:
    settings = from_file(path, project=UNKNOWN_PROJECT)
    shown = {**flat_settings(settings), **_encrypted(path)}
    try:
        question = to_question(settings, path.parent, today=date)
        planned = plan(question)
    except PlanningError as error:
        return StackDescription(stack=stack, settings=shown, error=masked(str(error)))
    flags = vllm_arguments(
        planned.vllm,
        model_or_path=settings.model,
        revision=settings.served_revision,
        has_api_key=settings.has_secret("apiKey"),
    )
    return StackDescription(
        stack=stack,
        settings=shown,
        flags=flags_of(flags),
        environment=dict(planned.environment),
        figures=_figures(planned),
        later=_later_start(planned),
        recompile=_UNKNOWN if planned.known_startup is None else duration(planned.known_startup.pause_s(compiles=True)),
        findings=tuple(
            DescribedFinding(
                id=one.id,
                severity=one.severity,
                text=masked(finding_text(one, StackWording(question, stack))),
                accepted=one.id in planned.accepted,
            )
            for one in planned.findings
        ),
    )


def _later_start(planned: Plan) -> str:
    start = planned.known_startup
    return "" if start is None or start.cached_total_s is None else duration(start.cached_total_s)


def _figures(planned: Plan) -> dict[str, str]:
    memory = planned.memory
    start = planned.known_startup
    speed = planned.known_throughput
    cost = planned.cost
    return {
        "weights per device": f"{figure(memory.weights_gib, CLOSE)} of {memory.usable_gib:.1f} GiB",
        "KV cache": f"{figure(memory.kv_tokens * planned.replicas, CLOSE)} tokens",
        "concurrent max-length requests": figure(memory.max_concurrency * planned.replicas, CLOSE),
        START: _UNKNOWN if start is None else duration(start.ready_s),
        RESTART: _UNKNOWN if start is None else duration(start.restart_s),
        "TTFT, one request": _UNKNOWN if speed is None else f"{figure(speed.ttft_s * 1e3, ROUGH)} ms",
        "output rate, one request": _UNKNOWN if speed is None else f"{figure(speed.decode_tok_per_s, ROUGH)} tok/s",
        "output rate at saturation": _UNKNOWN if speed is None else f"{figure(speed.saturated_tok_per_s, ROUGH)} tok/s",
        HOURLY: f"${cost.usd_per_hour:,.2f}" if cost.is_known else _UNKNOWN,
        MOST: f"${cost.most_usd:,.2f} ({cost.most_usd_basis})" if cost.is_known else _UNKNOWN,
    }


def duration(seconds: float) -> str:
    """Return seconds as text, in whole minutes from two minutes on."""
    return format_duration(round(seconds)) if seconds < 120 else f"{seconds / 60:.0f} min"  # noqa: PLR2004 - two minutes


def flat_settings(settings: Settings) -> dict[str, str]:
    """Return the effective settings by key, as in the file. vLLM options are flags."""
    found: dict[str, str] = {} if settings.project == UNKNOWN_PROJECT else {"gcp:project": settings.project}
    for field in block_fields(type(settings)):
        value = _value_at(settings, field.path)
        is_shown = field.path.partition(".")[0] not in _APART and not field.path.startswith(f"{_IN_ONE_LINE}.")
        if not is_shown or value is None:
            continue
        if field.block is None or field.path == _IN_ONE_LINE:
            text = _spelled(field, value)
            if text:
                found[field.key] = masked(text)
    return found


def _value_at(settings: object, path: str) -> object:
    for name in path.split("."):
        settings = None if settings is None else getattr(settings, name)
    return settings


def _spelled(field: SettingField, value: object) -> str:
    """Return a setting's value as written in the file; empty for an empty list or block."""
    if field.quantity is not None:
        return field.quantity.spell(cast("int", value))
    if dataclasses.is_dataclass(value):
        return _pairs(stated(value))
    if isinstance(value, Mapping):
        return _pairs(cast("Mapping[str, object]", value))
    if isinstance(value, list | tuple):
        items = cast("Sequence[object]", value)
        return ", ".join(f"{{ {_pairs(stated(one))} }}" if dataclasses.is_dataclass(one) else str(one) for one in items)
    return inline_yaml(value) if isinstance(value, bool) else str(value)


def _pairs(items: Mapping[str, object]) -> str:
    return ", ".join(f"{key}: {inline_yaml(item)}" for key, item in items.items())


def _encrypted(path: Path) -> dict[str, str]:
    """Return the encrypted settings as digests of their ciphertexts, so a new value is a change."""
    config = cast("Mapping[str, Mapping[str, object]]", read_yaml(path.read_text(encoding="utf-8")))["config"]
    return {
        key: f"encrypted, digest {hashlib.sha256(str(value).encode()).hexdigest()[:8]}"
        for key in SECRET_KEYS
        if (value := config.get(f"{PRODUCT}:{key}")) is not None
    }
