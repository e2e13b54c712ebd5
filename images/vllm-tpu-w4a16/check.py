"""`python3 check.py DISTRIBUTION...`: fail if a requirement of these packages is missing or has another version.

They are installed without their requirements, because the base image already has them. This verifies that at build time.
"""

import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement


def unmet(distributions: Sequence[str]) -> Iterator[str]:
    """Yield one sentence for each requirement that the environment does not meet. Extras are ignored."""
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
                yield f"{distribution} requires {wanted.name}{wanted.specifier}, but {found} is installed."


if __name__ == "__main__":
    sys.exit("\n".join(unmet(sys.argv[1:])) or None)
