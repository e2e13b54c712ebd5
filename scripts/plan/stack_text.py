"""Settings file of a solution, with the chosen keys, the workload and comments. The planner recommends the rest."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from dataclasses import field as dataclass_field
from pathlib import Path
from typing import Final, cast

import yaml

from contracts.fields import camel_case
from contracts.labels import PRODUCT
from contracts.naming import Names, NamingError
from engine.atomic_file import replace_file
from planning.data.images import IMAGES
from planning.errors import PlanningError
from planning.planner import plan
from planning.question.recommendation import FUSE_MODES
from planning.question.vllm_args import KEY_OF, VllmOptions
from planning.question.workload import DEFAULT_WORKLOAD, Workload
from planning.solve.search import Goal, ServiceLimits, Solution
from planning.units import format_duration
from scripts.cli.settings import NO_PROJECT
from scripts.plan.question import ROOT, stack_file
from stacks.loading import from_values, not_yaml, read_yaml, take_secrets
from stacks.planned import to_deployment
from stacks.secrets import SECRET_KEYS
from stacks.wording import inline, spelled

_BEST: Final[dict[Goal, str]] = {
    "cost": "cheapest deployment",
    "latency": "deployment with the shortest request",
    "throughput": "deployment with the lowest price per token",
}
MAX_AGE: Final = {True: "24h", False: "7d"}
"""`maxAge` of a new stack, on TPU or not: the same as of the stacks of this repository, because a forgotten experiment costs the most."""
SCHEMA: Final = "# yaml-language-server: $schema=docs/settings.schema.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileComments:
    """Comments of the caller for a settings file."""

    head: tuple[str, ...] = ()
    reasons: Mapping[str, str] = dataclass_field(default_factory=dict[str, str])
    """Reason by the name of an inner key, such as `maxNumSeqs`."""


def new_file(name: str, *, option: str = "--write", overwrite: bool = False) -> Path:
    """Return the path of a new stack's settings file. Raises PlanningError for an invalid or existing name."""
    try:
        Names(project=NO_PROJECT, stack=name)
    except NamingError as error:
        raise PlanningError(f"{option}: {error}") from None
    path = stack_file(name)
    if path.exists() and not overwrite:
        instead = "pass --force to replace it" if option == "NAME" else "remove the file"
        raise PlanningError(f"{path.name} already exists. Choose another name for {option} or {instead}.")
    return path


def write_stack(
    name: str,
    solution: Solution,
    limits: ServiceLimits,
    *,
    prices: Path | None,
    overwrite: bool = False,
    revision: str | None = None,
    email: str | None = None,
    goal: Goal = "cost",
    comments: FileComments | None = None,
) -> Path:
    """Write `Pulumi.NAME.yaml` and return its path. Raises PlanningError if it exists without `overwrite`, or cannot be written.

    Pulumi's own parts of an existing file (the salt, encrypted secrets, and keys of other namespaces) are kept.
    """
    path = new_file(name, overwrite=overwrite)
    try:
        kept = _kept(path) if path.exists() else ("", "")
        text = stack_text(
            name, solution, limits, prices=prices, revision=revision, email=email, goal=goal, comments=comments
        )
        text += "".join(kept)
        _check(text, path)
        replace_file(path, text)
    except yaml.YAMLError as error:
        raise PlanningError(not_yaml(path.name, error)) from None
    except ValueError as error:
        raise PlanningError(f"Cannot read {path.name} ({error}). Remove the file.") from None
    return path


def _kept(path: Path) -> tuple[str, str]:
    """Return the retained parts of an existing file: other keys of the config block, and keys outside that block."""
    found = read_yaml(path.read_text(encoding="utf-8")) or cast("object", {})
    if not isinstance(found, dict):
        raise PlanningError(f"{path.name} is not a settings file. Remove it or choose another name.")
    document = cast("dict[str, object]", found)
    config = cast("dict[str, object]", document.pop("config", None) or {})
    secrets = {f"{PRODUCT}:{key}" for key in SECRET_KEYS}
    inner = {key: value for key, value in config.items() if not key.startswith(f"{PRODUCT}:") or key in secrets}
    lines = _dumped(inner).splitlines(keepends=True)
    return "".join(f"  {line}" for line in lines), _dumped(document)


