"""Run `pulumi up` for a user who watches: its output kept, its events read as they come."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from engine import events, runner


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateResult:
    """Exit code of the engine, and what it printed."""

    exit_code: int
    output: str


def update(stack: str, *options: str, log: Path, watch: Callable[[], None]) -> UpdateResult:
    """Deploy a stack without a preview, and call `watch` several times a second while the engine writes its events to `log`.

    Waits for the engine's end, also after a signal. Raises KeyboardInterrupt then, and CommandRefusedError without an engine.
    """
    exit_code, output = runner.attended(
        *("up", "--yes", "--skip-preview", "--suppress-outputs", "--event-log", str(log), "--stack", stack, *options),
        variables=events.VARIABLES,
        watch=watch,
    )
    return UpdateResult(exit_code=exit_code, output=output)
