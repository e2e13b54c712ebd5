"""Where the architecture of a model comes from: a file or folder, the hub, or the manifest of a bucket."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from cloud.model_files import CONFIG, INDEX, read_model
from planning.errors import PlanningError
from planning.model.spec import ModelSpec

GS: Final = "gs://"
_NOT_FOUND: Final = 404


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """A config.json from elsewhere, with the index of the weights where there is one."""

    name: str
    config: Mapping[str, object]
    index: Mapping[str, object] | None

    def spec(self) -> ModelSpec:
        """Return the architecture. Raises PlanningError."""
        from planning.model.hf_config import model_from_config  # noqa: PLC0415 - only models outside the catalog need it

        return model_from_config(self.config, name=self.name, index=self.index)

    def save(self, folder: Path) -> None:
        """Write config and index into a folder, as `--config` and a stack's modelConfig read them. Raises PlanningError."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / CONFIG).write_text(json.dumps(self.config, indent=2) + "\n", encoding="utf-8")
            if self.index is not None:
                (folder / INDEX).write_text(json.dumps(self.index) + "\n", encoding="utf-8")
        except OSError as error:
            raise PlanningError(f"--save: {folder} cannot be written: {error.strerror}.") from None
        print(f"plan: wrote {folder / CONFIG}; in a stack set gemma-serving:modelConfig to it.", file=sys.stderr)


def from_config(place: str, *, index: Path | None, name: str | None) -> ModelSpec:
    """Return the architecture that `--config` names: a file, a folder, or gs://BUCKET/FOLDER. Raises PlanningError."""
    if place.startswith(GS):
        if index is not None:
            raise PlanningError("--index belongs to a --config on this machine; the bucket's manifest has the size.")
        bucket, _, folder = place.removeprefix(GS).partition("/")
        return from_bucket(bucket, folder.strip("/"), name=name).spec()
    return read_model(Path(place), name=name, index=index)


def from_hub(model: str) -> Fetched:
    """Return what the Hugging Face hub has of a model. Raises ScriptError, also where it cannot be reached."""
    from cloud.hub import config_of  # noqa: PLC0415 - slow to load

    config, index = config_of(model)
    return Fetched(name=model, config=config, index=index)


def from_bucket(bucket: str, folder: str, *, name: str | None) -> Fetched:
    """Return what `scripts.stage_model` wrote beside the weights in a folder of a bucket.

    Raises:
        PlanningError: if nothing is staged there. ScriptError: if Cloud Storage cannot be asked.
    """
    from cloud import google_api  # noqa: PLC0415 - slow to load
    from contracts.errors import ScriptError  # noqa: PLC0415 - only with a bucket
    from contracts.staged_weights import (  # noqa: PLC0415 - only with a bucket
        MANIFEST,
        config_of,
        file_names,
        folder_uri,
        object_name,
        weights_bytes,
    )
    from stacks.loading import project_from_environment  # noqa: PLC0415 - only with a bucket

    project = project_from_environment()
    google = google_api.connect(*([project] if project else []))

    def read(file: str) -> Mapping[str, object]:
        return google.get("storage", f"storage/v1/b/{bucket}/o/{quote(object_name(folder, file), safe='')}?alt=media")

    try:
        manifest = read(MANIFEST)
        # Manifests of earlier versions did not repeat the config.
        config = config_of(manifest) or read(CONFIG)
        index = read(INDEX) if INDEX in file_names(manifest) else None
    except google_api.GoogleListError as error:
        if error.status == _NOT_FOUND:
            raise PlanningError(
                f"{folder_uri(bucket, folder)} has no {MANIFEST}: nothing is staged there; run python -m scripts.stage_model."
            ) from None
        raise ScriptError(f"Cloud Storage refused {folder_uri(bucket, folder)}: {error}") from None
    size = weights_bytes(manifest)
    if index is None and size:
        index = {"metadata": {"total_size": size}}
    return Fetched(name=name or folder.rpartition("/")[2] or bucket, config=config, index=index)
