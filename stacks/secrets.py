"""The secrets of a stack: what each is for, its settings, and where the server finds it."""

from dataclasses import dataclass
from typing import Final, Literal

from contracts.serving_document import API_KEY_VARIABLE

SecretKey = Literal["hfToken", "apiKey"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretKind:
    """One secret. It is set by value under `key`, which Pulumi encrypts, or by reference under `reference_key`."""

    key: SecretKey
    what: str
    purpose: str
    variable: str
    """Environment variable of the server that holds the value."""
    name: str
    """End of the secret's id, and name of the Pulumi component."""

    @property
    def reference_key(self) -> str:
        """Setting that names an existing version in Secret Manager instead."""
        return f"{self.key}Secret"


HF_TOKEN: Final = SecretKind(
    key="hfToken",
    what="Hugging Face token",
    purpose="for checkpoints that need one",
    variable="HF_TOKEN",
    name="hf-token",
)
API_KEY: Final = SecretKind(
    key="apiKey",
    what="API key",
    purpose="that every path of the server but /health then requires (docs/secrets.md)",
    variable=API_KEY_VARIABLE,
    name="api-key",
)
KINDS: Final = (HF_TOKEN, API_KEY)
"""Every secret that a stack can have."""

SECRET_KEYS: Final[tuple[SecretKey, ...]] = tuple(kind.key for kind in KINDS)


def set_command(key: str, stack: str) -> str:
    """Return the command that asks for a secret and stores it, so that its value is in no history and no process list."""
    return f"python -m scripts.save_token {key} --stack {stack}"
