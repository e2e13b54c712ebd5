"""Options of the command, and the deployment that they describe."""

import json
import shlex
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from msgspec.structs import replace

from contracts.fields import camel_case
from contracts.spelling import did_you_mean, did_you_mean_path
from planning.data.images import IMAGES, Image, built_name
from planning.data.prices import PriceBook
from planning.errors import PlanningError
from planning.machine.hardware import find_accelerator
from planning.model.spec import ModelSpec
from planning.model.support import is_version
from planning.question.fields import changed, field_types, is_duration, number_limits
from planning.question.recommendation import TEXT_ONLY
from planning.question.types import Deployment
from planning.question.vllm_args import KEY_OF, KINDS, OPTIONS, VllmOptions
from planning.question.workload import parse_workload
from planning.rules.findings import check_accepted
from planning.solve.wording import NO_STACK, Wording
from planning.units import format_duration, parse_duration_s
from scripts.cli.settings import NO_PROJECT
from scripts.plan.options import NONE, Question

if TYPE_CHECKING:
    from stacks.settings import Settings

ROOT: Final = Path(__file__).resolve().parents[2]
_PROBE: Final = "cloud_run.startup_probe"
OF_THE_IMAGE: Final = ("image_version", "image_digest", "image_supports", "image_audio")
_OPTIONS: Final = {
    **{name: f"--{name}" for name in ("model", "accelerator", "platform", "quantization")},
    "image_version": "--vllm",
}
"""Fields that have their own option."""


@cache
def set_keys() -> Mapping[str, str]:
    """Return the keys of `--set` with the path of each field: all fields without their own option."""
    return {_key(path): path for path in field_types() if path not in _OPTIONS}


def _key(path: str) -> str:
    """Return the `--set` key of a field, which is the last part of its path without a duration's unit."""
    block, _, name = path.rpartition(".")
    if block == "vllm":
        return KEY_OF[name]
    key = camel_case(name.removesuffix("_s") if is_duration(path) else name)
    return f"startupProbe.{key}" if block.endswith("startup_probe") else key


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandWording:
    """Fields spelled as options, so a remedy can be pasted at the end of the command line."""

    has_release: bool = True
    """True if the command line may name a release with `--vllm`, which counts before the release of `--image`."""
    stack: str = NO_STACK

    def key(self, path: str) -> str:
        """Return the option, or the key of `--set`."""
        if path == _PROBE:
            return "startupProbe"
        return _OPTIONS.get(path) or (_key(path) if path in field_types() else path)

    def change(self, changes: Mapping[str, object]) -> str:
        """Return the options that apply the changes."""
        image = _image_name(changes)
        words = () if image is None else ("--image", image, *(("--vllm", NONE) if self.has_release else ()))
        rest = {path: value for path, value in changes.items() if image is None or path not in OF_THE_IMAGE}
        return "add " + shlex.join((*(word for path in rest for word in self._words(path, rest[path])), *words))

    def _words(self, path: str, value: object) -> Sequence[str]:
        if path in _OPTIONS or path == "device":
            return (_OPTIONS.get(path, "--device"), str(value or "none"))
        return ("--set", f"{self.key(path)}={_spelled(path, value)}")


def _image_name(changes: Mapping[str, object]) -> str | None:
    """Return the value of `--image` for the changes; None for another image or none."""
    if "image_version" not in changes:
        return None
    return NONE if changes["image_version"] is None else built_name(changes["image_version"])


def _spelled(path: str, value: object) -> str:
    """Return a value in the form that `--set` parses."""
    if value is None:
        return NONE
    if is_duration(path):
        return format_duration(cast("int", value))
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return json.dumps(value, separators=(",", ":"))
    if isinstance(value, tuple):
        return " ".join(cast("tuple[str, ...]", value)) or NONE
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def deployment_from(question: Question) -> Deployment:
    """Return the requested deployment. Raises PlanningError with one sentence for any error."""
    ours = [pair for pair in question.set if question.stack is None or not _is_of_file(pair)]
    found = _described(question) if question.stack is None else _of_stack(question)
    if question.workload is not None:
        found = replace(found, workload=parse_workload(question.workload))
    if ours:
        found = changed(found, parse_set(ours, of_stack=question.stack is not None))
    problem = check_accepted(found.accept_findings)
    if problem:
        raise PlanningError(f"--set acceptFindings: {problem}.")
    return found


