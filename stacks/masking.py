"""Secrets in text that others wrote, such as a container's output."""

import re
from collections.abc import Iterable
from typing import Final

MASK: Final = "[masked]"
_SHORTEST: Final = 6
"""A shorter value is no secret, and would mask words of the text."""
_KNOWN: Final = re.compile(
    r"hf_[A-Za-z0-9]{6,}"  # Hugging Face
    r"|ya29\.[\w.-]{6,}"  # Google's access tokens
    r"|AIza[\w-]{20,}"  # Google's API keys
    r"|eyJ[\w-]{6,2048}\.[\w-]+\.[\w-]*"  # JSON web tokens; without a limit the search takes the square of a long word
    r"|gh[pousr]_[A-Za-z0-9]{20,}"  # GitHub
    r"|sk-[\w-]{16,}"  # API keys in OpenAI's form
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
)
_NAMED: Final = re.compile(
    r"""(?P<name>(?:\bbearer\s|(?:api[_-]?key|token|secret|password)["']?\s*[:=]\s*))(?P<open>[\[("']*)(?P<value>[^\s"',\])]{6,})""",
    re.IGNORECASE,
)


def masked(text: str, secrets: Iterable[str] = ()) -> str:
    """Return the text without the given secrets, without tokens of known forms, and without values that are called key, token, secret or password."""
    for secret in sorted({secret.strip() for secret in secrets}, key=len, reverse=True):
        if len(secret) >= _SHORTEST:
            text = text.replace(secret, MASK)
    text = _KNOWN.sub(MASK, text)
    return _NAMED.sub(lambda found: f"{found['name']}{found['open']}{MASK}", text)
