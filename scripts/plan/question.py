"""Options of the command, and the question that they ask."""

import dataclasses
import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, get_origin

from gemma_serving.cloud.model_files import PROJECT
from gemma_serving.contracts.fields import as_mapping
from gemma_serving.contracts.settings_files import settings_file
from gemma_serving.planning.data.images import IMAGES, Image, built_name
from gemma_serving.planning.data.prices import PriceBook
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.machine.hardware import find_accelerator
from gemma_serving.planning.model.spec import ModelSpec
from gemma_serving.planning.model.support import is_version
from gemma_serving.planning.question.recommendation import TEXT_ONLY
from gemma_serving.planning.rules.alternatives import version_of
from gemma_serving.planning.settings.fields import file_key
from gemma_serving.planning.settings.image import NO_IMAGE, ImageSettings, image_of_version, named_image
from gemma_serving.planning.settings.paths import question_fields, with_changes
from gemma_serving.planning.settings.question import Question
from gemma_serving.planning.settings.reading import list_items
from gemma_serving.planning.settings.vllm_args import OPTIONS, VllmOptions
from gemma_serving.planning.settings.vllm_blocks import block_changes, stated_in_blocks
from gemma_serving.planning.settings.workload import parse_workload
from gemma_serving.planning.solve.remedy_wording import NO_STACK, Wording
from gemma_serving.scripts.plan.plan_options import NONE, QuestionOptions
from gemma_serving.scripts.plan.set_option import (
    OF_NAMED_IMAGE,
    OWN_OPTION,
    is_of_vllm_block,
    no_value,
    option_value,
    parse_set,
    parts_of,
    set_blocks,
    set_keys,
)
from gemma_serving.scripts.stack.settings import NO_PROJECT

if TYPE_CHECKING:
    from gemma_serving.planning.settings.stack import Settings

ROOT: Final = PROJECT


class CommandWording(NamedTuple):
    """Fields spelled as options, so a remedy can be pasted at the end of the command line."""

    has_release: bool = True
    """True if the command line may name a release with `--vllm`, which counts before the release of `--image`."""
    stack: str = NO_STACK
    in_blocks: tuple[str, ...] = ()
    """Options of vLLM that the command line sets by keys of blocks (`Settings.vllm_in_blocks`)."""

    def change(self, changes: Mapping[str, object]) -> str:
        """Return the options that apply the changes."""
        image = _image_name(changes)
        words = () if image is None else ("--image", image, *(("--vllm", NONE) if self.has_release else ()))
        rest = {path: value for path, value in changes.items() if path != "image"}
        return "add " + shlex.join((*(word for path in rest for word in self._words(path, rest[path])), *words))

    def _words(self, path: str, value: object) -> Sequence[str]:
        if path in OWN_OPTION or path == "device":
            return (OWN_OPTION.get(path, "--device"), str(value or "none"))
        if (keys := block_changes(path, value, self.in_blocks)) is not None:
            texts = {key: json.dumps(one) if isinstance(one, Mapping) else one for key, one in keys.items()}
            pairs = (f"{key}={NONE if one is None else one}" for key, one in texts.items())
            return [word for pair in pairs for word in ("--set", pair)]
        field = question_fields().get(path)
        if field is None:
            return ("--set", f"{file_key(path)}={NONE}")
        return ("--set", f"{field.key}={option_value(field, value)}")


def _image_name(changes: Mapping[str, object]) -> str | None:
    """Return the value of `--image` for the changes; None for another image or none."""
    if "image" not in changes:
        return None
    return NONE if changes["image"] is None else built_name(version_of(changes))


def question_from(options: QuestionOptions) -> Question:
    """Return the question. Raises PlanningError with one sentence for any error."""
    ours = [pair for pair in options.set if options.stack is None or not _is_of_file(pair)]
    found = _described(options) if options.stack is None else _of_stack(options)
    if options.workload is not None:
        found = found.changed(workload=parse_workload(options.workload))
    if options.stack is None:
        ours = [one for pair in ours for one in _flat(pair)]
    blocks = [pair for pair in ours if is_of_vllm_block(pair)]
    if blocks:
        found = with_changes(found, _of_vllm_blocks(blocks))
    rest = [pair for pair in ours if pair not in blocks]
    if rest:
        found = with_changes(found, parse_set(rest, other_keys=() if options.stack is None else _file_keys()))
    return found