def _described(question: Question) -> Deployment:
    from cloud.model_files import read_model  # noqa: PLC0415 - keeps --help fast
    from planning.machine.devices import parse_device  # noqa: PLC0415 - only with --device

    spec, image, release = _model_spec(question), _image(question), _given(question.vllm)
    if release is not None and not is_version(release):
        raise PlanningError(f'--vllm is "{release}"; it must be a release of vLLM, such as 0.25.1 or 0.29.1rc1.dev468.')
    return Deployment(
        model=question.model or (spec.name if spec else ""),
        accelerator=question.accelerator or "",
        platform=_given(question.platform),
        quantization=_given(question.quantization),
        vllm=VllmOptions(limit_mm_per_prompt=dict(TEXT_ONLY)) if question.text_only else VllmOptions(),
        model_spec=spec,
        draft_spec=read_model(question.draft_config) if question.draft_config else None,
        image_version=release or (image.version if image else None),
        image_digest=image.digest if image and not release else None,
        image_supports=image.supports if image else (),
        image_audio=image.decodes_audio if image else None,
        device=parse_device(question.device) if question.device and _given(question.device) else None,
        prices=prices_of(question),
    )


def _image(question: Question) -> Image | None:
    name, device = _given(question.image), find_accelerator(question.accelerator or "")
    if name is None:
        return None
    if name not in IMAGES:
        raise PlanningError(f'--image is "{name}". Allowed: {", ".join(IMAGES)}.')
    is_for_tpu = IMAGES[name].platform == "tpu"
    if device is not None and device.is_tpu != is_for_tpu:
        kind = "TPUs" if is_for_tpu else "GPUs"
        raise PlanningError(f"--image {name} is an image for {kind}, but {device.name} is not one.")
    return IMAGES[name]


def _given(word: str | None) -> str | None:
    return None if word == NONE else word


def parse_set(pairs: Iterable[str], *, of_stack: bool = False) -> dict[str, object]:
    """Return the values of `key=value` pairs by field, parsed and checked. Raises PlanningError.

    `of_stack`: a wrong key may be meant as one of a settings file.
    """
    keys, found = set_keys(), dict[str, object]()
    for pair in pairs:
        key, equals, text = pair.partition("=")
        key, text = key.strip(), text.strip()
        if key == "startupProbe" and text == NONE:
            found = {path: value for path, value in found.items() if not path.startswith(_PROBE)} | {_PROBE: None}
            continue
        if key not in keys:
            known = [*keys, *(_file_keys() if of_stack else ())]
            hint = did_you_mean(key, known) or did_you_mean_path(key, known)
            raise PlanningError(f'--set has no key "{key}".{hint} docs/reference/settings.md lists the keys.')
        if not equals or not text:
            raise PlanningError(f"--set {key} has no value. Write --set {key}=VALUE.")
        found.pop(_PROBE, None) if keys[key].startswith(_PROBE) else None
        found[keys[key]] = _read_value(key, keys[key], text)
    return found


def _file_keys() -> Sequence[str]:
    """Return the path of each key of a settings file, such as `tpu.acceleratorType`."""
    from stacks.schema import blocks  # noqa: PLC0415 - pydantic takes longer to load than a plan

    return [
        f"{path.partition(':')[2]}.{name}".removeprefix(".") for path, block in blocks() for name in block["properties"]
    ]


