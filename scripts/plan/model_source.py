"""Source of a model's architecture on the hub or in a bucket."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote

from cloud.model_files import CONFIG, INDEX
from planning.errors import PlanningError
from planning.model.spec import ModelSpec
from scripts.cli.command import say

_NOT_FOUND: Final = 404

JsonObject = Mapping[str, object]


def from_hub(model: str, *, save: Path | None) -> ModelSpec:
    """Return a model's architecture from the Hugging Face hub. Raises ScriptError."""
    from cloud.hub import config_of  # noqa: PLC0415 - slow to load

    config, index = config_of(model)
    return _spec(model, config, index, save)


def from_bucket(bucket: str, folder: str, *, name: str, save: Path | None) -> ModelSpec:
    """Return the architecture that `gemma stage_model` wrote next to the weights in a bucket's folder.

    Raises PlanningError if nothing is staged there, ScriptError if Cloud Storage cannot be read.
    """
    from cloud import google_api  # noqa: PLC0415 - slow to load
    from contracts.staged_weights import MANIFEST, file_names, folder_uri, object_name, weights_bytes  # noqa: PLC0415 - only with a bucket
    from stacks.loading import project_from_environment  # noqa: PLC0415 - only with a bucket

    project = project_from_environment()
    google = google_api.connect(*([project] if project else []))

    def read(file: str) -> JsonObject:
        return google.get("storage", f"storage/v1/b/{bucket}/o/{quote(object_name(folder, file), safe='')}?alt=media")

    try:
        manifest = read(MANIFEST)
        config = read(CONFIG)
        index = read(INDEX) if INDEX in file_names(manifest) else None
    except google_api.GoogleListError as error:
        if error.status != _NOT_FOUND:
            raise
        raise PlanningError(
            f"{folder_uri(bucket, folder)} has no {MANIFEST}: no weights are staged. Run `gemma stage_model`."
        ) from None
    size = weights_bytes(manifest)
    if index is None and size:
        index = {"metadata": {"total_size": size}}
    return _spec(name, config, index, save)


def _spec(name: str, config: JsonObject, index: JsonObject | None, save: Path | None) -> ModelSpec:
    from planning.model.hf_config import model_from_config  # noqa: PLC0415 - only models outside the catalog need it

    spec = model_from_config(config, name=name, index=index)
    if save is not None:
        save.mkdir(parents=True, exist_ok=True)
        (save / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        if index is not None:
            (save / INDEX).write_text(json.dumps(index) + "\n", encoding="utf-8")
        say("plan", f"wrote {save / CONFIG}. To use it in a stack, set gemma-serving:modelConfig to it.")
    return spec
