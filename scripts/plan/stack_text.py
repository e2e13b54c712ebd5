"""Settings file of a solution: the chosen keys, the workload and comments."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final, cast

import yaml

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.fields import as_mapping
from gemma_serving.contracts.installation import no_project, own_project
from gemma_serving.contracts.labels import PRODUCT
from gemma_serving.contracts.naming import Names, NamingError
from gemma_serving.contracts.settings_files import stack_of_file
from gemma_serving.engine.atomic_file import replace_file
from gemma_serving.engine.trial import without_secrets
from gemma_serving.planning.data.images import IMAGES
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.settings.question import Question
from gemma_serving.planning.settings.secrets import SECRET_KEYS
from gemma_serving.planning.settings.vllm_args import KEY_OF, VllmOptions
from gemma_serving.planning.solve.search import ServiceLimits, Solution
from gemma_serving.scripts.plan.question import ROOT, stack_file
from gemma_serving.scripts.stack.settings import NO_PROJECT
from gemma_serving.stacks.loading import not_yaml, read_yaml
from gemma_serving.stacks.settings_wording import inline_yaml, stated

_SCHEMA: Final = "docs/settings.schema.json"
_SCHEMA_LINE: Final = f"# yaml-language-server: $schema={_SCHEMA}"
_COMMENTS: Final = {
    "modelRevision": "Commit of the hub's main branch on the day this file was written.",
    "maxAge": "Enforced only if `gemma teardown --over-limit` runs on a schedule. Remove this line for a stack that stays.",
    "prices": "Prices used by the search. The path is relative to this folder.",
    "workload": "Planned load per slice or instance.",
    "zones": "Cheapest zones known to have it, tried in this order.",
    "limitMmPerPrompt": "Most inputs of each kind in a request. With 0 for all, a TPU server starts faster.",
    "concurrency": "Number of requests that the server computes concurrently.",
}
"""Comment above a key, in a block or not."""
SUBCOMMANDS: Final = {"compare": "bench", "plans": "preview", "prices": "plan", "report": "bench", "run": "preview"}
"""Words in the place of a stack that select a subcommand, with its command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackFile:
    """Source of a settings file."""

    name: str
    solution: Solution
    limits: ServiceLimits
    prices: Path | None = None
    revision: str | None = None
    """Commit of the model's repository, if fetched from the hub."""
    email: str | None = None
    """Recipient of the alerts."""
    secrets_provider: str = ""
    own_model: tuple[str, str] | None = None
    """Id and `modelConfig` of a fine-tune that is served with the settings of the solution's model."""
    source: str = ""
    """File with the words of the server; empty for a search."""
    is_off_hub: bool = False
    """True if the hub does not show it, so its weights must be staged."""


def new_file(name: str, *, option: str = "--write", overwrite: bool = False) -> Path:
    """Return the path of a new stack's settings file. Raises PlanningError for an invalid or existing name, and without a project."""
    if own_project() is None:
        raise PlanningError(no_project())
    try:
        Names(project=NO_PROJECT, stack=name)
    except NamingError as error:
        raise PlanningError(f"{option}: {error}") from None
    if command := SUBCOMMANDS.get(name):
        raise PlanningError(f"{option} is {name}, but `gemma {command} {name}` is a command. Choose another {option}.")
    path = stack_file(name)
    if path.exists() and not overwrite:
        instead = "pass --force to replace it" if option == "NAME" else "remove the file"
        raise PlanningError(f"{path.name} already exists. Choose another {option} or {instead}.")
    return path


def write_stack(file: StackFile) -> Path:
    """Write `Pulumi.NAME.yaml` and return its path. Raises PlanningError if an existing file cannot be read.

    Pulumi's own parts of an existing file (the salt, encrypted secrets, and keys of other namespaces) are kept.
    """
    path = stack_file(file.name)
    provider = f"secretsprovider: {file.secrets_provider}\n" if file.secrets_provider else ""
    _replace(path, stack_text(file), provider)
    return path


def write_copy(source: Path, path: Path) -> None:
    """Write a copy of a settings file without its salt and secrets. Keep what `write_stack` keeps of an existing file.

    Raises PlanningError if the existing file cannot be read.
    """
    text = without_secrets(source.read_text(encoding="utf-8"))
    text = text.replace(f"--stack {stack_of_file(source.name)}.", f"--stack {stack_of_file(path.name)}.")
    _replace(path, text.replace("$schema=../../docs/", "$schema=docs/"), "")


def _replace(path: Path, text: str, provider: str) -> None:
    """Write a file with the kept parts of an existing one, or with the secrets provider. Raises PlanningError.

    Only a checkout has the schema that the first line names.
    """
    if not (path.parent / _SCHEMA).is_file():
        text = text.removeprefix(f"{_SCHEMA_LINE}\n")
    try:
        replace_file(path, text + (_kept(path, text) if path.exists() else provider))
    except yaml.YAMLError as error:
        raise PlanningError(not_yaml(path.name, error)) from None


def _kept(path: Path, text: str) -> str:
    """Return the kept parts of an existing file that the new text does not have: other keys of the config block, and keys outside it."""
    found = read_yaml(path.read_text(encoding="utf-8")) or cast("object", {})
    if not isinstance(found, dict):
        raise PlanningError(f"{path.name} is not a settings file. Remove it or choose another name.")
    document = cast("dict[str, object]", found)
    config = cast("dict[str, object]", document.pop("config", None) or {})
    secrets = {f"{PRODUCT}:{key}" for key in SECRET_KEYS}
    written = as_mapping(as_mapping(read_yaml(text)).get("config"))
    others = (key for key in config if not key.startswith(f"{PRODUCT}:") or key in secrets)
    inner = {key: config[key] for key in others if key not in written}
    return "".join(f"  {line}" for line in _dumped(inner).splitlines(keepends=True)) + _dumped(document)


