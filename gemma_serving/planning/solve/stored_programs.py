"""The archive of a TPU VM's compiled programs, which later starts read: what it costs, and what deletes it."""

from gemma_serving.planning.cost.running_costs import archive_parts
from gemma_serving.planning.cost.subject import Subject
from gemma_serving.planning.question.types import usd_per
from gemma_serving.planning.units import duration


def stored_programs(subject: Subject) -> str:
    """Return where later starts find their programs, the price and the end of the archive in one paragraph; empty without an archive."""
    parts = [*archive_parts(subject.resolved)]
    if not parts or subject.known_startup is None:
        return ""
    monthly = usd_per("month", parts)
    traffic = usd_per("start", parts)
    per_start = f", and up to ${traffic:.2f} per start for traffic" if traffic else ""
    age_s = subject.resolved.question.settings.max_age_s
    guard = f"; with maxAge {duration(age_s)}, a guard does so every {duration(age_s)}" if age_s else ""
    return (
        f"Later starts read signed programs from the bucket: ${monthly:.2f} per month for storage and key{per_start}. "
        f"A teardown deletes programs and key{guard}: the next start is a first one."
    )
