"""The mark of a staged checkpoint: `scripts.stage_model` writes it, the program, the doctor and the planner's command look for it."""

from collections.abc import Mapping, Sequence
from typing import Final, cast

MANIFEST: Final = "gemma-serving-manifest.json"
"""Written last: a folder of a bucket with a manifest holds the whole checkpoint."""

_WEIGHTS_SUFFIX: Final = ".safetensors"


def config_of(manifest: Mapping[str, object]) -> Mapping[str, object] | None:
    """Return the config.json that a manifest repeats; None if it was written before manifests did."""
    config = manifest.get("config")
    return cast("Mapping[str, object]", config) if isinstance(config, dict) else None


def file_names(manifest: Mapping[str, object]) -> Sequence[str]:
    """Return the names of the files that a manifest lists."""
    return [str(one.get("name")) for one in _files(manifest)]


def weights_bytes(manifest: Mapping[str, object]) -> int:
    """Return the size of the weights that a manifest lists; 0 if it lists none."""
    sizes = (one.get("size_bytes") for one in _files(manifest) if str(one.get("name")).endswith(_WEIGHTS_SUFFIX))
    return sum(size for size in sizes if isinstance(size, int))


def _files(manifest: Mapping[str, object]) -> Sequence[Mapping[str, object]]:
    files = manifest.get("files")
    return cast("Sequence[Mapping[str, object]]", files) if isinstance(files, list) else []
