"""A pasted server as a question: the settings that say the same, and the words that none of them has."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from gemma_serving.contracts.path_guard import GUARD_ARGUMENT
from gemma_serving.planning.data.checkpoints import find_checkpoint
from gemma_serving.planning.data.exposure import NO_DOMAIN, exposure_arguments
from gemma_serving.planning.data.images import DEFAULT_IMAGES, IMAGES
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.machine.hardware import find_accelerator
from gemma_serving.planning.model.support import is_version
from gemma_serving.planning.question.extra_arguments import is_secret, secret_arguments
from gemma_serving.planning.question.server_flags import ServerArgument, flag_table, parse_arguments
from gemma_serving.planning.rules.arguments import owner_of, user_values
from gemma_serving.planning.settings.paths import question_fields
from gemma_serving.planning.settings.vllm_args import (
    ADDITIONAL_CONFIG,
    OPTIONS,
    REVISION,
    SHUTDOWN_FLAG,
    STREAMER,
    VllmOptions,
    vllm_environment,
)
from gemma_serving.scripts.cli.lines import GLUE, wrapped
from gemma_serving.scripts.plan.pasted import VARIABLE, pasted_server
from gemma_serving.scripts.plan.plan_options import QuestionOptions
from gemma_serving.scripts.plan.set_option import option_value

_MODEL: Final = "--model"
_OF_STACK: Final = (SHUTDOWN_FLAG, *(one.partition("=")[0] for one in exposure_arguments(has_api_key=False)))
"""Flags without a setting that each stack sets."""
_UNSET: Final = VllmOptions(enable_prefix_caching=False)
"""No options. Prefix caching counts as off, so its flag has a key, too, although the flag alone changes nothing."""
_COLUMNS: Final = 76
_FOLDERS: Final = ("/", "./", "../", "~", "gs://", "s3://")
_TITLES: Final[Mapping[str, str]] = {
    "by_stack": "Set by each stack",
    "extra": "Without a setting of its own, in vllm.extraArgs",
    "left_out": "Left out",
    "secrets": "Secrets, neither shown nor kept (gemma save_token stores them)",
}


@dataclass(frozen=True, kw_only=True)
class Pasted:
    """A pasted server in the words of this project."""

    source: str
    """The file; empty for a line."""
    model: str
    accelerator: str
    image: str | None
    """Name of the image, if its digest is in the table."""
    vllm: str | None
    """Release of the image, if its tag states one."""
    revision: str | None
    pairs: tuple[str, ...]
    """Settings in the form of `--set`."""
    words: Mapping[str, Sequence[str]]
    """Words that are not settings, by the keys of `_TITLES`: names, never the value of a secret."""

    def asked(self, question: QuestionOptions) -> QuestionOptions:
        """Return the question with the pasted server. Options of the command line count first."""
        image = {} if question.image or question.vllm else {"image": self.image, "vllm": self.vllm}
        place = question.accelerator or (None if question.device else self.accelerator or None)
        return replace(question, model=self.model, accelerator=place, set=(*self.pairs, *question.set), **image)

    def lines(self, question: QuestionOptions) -> Iterator[str]:
        """Yield the lines below the plan of a question."""
        named = ("model", "accelerator", "image", "vllm")
        words = [[f"--{name}", value] for name in named if (value := getattr(question, name))]
        yield "The same as settings:"
        compared = [] if question.accelerator or question.device else [["--compare"]]
        groups = map(shlex.join, [*words, *(["--set", pair] for pair in question.set), *compared])
        command = " ".join(["  gemma plan", *(group.replace(" ", GLUE) for group in groups)])
        yield " \\\n".join(wrapped(command, _COLUMNS, "    "))
        yield from self.listed()
        if self.source:
            yield f"As a stack: gemma init NAME --from {shlex.quote(self.source)}"

    def listed(self) -> Iterator[str]:
        """Yield the words that are not settings."""
        yield from (f"{title}: {', '.join(self.words[key])}" for key, title in _TITLES.items() if self.words[key])


def pasted(
    source: Path | None, line: Sequence[str], question: QuestionOptions, *, drops_unknown: bool = False
) -> Pasted:
    """Return the server of a file or of a line, also without the flags that vLLM does not have. Raises PlanningError."""
    server = pasted_server(source, line)
    device = find_accelerator(question.accelerator or server.accelerator)
    image, release = _image_of(server.image)
    usual = DEFAULT_IMAGES["tpu" if device is not None and device.is_tpu else "cloud-run"]
    stated = IMAGES.get(question.image or image or usual, IMAGES[usual])
    every = parse_arguments(
        server.words, flag_table(question.vllm or (not question.image and release) or stated.version)
    )
    secret = secret_arguments(every, server.words)
    unset = [one for one in every if one not in secret and _is_unset(one, server.words)]
    read = [one for one in every if one not in (*secret, *unset)]
    owners = {one: owner_of(one, read, _UNSET) for one in read if one.written}
    rules = [one for one in owners if one.name == ADDITIONAL_CONFIG and user_values([one], _UNSET)[0].changes]
    owners |= dict.fromkeys(rules, "vllm.tpuQuantization")
    found = user_values([one for one, owner in owners.items() if owner.startswith("vllm.")], _UNSET)
    ours = [one for one, owner in owners.items() if owner[:5] not in {"", "vllm."} or _is_of_stack(one)]
    others = [one for one, owner in owners.items() if not owner and one not in ours]
    extra = [one for one in others if not (drops_unknown and one.problem)]
    flags = {one.name: one.value[0] for one in ours if one.value}
    stray = [server.words[one.words[0]] for one in read if not one.written]
    given = " ".join((flags.get(_MODEL) or next(iter(stray), "")).split())
    values: dict[str, Any] = {path: value for one in found for path, value in one.changes.items()}
    named = [" ".join(" ".join(server.words[at] for at in one.words).split()) for one in unset]
    model = _model(given.removeprefix("hf://"), str(values.get("vllm.served_model_name", "")), named, source)
    same = _drop_own(values, model)
    if extra:
        values["vllm.extra_args"] = tuple(word for one in extra for word in _spelled(one))
    settings = dict(server.settings)
    if given.startswith("gs://") and values.get("vllm.load_format") == STREAMER and device and not device.is_tpu:
        settings["cloudRun.mount.mode"] = "streamer"
    fields = question_fields()
    settings |= {fields[path].key: option_value(fields[path], value) for path, value in values.items()}
    known = vllm_environment(is_tpu=True, is_moe=True, cuda_compatibility=True)
    secrets = [name for name, value in server.variables.items() if is_secret(f"--{name}", value)]
    left_out = [
        *(flag for one in found if not one.changes for flag in one.flags),
        *(one.written for one in others if one not in extra),
        *stray[_MODEL not in flags :],
        *named,
        *(name for name in server.variables if name.startswith("VLLM_") and name not in {*known, *secrets}),
        *([server.image] if server.image and not (image or release) else []),
    ]
    words = {
        "by_stack": [given] * given.startswith(_FOLDERS) + [one.written for one in ours if one.name != _MODEL] + same,
        "extra": [one.written for one in extra],
        "left_out": left_out,
        "secrets": [*(one.written or "a word" for one in secret), *secrets],
    }
    return Pasted(
        source="" if source is None else str(source),
        model=model,
        accelerator=device.name if device is not None and not question.accelerator else server.accelerator,
        image=image,
        vllm=release,
        revision=flags.get(REVISION),
        pairs=tuple(f"{key}={value}" for key, value in settings.items()),
        words={key: [*dict.fromkeys(" ".join(one.split()) for one in names)] for key, names in words.items()},
    )


def _is_of_stack(argument: ServerArgument) -> bool:
    return argument.name in _OF_STACK or GUARD_ARGUMENT in _spelled(argument)


def _is_unset(argument: ServerArgument, words: Sequence[str]) -> bool:
    """Return whether an argument has a variable without a value. Of a model's folder, only the name counts."""
    given = argument.value[-1] if argument.value else words[argument.words[-1]]
    is_folder = argument.name in {"", _MODEL} and given.startswith(_FOLDERS)
    named = [given.rpartition("/")[2]] if is_folder else [words[at] for at in argument.words]
    return any(VARIABLE.search(word) for word in named) and not is_secret(argument.written)


