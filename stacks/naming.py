"""Names of cloud resources, made from the project's and the stack's names within each service's limits."""

import hashlib
import re
from dataclasses import dataclass

_STACK = re.compile(r"^[a-z]([a-z0-9-]{0,28}[a-z0-9])?$")
_MAX_ACCOUNT_ID = 30
_MAX_BUCKET = 63
_HASH_DIGITS = 6


class NamingError(ValueError):
    """A stack's name cannot become part of resource names; the message says what can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Names for one stack. All begin with `gemma-STACK`, so that a person can find them in the console."""

    project: str
    stack: str

    def __post_init__(self) -> None:
        if not _STACK.fullmatch(self.stack):
            raise NamingError(
                f'The stack\'s name "{self.stack}" becomes part of resource names: use up to 30 lower-case letters, digits and hyphens, a letter first.'
            )

    @property
    def base(self) -> str:
        """Services, secrets, networks, repositories, queued resources (63 characters at most)."""
        return f"gemma-{self.stack}"

    @property
    def account_id(self) -> str:
        """A service account's id: 6 to 30 characters."""
        return _within(self.base, _MAX_ACCOUNT_ID)

    @property
    def bucket(self) -> str:
        """A bucket's name: unique in the world, so the project's id is part of it; 63 characters at most."""
        return _within(f"{self.project}-{self.base}-models", _MAX_BUCKET)


def _within(name: str, limit: int) -> str:
    """Shorten a name to a limit, keeping it unique by a hash of the whole."""
    if len(name) <= limit:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_HASH_DIGITS]
    return f"{name[: limit - _HASH_DIGITS - 1].rstrip('-')}-{digest}"
