"""The option `--project`."""

import re
from typing import Final

_PROJECT: Final = re.compile(r"([a-z][a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]")
"""Source: https://cloud.google.com/resource-manager/docs/creating-managing-projects. Old projects of a domain have it in front."""


def project_id(text: str) -> str:
    """Return an id of a Google Cloud project. Raises ValueError with what is allowed."""
    if not _PROJECT.fullmatch(text):
        raise ValueError("a project id: 6 to 30 of a-z, 0-9 and -, a letter first")
    return text
