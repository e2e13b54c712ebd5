"""Source of a model's architecture (a file or folder, the hub, or a bucket)."""

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
    """A fetched config.json, with the index of the weights if there is one."""

    name: str
    config: Mapping[str, object]
    index: Mapping[str, object] | None

    def spec(self) -> ModelSpec:
        """Return the architecture. Raises PlanningError."""
        from planning.model.hf_config import model_from_config  # noqa: PLC0415 - only models outside the catalog need it

        return model_from_config(self.config, name=self.name, index=self.index)

    def save(self, folder: Path) -> None:
        """Write config and index to a folder, in the layout that `--config` and a stack's modelConfig read. Raises PlanningError."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / CONFIG).write_text(json.dumps(self.config, indent=2) + "\n", encoding="utf-8")
            if self.index is not None:
                (folder / INDEX).write_text(json.dumps(self.index) + "\n", encoding="utf-8")
        except OSError as error:
            raise PlanningError(f"Cannot write --save {folder}: {error.strerror}.") from None
        print(
            f"plan: wrote {folder / CONFIG}. To use it in a stack, set gemma-serving:modelConfig to it.",
            file=sys.stderr,
        )


def from_config(place: str, *, index: Path | None, name: str | None) -> ModelSpec:
    """Return the architecture that `--config` references (a file, a folder, or gs://BUCKET/FOLDER). Raises PlanningError."""
    if place.startswith(GS):
        if index is not None:
            raise PlanningError(
                "--index and a --config in a bucket cannot be combined, because the bucket's manifest has the size."
            )
        bucket, _, folder = place.removeprefix(GS).partition("/")
        return from_bucket(bucket, folder.strip("/"), name=name).spec()
    return read_model(Path(place), name=name, index=index)


def from_hub(model: str) -> Fetched:
    """Return a model's config from the Hugging Face hub. Raises ScriptError, including when the hub is unreachable."""
    from cloud.hub import config_of  # noqa: PLC0415 - slow to load

    config, index = config_of(model)
    return Fetched(name=model, config=config, index=index)


def from_bucket(bucket: str, folder: str, *, name: str | None) -> Fetched:
    """Return the config that `scripts.stage_model` wrote next to the weights in a bucket's folder.

    Raises:
        PlanningError: if nothing is staged there. ScriptError: if Cloud Storage cannot be read.
    """
    from cloud import google_api  # noqa: PLC0415 - slow to load
    from contracts.errors import ScriptError  # noqa: PLC0415 - only with a bucket
    from contracts.staged_weights import MANIFEST, file_names, folder_uri, object_name, weights_bytes  # noqa: PLC0415 - only with a bucket
    from stacks.loading import project_from_environment  # noqa: PLC0415 - only with a bucket

    project = project_from_environment()
    google = google_api.connect(*([project] if project else []))

    def read(file: str) -> Mapping[str, object]:
        return google.get("storage", f"storage/v1/b/{bucket}/o/{quote(object_name(folder, file), safe='')}?alt=media")

    try:
        manifest = read(MANIFEST)
        config = read(CONFIG)
        index = read(INDEX) if INDEX in file_names(manifest) else None
    except google_api.GoogleListError as error:
        if error.status == _NOT_FOUND:
            raise PlanningError(
                f"{folder_uri(bucket, folder)} has no {MANIFEST}: no weights are staged. Run `gemma stage_model`."
            ) from None
        raise ScriptError(f"Cloud Storage rejected {folder_uri(bucket, folder)}: {error}") from None
    size = weights_bytes(manifest)
    if index is None and size:
        index = {"metadata": {"total_size": size}}
    return Fetched(name=name or folder.rpartition("/")[2] or bucket, config=config, index=index)