def _dumped(block: Mapping[str, object]) -> str:
    return yaml.safe_dump(dict(block), sort_keys=False, width=10_000) if block else ""


def stack_text(file: StackFile) -> str:
    """Return the text of the settings file."""
    lines = [_SCHEMA_LINE, *(f"# {line}" for line in _head(file)), "config:"]
    return "\n".join((*lines, *_config(file))) + "\n"


def _head(file: StackFile) -> Iterator[str]:
    resolved = file.solution.subject.resolved
    answer = file.solution.answer
    limits = file.limits
    chips = f"{resolved.accelerator.devices} {resolved.accelerator.name.partition('-')[0]} chip"
    bought = "on demand" if resolved.question.tpu.forms[0].model == "standard" else "flex-start"
    slice_ = f"{chips}{'' if resolved.accelerator.devices == 1 else 's'}, {bought}"
    place = slice_ if resolved.is_tpu else f"Cloud Run with one {resolved.accelerator.name}"
    origin = "the cheapest deployment that gemma plan --solve found for this workload"
    if file.source:
        origin = f"the server of {file.source}"
    yield f"{resolved.model_id} ({resolved.scheme.name}) on {place}: {origin}."
    asked = (
        ("TTFT {:g} s", limits.max_ttft_s),
        ("TPOT {:g} s", limits.max_tpot_s),
        ("${:g}/h", limits.max_usd_per_hour),
        ("{:g} tokens of context", limits.min_context),
    )
    words = ", ".join(form.format(value) for form, value in asked if value is not None)
    yield (
        f"Planned: ${file.solution.usd_per_hour:.2f}/h; TTFT {answer.ttft_s.typical:.2f} s and TPOT {answer.tpot_s.typical * 1e3:.1f} ms, typical"
        f"{f'. Limits: {words}' if words else ''}."
    )
    yield f"Omitted settings use the planner's recommendations. To show them, run gemma plan {file.name}."
    if file.email is None:
        command = f"pulumi config set --path {PRODUCT}:alerts.email you@example.com --stack {file.name}"
        yield f"Only the console and gemma alerts show alerts. To receive them, run {command}."


def _config(file: StackFile) -> Iterator[str]:
    solution = file.solution
    resolved = solution.subject.resolved
    question = solution.question
    image = solution.image
    config: dict[str, object] = {
        "target": "tpu" if resolved.is_tpu else "cloud-run",
        "model": file.own_model[0] if file.own_model else resolved.model_id,
        "modelConfig": file.own_model and json.dumps(file.own_model[1]),
        "modelRevision": file.revision and json.dumps(file.revision),
        "quantization": question.settings.quantization,
        "image": image,
        "weights": "hub" if resolved.weights_mode == "hub" and not file.is_off_hub else "bucket",
        # As the stacks of this repository, because a forgotten experiment costs the most.
        "maxAge": "24h" if resolved.is_tpu else "7d",
        "prices": file.prices and json.dumps(_from_root(file.prices)),
        "workload": inline_yaml(stated(solution.answer.workload, always=("input_tokens", "output_tokens"))),
        "vllm": dict(_vllm(question.settings.vllm)),
        **_hardware(question),
        "alerts": file.email and {"email": json.dumps(file.email)},
    }
    comments = dict(_COMMENTS)
    if image is not None:
        build = IMAGES[image].build_context
        comments["image"] = (
            f"No published image loads this model. `gemma up` builds the image with Docker from {build}."
        )
    yield from (f"  {line}" for line in _lines(config, comments, f"{PRODUCT}:"))


def _lines(block: Mapping[str, object], comments: Mapping[str, str], namespace: str = "") -> Iterator[str]:
    for key, value in block.items():
        if value is not None and key in comments:
            yield f"# {comments[key]}"
        if isinstance(value, dict) and value:
            yield f"{namespace}{key}:"
            yield from (f"  {line}" for line in _lines(cast("dict[str, object]", value), comments))
        elif value is not None:
            yield f"{namespace}{key}: {value}"


def _from_root(path: Path) -> str:
    """Return the path of a file of prices inside the project. Raises CommandRefusedError for a path outside."""
    whole = path.resolve()
    if not whole.is_relative_to(ROOT.resolve()):
        raise CommandRefusedError(f"--prices {path} is outside the project. Copy the file into {ROOT}, then retry.")
    return str(whole.relative_to(ROOT.resolve()))


def _hardware(question: Question) -> Mapping[str, object]:
    """Return the block of the slice or of the service, with a line for each key."""
    is_service = question.facts.platform == "cloud-run"
    block = question.cloud_run if is_service else question.tpu
    key = "cloudRun" if is_service else "tpu"
    return {key: {name: inline_yaml(value) for name, value in stated(block, always=("provisioning",)).items()}}


def _vllm(options: VllmOptions) -> Iterator[tuple[str, str]]:
    blocks: dict[str, dict[str, object]] = {}
    for one in fields(options):
        value: object = getattr(options, one.name)
        if value is None or value == ():
            continue
        block, _, key = KEY_OF[one.name].rpartition(".")
        if block:
            blocks.setdefault(block, {})[key] = value
        else:
            yield key, value if isinstance(value, str) else json.dumps(value)
    for block, values in blocks.items():
        yield block, inline_yaml(values)
