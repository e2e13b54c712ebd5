"""Every checkpoint, checkpoint commit and image named in a stack, a table or a Dockerfile. Reads only project files."""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from planning.data.checkpoints import CHECKPOINTS
from planning.data.images import IMAGES
from planning.question.drafters import named_drafter
from scripts.cli.settings import stack_settings

Kind = Literal["checkpoint", "commit", "image"]
_HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_FROM: Final = re.compile(r"(?im)^FROM\s+(?:docker\.io/)?(?P<image>[\w./-]+@sha256:[0-9a-f]{64})")
_PROJECT: Final = "local-project"
"""Project id that the settings require. Nothing here depends on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedName:
    """A name and the files that contain it. An image is REPOSITORY@DIGEST of Docker Hub, a commit ID@COMMIT of the hub."""

    kind: Kind
    name: str
    places: tuple[str, ...]


def published_names(project: Path) -> Sequence[PublishedName]:
    """Return all names in a project folder, each once. Raises CommandRefusedError if a stack's file is invalid."""
    places: dict[tuple[Kind, str], set[str]] = defaultdict(set)
    for kind, name, place in (*_of_stacks(project), *_of_tables(), *_of_dockerfiles(project)):
        places[kind, name].add(place)
    return [PublishedName(kind=kind, name=name, places=tuple(sorted(where))) for (kind, name), where in places.items()]


def _of_stacks(project: Path) -> Iterator[tuple[Kind, str, str]]:
    for path in sorted(project.glob("Pulumi.*.yaml")):
        settings = stack_settings(path.name.removeprefix("Pulumi.").removesuffix(".yaml"), project=_PROJECT)
        drafter = named_drafter(settings.vllm)
        for name in (settings.model, drafter):
            if name is not None and _HUB_ID.fullmatch(name):
                yield "checkpoint", name, path.name
        if settings.model_revision is not None:
            yield "commit", f"{settings.model}@{settings.model_revision}", path.name
        yield "image", f"{settings.image.repository}@{settings.image.digest}", path.name


def _of_tables() -> Iterator[tuple[Kind, str, str]]:
    for name, one in CHECKPOINTS.items():
        yield "checkpoint", name, "planning/data/checkpoints.json"
        if one.commit:
            yield "commit", f"{name}@{one.commit}", "planning/data/checkpoints.json"
    for image in IMAGES.values():
        yield "image", f"{image.repository}@{image.digest}", "planning/data/images.json"


def _of_dockerfiles(project: Path) -> Iterator[tuple[Kind, str, str]]:
    for path in sorted(project.glob("images/*/Dockerfile")):
        for found in _FROM.finditer(path.read_text(encoding="utf-8")):
            yield "image", found["image"], path.relative_to(project).as_posix()
