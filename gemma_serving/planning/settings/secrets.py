"""Secrets of a stack: purpose, settings, and the server's environment variables."""

import shlex
from dataclasses import dataclass
from typing import Final, Literal

from gemma_serving.contracts.path_guard import API_KEY_VARIABLE

SecretKey = Literal["hfToken", "apiKey"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretKind:
    """A secret, set by value under `key` (encrypted by Pulumi) or by reference under `reference_key`."""

    key: SecretKey
    what: str
    purpose: str
    variable: str
    """Environment variable of the server with the value."""
    name: str
    """Suffix of the secret's id, and name of the Pulumi component."""

    @property
    def reference_key(self) -> str:
        """Setting for an existing version in Secret Manager."""
        return f"{self.key}Secret"


HF_TOKEN: Final = SecretKind(
    key="hfToken",
    what="Hugging Face token",
    purpose="for checkpoints that require one",
    variable="HF_TOKEN",
    name="hf-token",
)
API_KEY: Final = SecretKind(
    key="apiKey",
    what="API key",
    purpose="which every path of the server except /health then requires (docs/secrets.md)",
    variable=API_KEY_VARIABLE,
    name="api-key",
)
KINDS: Final = (HF_TOKEN, API_KEY)
"""All secrets that a stack can have."""

SECRET_KEYS: Final[tuple[SecretKey, ...]] = tuple(kind.key for kind in KINDS)


def set_command(key: str, stack: str) -> str:
    """Return the command that prompts for a secret, so its value is in no history."""
    return f"gemma save_token {shlex.quote(stack)} {key}"
