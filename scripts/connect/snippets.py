"""Code to paste for common clients of `connect`, from `snippets.toml`."""

import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path
from string import Template
from typing import Final

_TEXTS: Final = Path(__file__).with_name("snippets.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalEndpoint:
    """Connection data of a client."""

    base_url: str
    """Base URL of the OpenAI API, such as `http://127.0.0.1:8000/v1`."""
    key: str
    """API key that clients send."""
    model: str


def snippets(endpoint: LocalEndpoint) -> tuple[tuple[str, str], ...]:
    """Return title and code for each client. The code works without changes."""
    texts: dict[str, str] = tomllib.loads(_TEXTS.read_text(encoding="utf-8"))
    return tuple((title, Template(text).substitute(asdict(endpoint))) for title, text in texts.items())
