"""Drafters, adapters and a chat template of a stack, staged next to its model in the bucket, and the command that stages them."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from gemma_serving.cloud.model_files import PROJECT
from gemma_serving.contracts.installation import home_folder, project_root
from gemma_serving.contracts.memory import memory_of
from gemma_serving.contracts.staged_weights import OWN_FOLDER, manifest_hash, own_folder
from gemma_serving.planning.question.drafters import named_drafter
from gemma_serving.planning.question.hub_files import HUB_ID
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.planning.settings.vllm_args import VllmOptions

_GS: Final = "gs://"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtraCheckpoint:
    """A checkpoint that the server loads in addition to its model, or its chat template."""

    kind: Literal["drafter", "adapter", "template"]
    source: str
    """Hugging Face id, gs://BUCKET/FOLDER, or ./FILE of the project."""
    revision: str | None = None
    """Commit on the hub; None for the latest of the main branch."""
    digest: str | None = None
    """Hash of its manifest; None if it is not staged. A template's is that of the file, so an edited one is not staged."""

    @property
    def name(self) -> str:
        """Folder of its copy in the bucket, without the hash."""
        return self.source.rstrip("/").rpartition("/")[2]

    @property
    def folder(self) -> str | None:
        """Folder of its copy in the bucket; None if it is not staged."""
        return None if self.digest is None else own_folder(self.name, self.digest)

    @property
    def file(self) -> Path:
        """Path of a template."""
        return (project_root() or Path.cwd()) / self.source


def extra_checkpoints(settings: Settings) -> tuple[ExtraCheckpoint, ...]:
    """Return what staging copies to the bucket in addition to the model, the drafter first."""
    return tuple(_all(settings)) if settings.weights == "bucket" else ()


def _all(settings: Settings) -> Iterator[ExtraCheckpoint]:
    hashes = {source: digest.removeprefix(OWN_FOLDER) for source, digest in settings.bucket.parts.items()}
    drafter = named_drafter(settings.vllm)
    if drafter is not None and HUB_ID.fullmatch(drafter):
        revision = (settings.vllm.speculative_config or {}).get("revision")
        commit = revision if isinstance(revision, str) else None
        yield ExtraCheckpoint(kind="drafter", source=drafter, revision=commit, digest=hashes.get(drafter))
    for place in dict.fromkeys((settings.vllm.lora_adapters or {}).values()):
        if place.startswith(_GS) or HUB_ID.fullmatch(place):
            yield ExtraCheckpoint(kind="adapter", source=place, digest=hashes.get(place))
    if settings.vllm.own_template is not None:
        template = ExtraCheckpoint(kind="template", source=settings.vllm.own_template)
        yield replace(template, digest=_file_digest(template.file))


def _file_digest(path: Path) -> str | None:
    """Return the hash of the manifest of one file; None if it cannot be read."""
    import hashlib  # noqa: PLC0415 - 2 ms, and most stacks have no template

    try:
        data = path.read_bytes()
    except OSError:
        return None
    sha256 = hashlib.sha256(data).hexdigest()
    return manifest_hash({"files": [{"name": path.name, "size_bytes": len(data), "sha256": sha256}]})


def with_local_folders(options: VllmOptions, staged: tuple[ExtraCheckpoint, ...], root: str) -> VllmOptions:
    """Return the options with the local folder of each staged checkpoint, below `root`, instead of its id."""
    folders = {extra.source: f"{root}/{extra.folder}" for extra in staged if extra.folder is not None}
    config, adapters = options.speculative_config, options.lora_adapters
    if config is not None and config.get("model") in folders:
        rest = {key: value for key, value in config.items() if key != "revision"}
        options = replace(options, speculative_config={**rest, "model": folders[str(config["model"])]})
    if adapters is not None:
        options = replace(options, lora_adapters={name: folders.get(place, place) for name, place in adapters.items()})
    template = options.own_template
    if template in folders:
        options = replace(options, chat_template=f"{folders[template]}/{Path(template).name}")
    return options


def note_source(stack: str, source: str) -> None:
    """Remember the folder or gs:// address that a stack's own weights were staged from, for `staging_command`. Raises OSError."""
    memory_of(home_folder()).write(_noted_source(stack), source)


def _noted_source(stack: str) -> str:
    return f"staged-{stack}.txt"


def staging_command(settings: Settings, stack: str, project: Path = PROJECT) -> str:
    """Return the command that stages the weights: `--from` a folder if they are the user's own, which the hub does not show.

    The folder is the one that they were staged from before on this machine, else the one of `modelConfig` if it has weights. Without
    either, FOLDER is a placeholder.
    """
    command = f"gemma stage_model {stack}"
    if settings.model_config is None or settings.model_revision is not None:
        return command
    staged = memory_of(home_folder()).read(_noted_source(stack))
    if staged is not None:
        return f"{command} --from {shlex.quote(staged)}"
    config = Path(settings.model_config)
    folder = config if (project / config).is_dir() else config.parent
    has_weights = any((project / folder).glob("*.safetensors"))
    return f"{command} --from {folder if has_weights else 'FOLDER'}"