def _dumped(block: Mapping[str, object]) -> str:
    return yaml.safe_dump(dict(block), sort_keys=False, width=10_000) if block else ""


def _check(text: str, path: Path) -> None:
    """Raise PlanningError if the plan of the file does not fit."""
    document = cast("Mapping[str, Mapping[str, object]]", read_yaml(text))
    values: dict[str, object] = {
        key.partition(":")[2]: value for key, value in document["config"].items() if key.startswith(f"{PRODUCT}:")
    }
    take_secrets(values)
    planned = plan(to_deployment(from_values(values, project=NO_PROJECT, origin=path.name), path.parent))
    if not planned.fits:
        ids = ", ".join(finding.id for finding in planned.stopping)
        raise PlanningError(f"{path.name} was not written because its plan is {planned.verdict} ({ids}).")


def stack_text(
    name: str,
    solution: Solution,
    limits: ServiceLimits,
    *,
    prices: Path | None = None,
    revision: str | None = None,
    email: str | None = None,
    goal: Goal = "cost",
    comments: FileComments | None = None,
) -> str:
    """Return the text of the settings file.

    `revision` is the commit of the model's repository, if fetched from the hub; `email` receives the alerts.
    """
    more = comments or FileComments()
    config = (*_reasoned(_config(solution, prices, revision), more.reasons), *_alerts(name, email))
    head = (*_comments(name, solution, limits, goal), *(f"# {line}" for line in more.head))
    return "\n".join((SCHEMA, *head, "config:", *config)) + "\n"


