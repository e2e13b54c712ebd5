"""Durations as Google writes them ("14400s") and as people read them ("2h05m")."""

SECONDS_A_MINUTE = 60
SECONDS_AN_HOUR = 3600


def from_google(text: str | None) -> int | None:
    """Read "14400s" (or "1.5s", rounded) as seconds; None and an empty text stay None."""
    return round(float(text.rstrip("s"))) if text else None


def to_google(seconds: int) -> str:
    """Write seconds as Google's JSON mapping of a duration."""
    return f"{seconds}s"


def for_people(seconds: float) -> str:
    """Write seconds in at most two units: 45s, 2m10s, 2h05m."""
    whole = round(seconds)
    if whole < SECONDS_A_MINUTE:
        return f"{whole}s"
    if whole < SECONDS_AN_HOUR:
        return f"{whole // SECONDS_A_MINUTE}m{whole % SECONDS_A_MINUTE:02d}s"
    return f"{whole // SECONDS_AN_HOUR}h{whole % SECONDS_AN_HOUR // SECONDS_A_MINUTE:02d}m"