def _flat(pair: str) -> Iterator[str]:
    """Yield a pair whose value is a block in YAML, such as `tpu.existingNetwork={network: n}`, as one pair for each key; others unchanged."""
    key, _, text = parts_of(pair)
    is_value = key in set_keys()
    if not text.startswith("{") or not (is_value or key in set_blocks()):
        yield pair
        return
    block = as_mapping(_in_yaml(key, text))
    if is_value or not block:
        yield f"{key}={json.dumps(block)}"
        return
    for name, value in block.items():
        words = value if isinstance(value, str) else json.dumps(value)
        yield from _flat(f"{key}.{name}={words}")


def _of_vllm_blocks(pairs: Sequence[str]) -> Mapping[str, object]:
    """Return the options that keys such as `vllm.speculative.method` set, by path. Raises PlanningError and SettingsError."""
    from gemma_serving.stacks.loading import vllm_options  # noqa: PLC0415 - as below

    blocks: dict[str, dict[str, object]] = {}
    for pair in pairs:
        key, _, text = parts_of(pair)
        block, _, name = key.removeprefix("vllm.").partition(".")
        if name:
            blocks.setdefault(block, {})[name] = None if text == NONE else _in_yaml(key, text)
        else:
            blocks.pop(block, None)
    options = vllm_options(blocks, "--set")
    values = {option.name: getattr(options, option.name) for option in OPTIONS.values()}
    found = {f"vllm.{name}": value for name, value in values.items() if value not in (None, ())}
    return {**found, "vllm_in_blocks": tuple(stated_in_blocks(blocks))}


def _described(options: QuestionOptions) -> Question:
    from gemma_serving.cloud.model_files import read_model  # noqa: PLC0415 - keeps --help fast
    from gemma_serving.planning.machine.devices import parse_device  # noqa: PLC0415 - only with --device

    spec = _model_spec(options)
    image = _image(options)
    release = _given(options.vllm)
    if release is not None and not is_version(release):
        raise PlanningError(f'--vllm is "{release}"; it must be a release of vLLM, such as 0.25.1 or 0.29.1rc1.dev468.')
    return Question().changed(
        model=options.model or (spec.name if spec else ""),
        accelerator=options.accelerator or "",
        platform=_given(options.platform),
        quantization=_given(options.quantization),
        vllm=VllmOptions(limit_mm_per_prompt=dict(TEXT_ONLY)) if options.text_only else VllmOptions(),
        model_spec=spec,
        draft_spec=read_model(options.draft_config) if options.draft_config else None,
        image=_image_settings(image, release),
        device=parse_device(options.device) if options.device and _given(options.device) else None,
        price_book=prices_of(options),
    )


def _image(options: QuestionOptions) -> Image | None:
    """Return the named image. Raises PlanningError for an unknown one, and for one of the other kind of accelerator."""
    name, device = _given(options.image), find_accelerator(options.accelerator or "")
    if name is None:
        return None
    if name not in IMAGES:
        raise PlanningError(f'--image is "{name}". Allowed: {", ".join(IMAGES)}.')
    is_for_tpu = IMAGES[name].platform == "tpu"
    if device is not None and device.is_tpu != is_for_tpu:
        kind = "TPUs" if is_for_tpu else "GPUs"
        raise PlanningError(f"--image {name} is an image for {kind}, but {device.name} is not one.")
    return IMAGES[name]


def _image_settings(image: Image | None, release: str | None) -> ImageSettings:
    """Return the image of a question: the named one, with another release of vLLM an unknown build of it."""
    if release is None:
        return NO_IMAGE if image is None else named_image(image)
    known = image_of_version(release)
    return known if image is None else dataclasses.replace(known, supports=image.supports, audio=image.decodes_audio)


def _given(word: str | None) -> str | None:
    return None if word == NONE else word


def _file_keys() -> Sequence[str]:
    """Return the path of each key of a settings file, such as `tpu.acceleratorType`."""
    from gemma_serving.stacks.schema import blocks  # noqa: PLC0415 - only with --stack

    return [
        f"{path.partition(':')[2]}.{name}".removeprefix(".") for path, block in blocks() for name in block["properties"]
    ]


