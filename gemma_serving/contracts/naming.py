"""Names of cloud resources, derived from the project and the stack within each service's limits."""

import hashlib
import re
from dataclasses import dataclass

ARCHIVE_KEY = "archive-key"
"""End of the name of the secret that signs archives of compiled programs."""
_STACK = re.compile(r"^[a-z]([a-z0-9-]{0,28}[a-z0-9])?$")


class NamingError(ValueError):
    """A stack's name cannot be part of resource names. The message names the allowed characters."""


def check_stack_name(stack: str) -> None:
    """Raise NamingError for a stack whose name cannot be part of resource names."""
    if not _STACK.fullmatch(stack):
        raise NamingError(
            f'The stack\'s name "{stack}" becomes part of resource names. Use up to 30 lower-case letters, '
            "digits and hyphens, starting with a letter."
        )


def allowed_name(stack: str) -> str:
    """Return the nearest name that is allowed, such as `tpu-v6e1` for `TPU_v6e1`; empty if none is near."""
    near = stack.lower().replace("_", "-").strip("-")
    return near if _STACK.fullmatch(near) else ""


def account_email(account_id: str, project: str) -> str:
    """Return the e-mail of a service account. `example.com:name` is a project of a domain."""
    domain, _, name = project.rpartition(":")
    return f"{account_id}@{f'{name}.{domain}' if domain else name}.iam.gserviceaccount.com"


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Names of one stack's resources. Each contains `gemma-STACK`."""

    project: str
    stack: str

    def __post_init__(self) -> None:
        check_stack_name(self.stack)

    @property
    def base(self) -> str:
        """Name of most resources, and prefix of secrets: maximum 63 characters."""
        return f"gemma-{self.stack}"

    @property
    def account_id(self) -> str:
        """Id of the service account: 6 to 30 characters."""
        return _within(self.base, 30)

    @property
    def account_email(self) -> str:
        """E-mail of the service account."""
        return account_email(self.account_id, self.project)

    @property
    def bucket(self) -> str:
        """Name of the bucket: maximum 63 characters, and globally unique."""
        return _within(f"{self.project}-{self.base}-models", 63)


def _within(name: str, limit: int) -> str:
    """Return a name of up to `limit` characters. A shortened name ends with a hash of the full one."""
    if len(name) <= limit:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:6]
    return f"{name[: limit - len(digest) - 1].rstrip('-')}-{digest}"
