"""How many examples a law draws: few in `make test`, more in a part of the long suite, most at night."""

from hypothesis import settings


def examples(*, test: int, part: int, night: int) -> int:
    """Return the number for the profile of this run: `project`, `part` or `long`."""
    return {"project": test, "part": part, "long": night}[settings.get_current_profile_name()]
