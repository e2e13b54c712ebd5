"""`--write`: set the zones or the region of a stack in its settings file. Comments and other lines are kept."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from contracts.errors import CommandRefusedError
from engine.atomic_file import replace_file
from planning.planner import plan
from scripts.capacity.gates import JudgedPlace
from scripts.cli.settings import NO_PROJECT, gateway_settings
from scripts.cli.settings_file import SettingsFile
from stacks.loading import SettingsError
from stacks.planned import to_deployment
from stacks.settings import Settings, TpuSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """A settings file before and after."""

    path: Path
    before: str
    after: str
    note: str
    """Effect of the change on running resources; empty if none."""

    @property
    def diff(self) -> str:
        """The change as a unified diff; empty without a change."""
        lines = (self.before.splitlines(keepends=True), self.after.splitlines(keepends=True))
        return "".join(
            difflib.unified_diff(*lines, fromfile=f"a/{self.path.name}", tofile=f"b/{self.path.name}"),
        )

    def write(self) -> None:
        """Write the file. Raises CommandRefusedError if it changed since it was read."""
        if self.path.read_text(encoding="utf-8") != self.before:
            raise CommandRefusedError(
                f"{self.path.name} changed after it was read. Nothing was written. Run the command again."
            )
        replace_file(self.path.resolve(), self.after)


def change_of(path: Path, stack: str, settings: Settings, places: Sequence[JudgedPlace]) -> FileChange:
    """Return the change that sets the open locations in order. Raises CommandRefusedError if none is open."""
    key, value, note = _zones(stack, settings, places) if settings.tpu else _region(settings, places)
    document = SettingsFile(path)
    before = path.read_text(encoding="utf-8")
    current = settings.tpu.zones if settings.tpu else [settings.cloud_run.region] if settings.cloud_run else []
    if value == (current if settings.tpu else current[0]):
        return FileChange(path=path, before=before, after=before, note="")
    document.apply({key: value})
    try:
        changed = document.settings()
    except SettingsError as error:
        raise CommandRefusedError(f"{path.name} was not changed: {error}") from None
    new = _stopping(changed, path.parent) - _stopping(settings, path.parent)
    if new:
        raise CommandRefusedError(
            f"{path.name} was not changed because the change is blocked by {', '.join(sorted(new))}."
        )
    return FileChange(path=path, before=before, after=document.text(), note=note)


def _stopping(settings: Settings, folder: Path) -> set[str]:
    return {finding.id for finding in plan(to_deployment(settings, folder)).stopping}


def _zones(stack: str, settings: Settings, places: Sequence[JudgedPlace]) -> tuple[str, list[str], str]:
    """Return the open zones. A zone with a request of the stack stays first, because `up` releases capacity in removed zones."""
    held = [place for place in places if any(own.stack == stack for own in place.own)]
    regions = _regions(settings.tpu) if settings.tpu else None
    found = [place for place in places if place.is_open and place not in held]
    if regions is not None:
        found = [place for place in found if place.place.rpartition("-")[0] in regions]
    if not held and not found:
        raise CommandRefusedError(_nothing_open(places))
    zones = ", ".join(place.place for place in held)
    note = f"The stack has a capacity request in {zones}, which stays first." if held else ""
    return "tpu.zones", [place.place for place in (*held, *found)], note


def _regions(tpu: TpuSettings) -> Sequence[str] | None:
    """Return the regions in which the machines' network has a subnetwork; None if it is the stack's own, which can have any."""
    gateway = gateway_settings(tpu.gateway, project=NO_PROJECT) if tpu.gateway else None
    if gateway is not None:
        return gateway.gateway.regions
    return tpu.regions if tpu.gateway or tpu.existing_network else None


def _region(settings: Settings, places: Sequence[JudgedPlace]) -> tuple[str, str, str]:
    found = [place for place in places if place.is_open]
    if not found:
        raise CommandRefusedError(_nothing_open(places))
    moves = "Changing the region replaces the service"
    if settings.weights == "bucket" and settings.bucket.existing is None:
        moves += " and the bucket. Stage the weights again"
    note = "" if found[0].is_in_stack else f"{moves}."
    return "cloudRun.region", found[0].place, note


def _nothing_open(places: Sequence[JudgedPlace]) -> str:
    """Return the error message without an open location, with the closed gates of the closest one."""
    nearest = next((place for place in places if not place.is_without), None)
    why = ""
    if nearest is not None:
        lacks = [gate.detail for gate in nearest.gates if gate.answer != "yes"]
        why = f" Closest: {nearest.place} ({'; '.join(lacks)})."
    return f"No location has all three gates open. Nothing was written.{why}"