def _spelled(argument: ServerArgument) -> tuple[str, ...]:
    """Return an argument as words, with the value of a flag attached."""
    is_single = len(argument.value) == 1
    return (f"{argument.written}={argument.value[0]}",) if is_single else (argument.written, *argument.value)


def _image_of(reference: str) -> tuple[str | None, str | None]:
    """Return the name of an image with this digest, or the release of vLLM that a tag states."""
    name, _, digest = reference.partition("@")
    found = next((key for key, one in IMAGES.items() if one.digest == digest and one.build_context is None), None)
    tag = name.rpartition("/")[2].partition(":")[2].removeprefix("v").partition("-")[0]
    return found, tag if found is None and "vllm" in name and is_version(tag) else None


def _model(given: str, served: str, unset: Sequence[str], source: Path | None) -> str:
    """Return the id of the model, or of the one in a folder. Raises PlanningError."""
    name = "The line after --" if source is None else f"--from {source}"
    if not given:
        missing = next((one for one in unset if not one.startswith("-") or one.startswith(_MODEL)), "")
        why = f"has its model in a variable that it does not set ({missing})" if missing else "names no model"
        raise PlanningError(f"{name} {why}. Write the id, such as google/gemma-4-31B-it.")
    if not given.startswith(_FOLDERS):
        return given
    parts = given.rstrip("/").split("/")
    names = [*served.split(), "/".join(parts[-2:]), parts[-1]]
    found = next((one for one in map(find_checkpoint, names) if one is not None), None)
    own = next((one for one in served.split() if "/" in one), "")
    if found is None and not own:
        raise PlanningError(
            f"{name} serves the folder {given}, whose model is not known. Write {OPTIONS['servedModelName'].flag} with its id."
        )
    return found.id if found is not None else own


def _drop_own(values: dict[str, Any], model: str) -> list[str]:
    """Remove the values that each stack sets, and return their flags. A drafter in a folder becomes its id."""
    names, domains = OPTIONS["servedModelName"], OPTIONS["allowedMediaDomains"]
    is_own = {
        names.name: str(values.get(f"vllm.{names.name}")).lower() == model.lower(),
        domains.name: values.get(f"vllm.{domains.name}") == (NO_DOMAIN,),
    }
    drafter = str(values.get("vllm.speculative_config", {}).get("model", ""))
    known = find_checkpoint(drafter.rstrip("/").rpartition("/")[2]) if drafter.startswith(_FOLDERS) else None
    if known is not None:
        values["vllm.speculative_config"] = {**values["vllm.speculative_config"], "model": known.id}
    return [one.flag for one in (names, domains) if is_own[one.name] and values.pop(f"vllm.{one.name}")]