def stack_file(name: str) -> Path:
    """Return the settings file of a stack."""
    return ROOT / f"Pulumi.{name}.yaml"


def _is_of_file(pair: str) -> bool:
    """Return whether a pair's key belongs to a settings file, such as `tpu.maxRunDuration`, rather than only to a question."""
    from gemma_serving.stacks.schema import PRODUCT, known_keys  # noqa: PLC0415 - only with --stack

    key = pair.partition("=")[0].strip()
    return ":" in key or (key not in OF_NAMED_IMAGE and key.partition(".")[0] in known_keys(PRODUCT))


def _in_yaml(key: str, text: str) -> object:
    """Return the value of a text as in a settings file. Raises PlanningError."""
    import yaml  # noqa: PLC0415 - as stacks.loading, with which it takes longer than a plan

    from gemma_serving.stacks.loading import read_yaml  # noqa: PLC0415 - as above

    try:
        return read_yaml(text)
    except (ValueError, yaml.YAMLError) as error:
        raise PlanningError(f'--set {key} is "{text}", which is not a value in YAML.') from error


def _as_in_a_file(key: str, text: str) -> object:
    """Return the value of a text for a settings file: the items of a list, otherwise a value in YAML. Raises PlanningError."""
    field = set_keys().get(key)
    if field is None or get_origin(field.hint) is not tuple:
        return _in_yaml(key, text)
    try:
        return list_items(text)
    except ValueError as error:
        raise PlanningError(f'--set {key} is "{text}"; {error}.') from None


def settings_of(options: QuestionOptions) -> "Settings":
    """Return the settings of the question's stack with its changed keys, without running the engine. Raises PlanningError and SettingsError."""
    from gemma_serving.stacks.loading import from_file  # noqa: PLC0415 - only with --stack

    changes = changes_of_file(filter(_is_of_file, options.set))
    return from_file(settings_file(options.stack or "", ROOT), project=NO_PROJECT, changes=changes)


def changes_of_file(pairs: Iterable[str]) -> Mapping[str, object]:
    """Return the values of `--set` for a settings file by key; None removes a key. Raises PlanningError."""
    changes = dict[str, object]()
    for pair in pairs:
        key, _, text = parts_of(pair)
        if not text:
            raise no_value(key)
        changes[key] = None if text == NONE else _as_in_a_file(key, text)
    return changes


def _of_stack(options: QuestionOptions) -> Question:
    """Return the question of a stack's settings. Raises PlanningError."""
    from gemma_serving.stacks.planned import to_question  # noqa: PLC0415 - only with --stack

    settings = settings_of(options)
    question = to_question(settings)
    if options.from_hub:
        from gemma_serving.scripts.plan.model_source import from_hub  # noqa: PLC0415 - only with --from-hub

        question = question.changed(model_spec=from_hub(settings.model, save=options.save))
    return question.changed(price_book=prices_of(options)) if options.prices else question


def wording_of(options: QuestionOptions, question: Question) -> Wording:
    """Return the wording of findings: settings keys for a stack, options otherwise."""
    if options.stack is None:
        return CommandWording(has_release=options.vllm is not None, in_blocks=question.settings.vllm_in_blocks)
    from gemma_serving.stacks.settings_wording import StackWording  # noqa: PLC0415 - only with --stack

    return StackWording(question, options.stack)


def _model_spec(options: QuestionOptions) -> ModelSpec | None:
    from gemma_serving.cloud.model_files import read_model  # noqa: PLC0415 - keeps --help fast
    from gemma_serving.scripts.plan.model_source import from_hub  # noqa: PLC0415 - keeps --help fast

    if options.from_hub:
        return from_hub(options.model or "", save=options.save)
    if options.config is None:
        return None
    return read_model(options.config, name=options.model)


def prices_of(options: QuestionOptions) -> PriceBook | None:
    """Return the prices of `--prices` with the refreshed ones; None without either. Raises PlanningError."""
    from gemma_serving.cloud.price_file import refreshed_book, with_refreshed  # noqa: PLC0415 - keeps --help fast

    if options.prices is None:
        return refreshed_book()
    from gemma_serving.cloud.model_files import read_object  # noqa: PLC0415 - only with --prices

    return with_refreshed(PriceBook.from_mapping(read_object(options.prices)))
