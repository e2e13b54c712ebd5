"""Preparation of a load before the first point: what the server allows, and notes about changes."""

from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.errors import SweepError
from loadtest.served_model import ServerInfo
from loadtest.traffic.makers import SyntheticSource
from loadtest.traffic.points import Point, Sweep
from loadtest.traffic.prompts import Calibration, Recipe
from loadtest.traffic.spec import Traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedTraffic:
    """A load that is ready to be sent."""

    traffic: Traffic
    sweep: Sweep
    limit: int | None
    """Server's max-model-len."""
    notes: tuple[str, ...]

    @property
    def varied(self) -> bool:
        """True if prompts of one point differ in length."""
        traffic = self.traffic
        return bool(traffic.input_lengths or traffic.turns > 1)

    def source(self, point: Point, recipe: Recipe, calibration: Calibration) -> SyntheticSource:
        """Return the source of a point's requests."""
        return SyntheticSource(
            recipe=recipe,
            calibration=calibration,
            correction=recipe.count - calibration.words_for(point.input_tokens),
            input_tokens=point.input_tokens,
            output_tokens=point.output_tokens,
            most_tokens=self.limit,
            traffic=self.traffic,
        )


def prepare_traffic(sweep: Sweep, info: ServerInfo, *, chat: bool) -> PreparedTraffic:
    """Return the load, ready to be sent. Raises SweepError if the server does not allow it."""
    traffic = sweep.traffic
    if traffic.turns > 1 and not chat:
        raise SweepError("--turns requires /v1/chat/completions. Remove --completions.")
    unserved = [name for name in traffic.adapters if name not in info.served]
    if unserved:
        raise SweepError(f"--adapters has {unserved[0]}, but the server serves {', '.join(info.served)}.")
    limit = info.max_model_len
    notes = [f"load: {traffic.name}"] if traffic.name else []
    notes += _length_notes(sweep, traffic, limit)
    return PreparedTraffic(traffic=traffic, sweep=sweep, limit=limit, notes=tuple(notes))


def _length_notes(sweep: Sweep, traffic: Traffic, limit: int | None) -> Sequence[str]:
    if limit is None:
        return ()
    notes: list[str] = []
    lengths = [found for found in (traffic.input_lengths, traffic.output_lengths) if found is not None]
    most = sum(limit + 1 if found.most is None else found.most for found in lengths)
    if lengths and most + (0 if traffic.input_lengths else min(sweep.input_tokens)) > limit:
        notes.append(f"LEN01: requests longer than max-model-len {limit} are clamped to it, input first.")
    if traffic.turns > 1 and traffic.turns * (max(sweep.input_tokens) + max(sweep.output_tokens)) > limit:
        notes.append(f"LEN01: sessions end early before the conversation exceeds max-model-len {limit}.")
    return notes
