"""Tables of docs/components.md (arguments) and docs/package.md (inputs), from the fields that the schema of the package has too."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING
from typing import Any, Final

from dev.authors.tables import table
from gemma_serving.components.cloud_run_gpu_service import CloudRunGpuServiceArgs
from gemma_serving.components.gke_model_server import GkeModelServerArgs
from gemma_serving.components.model_bucket import ModelBucketArgs
from gemma_serving.components.private_network import PrivateNetworkArgs
from gemma_serving.components.stored_secret import StoredSecretArgs
from gemma_serving.components.tpu_queued_resource import TpuQueuedResourceArgs
from gemma_serving.components.vllm_server import VllmServer
from gemma_serving.planning.settings.fields import own_fields
from gemma_serving.stacks.package.inputs import REASONS
from gemma_serving.stacks.package.schema import COMPONENTS, Component, inputs_of, outputs_of
from gemma_serving.stacks.schema import blocks, texts_below_fields

_ARGUMENTS: Final[Mapping[str, type[Any]]] = {
    "token-arguments": StoredSecretArgs,
    "bucket-arguments": ModelBucketArgs,
    "network-arguments": PrivateNetworkArgs,
    "server-arguments": VllmServer,
    "service-arguments": CloudRunGpuServiceArgs,
    "capacity-arguments": TpuQueuedResourceArgs,
    "gke-arguments": GkeModelServerArgs,
}
"""Class of arguments, by the marker of its table."""
_OF_EACH: Final = {"project", "ownership", "labels"}
"""Arguments that the page describes once for all components."""
_PAGE: Final = re.compile(r"docs/([\w./-]+\.md)")


def tables() -> Mapping[str, str]:
    """Return every table by its marker in the page. An argument with a default is optional."""
    outputs = {name: [f"`{one.key}`" for one in outputs_of(component, {})] for name, component in COMPONENTS.items()}
    return {
        **{name: table("argument | meaning", _arguments(owner)) for name, owner in _ARGUMENTS.items()},
        **{name: table("input | meaning", _inputs(one)) for name, one in COMPONENTS.items() if one.block},
        "package-outputs": table(
            "component | outputs", ((f"`{name}`", ", ".join(keys)) for name, keys in outputs.items())
        ),
        "not-offered": table(
            "settings | reason", ((", ".join(f"`{key}`" for key in keys.split()), why) for why, keys in REASONS.items())
        ),
    }


def _arguments(owner: type[Any]) -> Iterator[tuple[str, str]]:
    """Yield each argument that not every component has, and the text below it."""
    texts = dict(texts_below_fields(owner))
    for field in own_fields(owner):
        if field.path not in _OF_EACH:
            inner = own_fields(field.block) if field.path in {"service", "tpu"} and field.block else ()
            needed = [one.path for one in inner if one.default is MISSING]
            yield _row(field.path, texts[field.path], needed, is_required=field.default is MISSING)


def _inputs(component: Component) -> Iterator[tuple[str, str]]:
    """Yield each input of a component of the package, as YAML spells it, and the first paragraph of its description.

    The last row has the optional settings, which the page of settings describes.
    """
    types: dict[str, Any] = {}
    inputs = list(inputs_of(component, types))
    (_, whole_file), *_ = blocks()
    optional = [one for one in inputs if one.key in whole_file["properties"] and not one.is_required]
    for one in (each for each in inputs if each not in optional):
        block = types.get(one.schema.get("$ref", "").rpartition("/")[2], {})
        text = one.schema["description"].split("\n\n")[0]
        yield _row(one.key, text, block.get("required", []), is_required=one.is_required)
    yield ", ".join(f"`{one.key}`" for one in optional), "as in a [settings file](reference/settings.md#top-level-keys)"


def _row(name: str, text: str, needed: Sequence[str], *, is_required: bool) -> tuple[str, str]:
    meaning = _PAGE.sub(lambda found: f"[{found[1].rpartition('/')[2]}]({found[1]})", " ".join(text.split()))
    keys = f" Required keys: {', '.join(f'`{key}`' for key in needed)}." if needed else ""
    return f"`{name}`{' (required)' if is_required else ''}", f"{meaning}{keys}"
