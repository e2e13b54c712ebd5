"""The mount options of every Cloud Run stack and loading mode, by the product's own code."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from dev.judges.real.home import ROOT
from gemma_serving.components.cloud_run_gpu_service import mount_options
from gemma_serving.contracts.settings_files import settings_file, shipped_files
from gemma_serving.planning.question.recommendation import FUSE_MODES
from gemma_serving.planning.settings.cloud_run import CloudRunSettings
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.stacks.loading import from_file

_CACHE_SIZE: Final = "2Gi"


def stacks() -> Iterator[str]:
    """Yield the names of the shipped stacks on Cloud Run."""
    for path in shipped_files(ROOT):
        if "target: cloud-run" in path.read_text(encoding="utf-8"):
            yield path.name.removeprefix("Pulumi.").removesuffix(".yaml")


def settings_of(stack: str, **mount: object) -> tuple[CloudRunSettings, Settings]:
    """Return a stack's settings with other ones of its mount."""
    changes = {f"cloudRun.mount.{name}": value for name, value in mount.items()}
    settings = from_file(settings_file(stack, ROOT), project="local-project", changes=changes)
    if settings.cloud_run is None:
        raise ValueError(f"{stack} has no cloudRun")
    return settings.cloud_run, settings


def options_of(stack: str, **mount: object) -> tuple[str, ...]:
    """Return the mount options of a stack."""
    run, settings = settings_of(stack, **mount)
    return tuple(mount_options(run.mount, uid=settings.image.uid or 0, gid=settings.image.gid or 0))


def options_of_mode(stack: str, mode: str) -> tuple[str, ...]:
    """Return the mount options of a stack in a loading mode."""
    return options_of(stack, mode=mode, cacheSize=_CACHE_SIZE if mode == "fuse-cached" else None)


def option_sets() -> Mapping[tuple[str, tuple[str, ...]], Sequence[str]]:
    """Return the stacks of each loading mode with a mount and its options."""
    found: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
    for stack in stacks():
        for mode in FUSE_MODES:
            found[mode, options_of_mode(stack, mode)].append(stack)
    return found
