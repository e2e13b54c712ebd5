"""From the command line to the planner's question: names, `--set key=value`, `--config FILE`, `--prices FILE`, `--stack NAME`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from planning.errors import PlanningError
from planning.types import Deployment
from planning.vllm_args import VllmOptions

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterable, Mapping

    from planning.model import ModelSpec
    from planning.prices import PriceBook

ROOT: Final = Path(__file__).resolve().parents[2]


def _whole(text: str) -> int:
    return int(text.replace("_", "").replace(",", ""))


def _truth(text: str) -> bool:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    return words[text.lower()]


_INTEGER: Final = ("a whole number", _whole)
_NUMBER: Final = ("a number", float)
_TEXT: Final = ("a word", str)

SET_KEYS: Final[Mapping[str, tuple[str, tuple[str, Callable[[str], Any]]]]] = {
    "gpuMemoryUtilization": ("gpu_memory_utilization", _NUMBER),
    "maxModelLen": ("max_model_len", _INTEGER),
    "maxNumSeqs": ("max_num_seqs", _INTEGER),
    "maxNumBatchedTokens": ("max_num_batched_tokens", _INTEGER),
    "kvCacheDtype": ("kv_cache_dtype", _TEXT),
    "blockSize": ("block_size", _INTEGER),
    "tensorParallelSize": ("tensor_parallel_size", _INTEGER),
    "cpuOffloadGib": ("cpu_offload_gib", _NUMBER),
    "enforceEager": ("enforce_eager", ("true or false", _truth)),
    "hostMemoryGib": ("", _NUMBER),
    "weightsMode": ("", _TEXT),
}
"""The keys of `--set`: the option that each means, what its value is, and how it is read."""


def deployment_from(args: Namespace) -> Deployment:
    """The deployment that the arguments describe.

    Raises:
        PlanningError: one sentence for a person, for every mistake.
    """
    if args.stack is not None:
        return of_stack(args.stack, prices=_prices(args.prices))
    settings = parse_set(args.set)
    given = {SET_KEYS[key][0]: value for key, value in settings.items() if SET_KEYS[key][0]}
    spec = _model_file(args.config, args.index, args.model)
    return Deployment(
        model=args.model or (spec.name if spec else ""),
        accelerator=args.accelerator or "",
        platform=args.platform,
        quantization=args.quantization,
        vllm=VllmOptions(**given),
        weights_mode=cast("Any", settings.get("weightsMode")),
        host_memory_gib=settings.get("hostMemoryGib"),
        model_spec=spec,
        prices=_prices(args.prices),
    )


def parse_set(pairs: Iterable[str]) -> dict[str, Any]:
    """`key=value` pairs by key, read and checked. Raises PlanningError."""
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        key = key.strip()
        if key not in SET_KEYS:
            raise PlanningError(f'--set knows no key "{key}"; allowed are {", ".join(SET_KEYS)}.')
        if not equals or not text.strip():
            raise PlanningError(f"--set {key} has no value; write --set {key}=VALUE.")
        wanted, read = SET_KEYS[key][1]
        try:
            found[key] = read(text.strip())
        except (ValueError, KeyError):
            raise PlanningError(f'--set {key} is "{text.strip()}"; it must be {wanted}.') from None
    return found


def of_stack(name: str, *, prices: PriceBook | None) -> Deployment:
    """The deployment of a stack's settings file, read without an engine. Raises PlanningError."""
    # pydantic and yaml cost more than the whole plan; only this path needs them.
    from stacks.loading import SettingsError, from_file  # noqa: PLC0415
    from stacks.planned import to_deployment  # noqa: PLC0415

    try:
        settings = from_file(ROOT / f"Pulumi.{name}.yaml", project="planned-without-a-project")
    except SettingsError as error:
        raise PlanningError(str(error)) from None
    deployment = to_deployment(settings)
    return replace(deployment, prices=prices) if prices else deployment


def _model_file(config: Path | None, index: Path | None, name: str | None) -> ModelSpec | None:
    if config is None:
        if index is not None:
            raise PlanningError("--index belongs to --config; give both.")
        return None
    from planning.hf_config import model_from_config  # noqa: PLC0415 - only with --config

    beside = config.parent / "model.safetensors.index.json"
    found = index or (beside if beside.exists() else None)
    return model_from_config(
        _read(config), name=name or config.resolve().parent.name, index=_read(found) if found else None
    )


def _prices(path: Path | None) -> PriceBook | None:
    if path is None:
        return None
    from planning.prices import PriceBook  # noqa: PLC0415 - only with --prices

    return PriceBook.from_mapping(_read(path))


def _read(path: Path) -> Mapping[str, object]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanningError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise PlanningError(f"{path} is not JSON: {error}.") from None
    if not isinstance(value, dict):
        raise PlanningError(f"{path} must hold one JSON object.")
    return cast("Mapping[str, object]", value)