def _read_value(key: str, path: str, text: str) -> object:
    hint, is_optional = field_types()[path]
    if text == NONE and (is_optional or typing.get_origin(hint) is tuple):
        return None if is_optional else ()
    if path.startswith("vllm."):
        return OPTIONS[key].read(text)
    if is_duration(path):
        try:
            return parse_duration_s(text)
        except ValueError as error:
            raise PlanningError(f'--set {key} is "{text}"; {error}.') from None
    choices = typing.get_args(hint) if typing.get_origin(hint) is typing.Literal else ()
    if choices and text not in choices:
        raise PlanningError(f'--set {key} is "{text}". Use one of {", ".join(choices)}.')
    words, read = KINDS[str if choices else typing.get_origin(hint) or hint]
    limit = number_limits().get(path)
    try:
        value = read(text)
    except (ValueError, KeyError):
        value = None
    if value is None or (limit is not None and not limit.allows(cast("float", value))):
        allowed = f" of {limit}" if limit and limit.at_least is not None else f" {limit or ''}".rstrip()
        raise PlanningError(f'--set {key} is "{text}"; it must be {words}{allowed}.')
    return value


def stack_file(name: str) -> Path:
    """Return the settings file of a stack."""
    return ROOT / f"Pulumi.{name}.yaml"


def _is_of_file(pair: str) -> bool:
    """Return whether a pair's key belongs to a settings file, such as `tpu.maxRunDuration`.

    A key that both have is the planner's, except one with its own option and one with a list in YAML.
    """
    from stacks.schema import PRODUCT, known_keys  # noqa: PLC0415 - only with --stack

    key, _, text = (part.strip() for part in pair.partition("="))
    is_ours = key in {"startupProbe", *set_keys()} and key not in _OPTIONS and not text.startswith("[")
    return ":" in key or (not is_ours and key.partition(".")[0] in known_keys(PRODUCT))


def settings_of(question: Question) -> "Settings":
    """Return the settings of the question's stack with its changed keys, without running the engine. Raises PlanningError."""
    # pydantic and YAML take longer to load than the whole plan, and only this path needs them.
    import yaml  # noqa: PLC0415 - only with --stack

    from stacks.loading import SettingsError, from_file, read_yaml  # noqa: PLC0415 - only with --stack

    changes = dict[str, object]()
    for pair in filter(_is_of_file, question.set):
        key, _, text = (part.strip() for part in pair.partition("="))
        if not text:
            raise PlanningError(f"--set {key} has no value. Write --set {key}=VALUE.")
        try:
            changes[key] = None if text == NONE else read_yaml(text)
        except (ValueError, yaml.YAMLError) as error:
            raise PlanningError(f'--set {key} is "{text}", which is not a value in YAML.') from error
    try:
        return from_file(stack_file(question.stack or ""), project=NO_PROJECT, changes=changes)
    except SettingsError as error:
        raise PlanningError(str(error)) from None


def _of_stack(question: Question) -> Deployment:
    """Return the deployment of a stack's settings. Raises PlanningError."""
    from stacks.planned import to_deployment  # noqa: PLC0415 - only with --stack

    settings = settings_of(question)
    deployment = to_deployment(settings)
    if question.from_hub:
        from scripts.plan.model_source import from_hub  # noqa: PLC0415 - only with --from-hub

        deployment = replace(deployment, model_spec=from_hub(settings.model, save=question.save))
    return replace(deployment, prices=prices_of(question)) if question.prices else deployment


def wording_of(question: Question, deployment: Deployment) -> Wording:
    """Return the wording of findings: settings keys for a stack, options otherwise."""
    if question.stack is None:
        return CommandWording(has_release=question.vllm is not None)
    from stacks.wording import StackWording  # noqa: PLC0415 - only with --stack

    return StackWording(deployment, question.stack)


def _model_spec(question: Question) -> ModelSpec | None:
    from cloud.model_files import read_model  # noqa: PLC0415 - keeps --help fast
    from scripts.plan.model_source import from_hub  # noqa: PLC0415 - keeps --help fast

    if question.from_hub:
        return from_hub(question.model or "", save=question.save)
    if question.config is None:
        return None
    return read_model(question.config, name=question.model, index=question.index)


def prices_of(question: Question) -> PriceBook | None:
    """Return the prices of `--prices` with the refreshed ones; None without either. Raises PlanningError."""
    from cloud.price_file import refreshed_book, with_refreshed  # noqa: PLC0415 - keeps --help fast

    if question.prices is None:
        return refreshed_book()
    from cloud.model_files import read_object  # noqa: PLC0415 - only with --prices

    return with_refreshed(PriceBook.from_mapping(read_object(question.prices)))
