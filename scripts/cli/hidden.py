"""Secrets in this process's environment, which must not appear in a command's output."""

import os
import re
from typing import Final

_SECRET_VARIABLE: Final = re.compile(
    r"(TOKEN|SECRET|PASSWORD|PASSPHRASE|API_?KEY|ACCESS_?KEY|CREDENTIALS_JSON|(^|_)PAT)$"
)
"""Such as HF_TOKEN, OPENAI_API_KEY and GITHUB_PAT."""


def environment_secrets() -> tuple[str, ...]:
    """Return the values."""
    return tuple(value for name, value in os.environ.items() if value and _SECRET_VARIABLE.search(name.upper()))
