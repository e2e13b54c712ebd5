"""The option `--project`."""

import re
from typing import Final

_PROJECT: Final = re.compile(r"([a-z][a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]")
"""Source: https://cloud.google.com/resource-manager/docs/creating-managing-projects. Old domain-scoped projects have the domain as a prefix."""


def project_id(text: str) -> str:
    """Return a Google Cloud project id. Raises ValueError with the allowed form."""
    if not _PROJECT.fullmatch(text):
        raise ValueError("a project id: 6 to 30 of a-z, 0-9 and -, a letter first")
    return text
