"""A secret's bytes: the one reader for `doctor`, `up`, the clients and the agent. Nothing else decodes a payload."""

import base64
import binascii


class UnusableSecretError(ValueError):
    """A value that no header and no environment variable can have. The message has the name and the fault, never the value."""

    def __init__(self, name: str, fault: str) -> None:
        super().__init__(f"The value of {name} {fault}.")


def decoded_secret(data: object, version: str) -> str:
    """Return the value in `payload.data` of a response of `versions.access`. Raises UnusableSecretError.

    It is never stripped: Cloud Run passes the same bytes to the container, so a client that strips them sends another key.
    """
    try:
        value = base64.b64decode(str(data or ""), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise UnusableSecretError(version, "is not UTF-8 text") from None
    return usable_secret(value, version)


def usable_secret(value: str, name: str) -> str:
    """Return a value that a header and an environment variable can have. Raises UnusableSecretError."""
    if not value:
        raise UnusableSecretError(name, "is empty")
    if value[-1] in "\r\n":
        raise UnusableSecretError(name, "ends in a newline, which callers do not send")
    if not value.isprintable():
        raise UnusableSecretError(name, "has several lines or a control character")
    return value


def store_command(version: str) -> str:
    """Return the shell command that adds a version without a newline. It prompts, so no history and no argument list has the value."""
    _, project, _, secret, *_ = version.split("/")
    add = f"gcloud secrets versions add {secret} --project={project} --data-file=-"
    return f'read -rs VALUE && printf %s "$VALUE" | {add}'
