"""What the tests of the provider share when they run alone: the examples of a law are the same in each run, and have no time limit."""

from hypothesis import settings

_PROFILES = ("project", "part", "long")
if settings.get_current_profile_name() not in _PROFILES:
    settings.register_profile("project", deadline=None, derandomize=True)
    settings.load_profile("project")


def examples(*, test: int, part: int, night: int) -> int:
    """Return how many examples a law draws in the profile of this run: `project`, `part` or `long`."""
    return dict(zip(_PROFILES, (test, part, night), strict=True))[settings.get_current_profile_name()]
