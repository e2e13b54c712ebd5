"""Keys of a LiteLLM proxy without a database. `keys.toml` has each user's limits and the SHA-256 of their key."""

import hashlib
import tomllib
from pathlib import Path

from fastapi import HTTPException, Request
from litellm.proxy._types import UserAPIKeyAuth

FILE = Path(__file__).with_name("keys.toml")


async def authenticate(request: Request, api_key: str | None) -> UserAPIKeyAuth:  # noqa: ARG001 - LiteLLM calls it so
    """Return the limits of the user who sent the key. The file is read for each request, so a removed key ends at once."""
    digest = hashlib.sha256((api_key or "").encode()).hexdigest()
    for name, limits in tomllib.loads(FILE.read_text(encoding="utf-8")).items():
        if limits.pop("sha256") == digest:
            return UserAPIKeyAuth(api_key=api_key, key_alias=name, allowed_routes=["llm_api_routes"], **limits)
    raise HTTPException(401, "This key is not in keys.toml.")
