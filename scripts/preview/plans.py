"""Plans of all stacks in a checkout, as data for a later step or another checkout to compare."""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, cast

from pydantic import BaseModel, ConfigDict

from contracts.errors import CommandRefusedError
from contracts.fields import camel_case
from contracts.labels import PRODUCT
from contracts.masking import masked
from contracts.server_change import flags_of
from engine.runner import stacks_in
from planning import PlanningError, plan
from planning.question.types import Finding, Plan
from planning.question.vllm_args import vllm_arguments
from planning.solve.wording import worded
from planning.units import format_duration
from stacks.gateway_plan import plan_gateway
from stacks.loading import SettingsError, from_file, gateway_from_file, is_gateway_file, read_yaml
from stacks.planned import finding_text, to_deployment, today
from stacks.secrets import SECRET_KEYS
from stacks.settings import GatewayStack, Settings
from stacks.units import format_memory
from stacks.wording import StackWording

PLANS_VERSION: Final = 1
UNKNOWN_PROJECT: Final = "unknown-project"
"""Stand-in if neither the file nor the environment sets a project. A plan needs none."""
_DIGEST_DIGITS: Final = 8
_UNITS: Final[Mapping[str, Callable[[int], str]]] = {"_s": format_duration, "_mib": format_memory}
"""Spelling of quantities, by the suffix of the field name."""
_APART: Final = frozenset({"project", "vllm", "vllm_in_blocks", "secrets"})
"""Fields of the settings that are shown in another form."""


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class DescribedFinding(_Data):
    """A finding as text. `stops`: it blocks and is not accepted."""

    id: str
    severity: Literal["block", "warn", "info"]
    text: str
    accepted: bool
    stops: bool


class DescribedPlan(_Data):
    """The figures of a plan that a reviewer needs."""

    weights_gib: float
    usable_gib: float
    kv_tokens: int
    max_concurrency: float
    start_s: float
    restart_s: float
    ttft_s: float
    decode_tok_per_s: float
    saturated_tok_per_s: float
    usd_per_hour: float
    max_usd: float
    max_usd_basis: str


class StackDescription(_Data):
    """One stack of a checkout. `settings` and `flags` are texts by key; `error` is set if planning failed."""

    stack: str
    settings: dict[str, str] = {}
    flags: dict[str, str] = {}
    environment: dict[str, str] = {}
    plan: DescribedPlan | None = None
    findings: tuple[DescribedFinding, ...] = ()
    error: str | None = None

    @property
    def stopping(self) -> tuple[DescribedFinding, ...]:
        """Findings that block preview and up."""
        return tuple(finding for finding in self.findings if finding.stops)


class PlansDocument(_Data):
    """Plans of a checkout. `planner` records whose code created them."""

    schema_version: int = PLANS_VERSION
    stacks: tuple[StackDescription, ...]
    planner: Literal["own", "other"] = "own"
    """`other`: the checkout's own planner cannot describe plans, so another one read its settings."""

    @property
    def by_name(self) -> Mapping[str, StackDescription]:
        """The stacks by name."""
        return {described.stack: described for described in self.stacks}


def describe_checkout(folder: Path, *, date: str | None = None) -> PlansDocument:
    """Return the plans of all stacks with a settings file in a folder. A stack that cannot be planned has its error.

    `date` (YYYY-MM-DD) determines which prices are out of date. Default: today.
    """
    on = date or today()
    return PlansDocument(stacks=tuple(describe_stack(folder, stack, date=on) for stack in stacks_in(folder)))


def describe_stack(folder: Path, stack: str, *, date: str) -> StackDescription:
    """Return one stack's plan, or the error message."""
    path = folder / f"Pulumi.{stack}.yaml"
    if is_gateway_file(path):
        return _described_gateway(path, stack, date=date)
    try:
        settings = from_file(path, project=UNKNOWN_PROJECT)
    except SettingsError as error:
        return StackDescription(stack=stack, error=masked(str(error)))
    shown = {**flat_settings(settings), **_encrypted(path)}
    try:
        deployment = to_deployment(settings, folder, today=date)
        wording = StackWording(deployment, stack)
    except PlanningError as error:
        return StackDescription(stack=stack, settings=shown, error=masked(str(error)))
    try:
        planned = plan(deployment)
    except PlanningError as error:
        return StackDescription(stack=stack, settings=shown, error=masked(worded(str(error), wording)))
    return StackDescription(
        stack=stack,
        settings=shown,
        flags=_flags(settings, planned),
        environment=dict(planned.environment),
        plan=_described(planned),
        findings=tuple(_finding(finding, wording, planned.accepted) for finding in planned.findings),
    )


def _described_gateway(path: Path, stack: str, *, date: str) -> StackDescription:
    """Return a gateway's settings and findings. It has no plan of its own, and the addresses of its backends are unknown here."""
    try:
        settings = gateway_from_file(path, project=UNKNOWN_PROJECT)
        found = plan_gateway(settings, stack, None, path.parent, today=date)
    except (SettingsError, PlanningError) as error:
        return StackDescription(stack=stack, error=masked(str(error)))
    return StackDescription(
        stack=stack,
        settings=flat_settings(settings),
        findings=tuple(
            DescribedFinding(
                id=one.id,
                severity=one.severity,
                text=masked(f"{one.id}: {one.message} {one.advice}".rstrip()),
                accepted=False,
                stops=one.severity == "block",
            )
            for one in found.findings
        ),
    )


