"""Durations in Google's format ("14400s") and for messages ("2h05m")."""

SECONDS_A_MINUTE = 60
SECONDS_AN_HOUR = 3600


def from_google(text: str | None) -> int | None:
    """Return the seconds of "14400s" ("1.5s" is rounded), or None for None and an empty string."""
    return round(float(text.rstrip("s"))) if text else None


def readable(seconds: float) -> str:
    """Return seconds in at most two units: 45s, 2m10s, 30m, 2h05m."""
    whole = round(seconds)
    if whole < SECONDS_A_MINUTE:
        return f"{whole}s"
    large, small, words = (
        (SECONDS_A_MINUTE, 1, "ms") if whole < SECONDS_AN_HOUR else (SECONDS_AN_HOUR, SECONDS_A_MINUTE, "hm")
    )
    rest = whole % large // small
    return f"{whole // large}{words[0]}" + (f"{rest:02d}{words[1]}" if rest else "")
