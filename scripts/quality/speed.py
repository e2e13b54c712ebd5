"""Speed of the deployment that answered the questions, if it was measured."""

from scripts.cli.measured.schema import BenchPoint
from scripts.cli.measured.store import read_measured
from scripts.quality.compare import MeasuredSpeed
from scripts.quality.results import ServedDeployment


def measured_speed(served: ServedDeployment) -> MeasuredSpeed | None:
    """Return the highest output rate of a benchmark of the same image and settings; None without one. Raises CommandRefusedError."""
    if served.stack is None:
        return None
    key = (served.image_digest, served.settings_sha256, served.simulated)
    points = [
        point
        for record in read_measured(served.stack).deployments
        if (record.identity.image_digest, record.identity.settings_sha256, record.identity.simulated) == key
        for point in record.bench
    ]
    best = max(points, key=lambda point: point.output_tok_per_s, default=None)
    return None if best is None else MeasuredSpeed(output_tok_per_s=best.output_tok_per_s, load=_load(best))


def _load(point: BenchPoint) -> str:
    load = f"{point.users} users" if point.users is not None else f"{point.rate_per_s:g} requests/s"
    return f"{load}, {point.input_tokens} tokens in, {point.output_tokens} out"