def _reasoned(lines: Iterator[str], reasons: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines, each with the reason for its key above it."""
    for line in lines:
        key = line.partition(":")[0]
        if key.strip() in reasons:
            yield f"{key[: len(key) - len(key.lstrip())]}# {reasons[key.strip()]}"
        yield line


def _alerts(name: str, email: str | None) -> Iterator[str]:
    """Yield the recipient of the alerts, or the command that sets one."""
    if email is None:
        command = f"pulumi config set --path {PRODUCT}:alerts.email you@example.com --stack {name}"
        yield f"  # Only the console and scripts.alerts show alerts. To receive them, run {command}."
        return
    yield _key("alerts", "")
    yield f"    email: {json.dumps(email)}"


def _comments(name: str, solution: Solution, limits: ServiceLimits, goal: Goal) -> Iterator[str]:
    resolved, answer = solution.subject.resolved, solution.answer
    end = "at the slow end of their bands" if limits.conservative else "typical"
    chips = "chip" if resolved.accelerator.devices == 1 else "chips"
    bought = "on demand" if resolved.deployment.tpu.provisioning_model == "standard" else "flex-start"
    on = f"{resolved.accelerator.devices} {resolved.accelerator.name.partition('-')[0]} {chips}, {bought}"
    yield (
        f"# {resolved.model_id} ({resolved.scheme.name}) on "
        f"{on if resolved.is_tpu else f'Cloud Run with one {resolved.accelerator.name}'}: the {_BEST[goal]} that scripts.plan --solve "
        "found for this workload."
    )
    yield (
        f"# Planned: ${solution.usd_per_hour:.2f}/h; TTFT {limits.judged(answer.ttft_s):.2f} s and TPOT "
        f"{limits.judged(answer.tpot_s) * 1e3:.1f} ms, {end}{_asked(limits)}."
    )
    yield f"# Omitted settings use the planner's recommendations. To show them, run gemma plan {name}."


def _asked(limits: ServiceLimits) -> str:
    """Return the requested limits as text."""
    asked = (
        ("TTFT {:g} s", limits.max_ttft_s),
        ("TPOT {:g} s", limits.max_tpot_s),
        ("${:g}/h", limits.max_usd_per_hour),
        ("{:g} tokens of context", limits.min_context),
    )
    words = [form.format(value) for form, value in asked if value is not None]
    return f". Limits: {', '.join(words)}" if words else ""


def _config(solution: Solution, prices: Path | None, revision: str | None) -> Iterator[str]:
    resolved, deployment = solution.subject.resolved, solution.deployment
    yield _key("target", "tpu" if resolved.is_tpu else "cloud-run")
    yield _key("model", resolved.model_id)
    if revision is not None:
        yield "  # Commit of the hub's main branch on the day this file was written."
        yield _key("modelRevision", json.dumps(revision))
    if deployment.quantization is not None:
        yield _key("quantization", deployment.quantization)
    if solution.image is not None:
        yield f"  # No published image loads this model. `pulumi up` builds the image with Docker from {IMAGES[solution.image].build_context}."
        yield _key("image", solution.image)
    yield _key("weights", "hub" if resolved.weights_mode == "hub" else "bucket")
    yield "  # A scheduled guard destroys the stack when it is older (docs/limits.md). Remove this line for a stack that stays."
    yield _key("maxAge", MAX_AGE[resolved.is_tpu])
    if prices is not None:
        yield "  # Prices used by the search. The path is relative to this folder."
        yield _key("prices", json.dumps(_from_root(prices)))
    yield "  # Planned load per slice or instance."
    yield _key("workload", _workload(solution.answer.workload))
    yield _key("vllm", "")
    yield from (f"    {key}: {value}" for key, value in _vllm(deployment.vllm))
    yield from _tpu(solution) if resolved.is_tpu else _cloud_run(solution)


def _key(key: str, value: str) -> str:
    return f"  {PRODUCT}:{key}:{f' {value}' if value else ''}"


def _from_root(path: Path) -> str:
    whole = path.resolve()
    return str(whole.relative_to(ROOT) if whole.is_relative_to(ROOT) else whole)


def _workload(workload: Workload) -> str:
    """Return a workload as a block on one line: its lengths and the values that differ from the defaults."""
    named = {"input_tokens", "output_tokens"}
    given = {
        camel_case(field.name): getattr(workload, field.name)
        for field in fields(workload)
        if field.name in named or getattr(workload, field.name) != getattr(DEFAULT_WORKLOAD, field.name)
    }
    return f"{{ {', '.join(f'{key}: {json.dumps(value)}' for key, value in given.items())} }}"


def _vllm(options: VllmOptions) -> Iterator[tuple[str, str]]:
    blocks: dict[str, dict[str, object]] = {}
    for field in fields(options):
        value: object = getattr(options, field.name)
        if value is None or value == ():
            continue
        block, _, key = KEY_OF[field.name].rpartition(".")
        if block:
            blocks.setdefault(block, {})[key] = value
        else:
            yield key, value if isinstance(value, str) else json.dumps(value)
    for block, values in blocks.items():
        yield block, inline(values)


def _tpu(solution: Solution) -> Iterator[str]:
    tpu = solution.deployment.tpu
    yield _key("tpu", "")
    yield f"    acceleratorType: {solution.subject.resolved.accelerator.name}"
    yield "    # Cheapest zones known to have it, tried in this order."
    yield f"    zones: [{', '.join(tpu.zones)}]"
    yield f"    provisioning: {tpu.provisioning_model}"
    if tpu.max_run_duration_s is not None:
        yield f"    maxRunDuration: {format_duration(tpu.max_run_duration_s)}"


def _cloud_run(solution: Solution) -> Iterator[str]:
    resolved, run = solution.subject.resolved, solution.deployment.cloud_run
    yield _key("cloudRun", "")
    yield f"    region: {run.region}"
    yield f"    gpu: {spelled('accelerator', resolved.accelerator.name)}"
    yield f"    cpu: {resolved.vcpu:g}"
    yield f"    memory: {resolved.host_memory_gib:g}Gi"
    yield "    # Number of requests that the server computes concurrently."
    yield f"    concurrency: {run.concurrency}"
    if run.min_instances:
        yield f"    minInstances: {run.min_instances}"
    yield f"    maxInstances: {run.max_instances}"
    if run.graph_cache != "off":
        yield f"    compileCache: {run.graph_cache}"
    if resolved.weights_mode in FUSE_MODES[1:]:
        yield f"    mount: {{ mode: {resolved.weights_mode} }}"
