"""`python3 check.py DISTRIBUTION...`: end with an error if something that these packages require is missing or has another version.

They are installed without what they require, because the base image has that already. This says at build time whether it still does.
"""

import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement


def unmet(distributions: Sequence[str]) -> Iterator[str]:
    """Yield one sentence for each requirement that the environment does not meet. Extras are not asked for."""
    for distribution in distributions:
        for text in requires(distribution) or ():
            wanted = Requirement(text)
            if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
                continue
            try:
                found = version(wanted.name)
            except PackageNotFoundError:
                yield f"{distribution} requires {wanted.name}{wanted.specifier}, which is not installed."
                continue
            if not wanted.specifier.contains(found, prereleases=True):
                yield f"{distribution} requires {wanted.name}{wanted.specifier}, and {found} is installed."


if __name__ == "__main__":
    sys.exit("\n".join(unmet(sys.argv[1:])) or None)