def write_plans(path: Path, document: PlansDocument) -> None:
    """Store the plans of a checkout."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(document.model_dump_json(indent=1) + "\n", encoding="utf-8")


def read_plans(path: Path) -> PlansDocument:
    """Return the plans stored by `write_plans`. Raises CommandRefusedError for another version."""
    document = PlansDocument.model_validate_json(path.read_text(encoding="utf-8"))
    if document.schema_version != PLANS_VERSION:
        raise CommandRefusedError(
            f"{path} has version {document.schema_version}, but this program reads {PLANS_VERSION}."
        )
    return document


def flat_settings(settings: Settings | GatewayStack) -> dict[str, str]:
    """Return the effective settings by key, with defaults, spelled as in the file. vLLM options are flags."""
    found: dict[str, str] = {} if settings.project == UNKNOWN_PROJECT else {"gcp:project": settings.project}
    _flatten(settings, "", found)
    return found


def _flatten(block: BaseModel, prefix: str, found: dict[str, str]) -> None:
    for name, field in type(block).model_fields.items():
        value: object = getattr(block, name)
        if (not prefix and name in _APART) or value is None:
            continue
        key = f"{prefix}{field.alias or name}"
        if isinstance(value, BaseModel):
            _flatten(value, f"{key}.", found)
            if field.default is None and not any(each.startswith(f"{key}.") for each in found):
                found[key] = "{}"  # a block that turns something on without a value, such as cloudRun.rollout
        elif text := _spelled(name, value):
            found[key] = masked(text)


def _spelled(name: str, value: object) -> str:
    """Return a setting's value as written in the file; empty for an empty list or block."""
    if isinstance(value, bool):
        return "true" if value else "false"
    unit = next((unit for suffix, unit in _UNITS.items() if name.endswith(suffix)), None)
    if isinstance(value, int) and unit is not None:
        return unit(value)
    if dataclasses.is_dataclass(value):
        given = [field for field in dataclasses.fields(value) if getattr(value, field.name) != field.default]
        value = {camel_case(field.name): getattr(value, field.name) for field in given}
    if isinstance(value, Mapping):
        items = cast("Mapping[str, object]", value).items()
        return ", ".join(f"{key}: {item}" for key, item in items)
    return ", ".join(map(_item, cast("list[object]", value))) if isinstance(value, list) else str(value)


def _item(value: object) -> str:
    """Return an item of a list; a block as its keys without defaults."""
    if not isinstance(value, BaseModel):
        return str(value)
    given = value.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return f"{{ {', '.join(f'{key}: {json.dumps(item) if isinstance(item, bool) else item}' for key, item in given.items())} }}"


def _encrypted(path: Path) -> dict[str, str]:
    """Return the encrypted settings, each with a digest of its ciphertext, so that a new value shows as a change."""
    document = cast("Mapping[str, Mapping[str, object]]", read_yaml(path.read_text(encoding="utf-8")))
    config = document["config"]
    found = {key: config.get(f"{PRODUCT}:{key}") for key in SECRET_KEYS}
    return {
        key: f"encrypted, digest {hashlib.sha256(str(value).encode()).hexdigest()[:_DIGEST_DIGITS]}"
        for key, value in found.items()
        if value is not None
    }


def _flags(settings: Settings, planned: Plan) -> dict[str, str]:
    """Return the arguments of `vllm serve` by flag, with the model as `model`."""
    return flags_of(
        vllm_arguments(
            planned.vllm,
            model_or_path=settings.model,
            revision=settings.served_revision,
            has_api_key=settings.has_secret("apiKey"),
        )
    )


def _described(planned: Plan) -> DescribedPlan:
    memory, startup, throughput, cost = planned.memory, planned.startup, planned.throughput, planned.cost
    return DescribedPlan(
        weights_gib=memory.weights_gib,
        usable_gib=memory.usable_gib,
        kv_tokens=memory.kv_tokens * planned.replicas,
        max_concurrency=memory.max_concurrency * planned.replicas,
        start_s=startup.ready_s,
        restart_s=startup.restart_s,
        ttft_s=throughput.ttft_s,
        decode_tok_per_s=throughput.decode_tok_per_s,
        saturated_tok_per_s=throughput.saturated_tok_per_s,
        usd_per_hour=cost.usd_per_hour,
        max_usd=cost.max_usd,
        max_usd_basis=cost.max_usd_basis,
    )


def _finding(finding: Finding, wording: StackWording, accepted: Sequence[str]) -> DescribedFinding:
    is_accepted = finding.id in accepted
    return DescribedFinding(
        id=finding.id,
        severity=finding.severity,
        text=masked(finding_text(finding, wording)),
        accepted=is_accepted,
        stops=finding.severity == "block" and not is_accepted,
    )
