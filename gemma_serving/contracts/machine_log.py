"""Log of a TPU VM in Cloud Logging: its name, and the labels of its entries."""

from typing import Final

MACHINE_LOG: Final = "gemma-serving-machine"
MACHINE_RESOURCE: Final = "generic_node"
"""Type of the monitored resource. Its namespace is the id of the TPU VM's service account."""
SOURCE_LABEL: Final = "source"
SERVER_SOURCE: Final = "server"
AGENT_SOURCE: Final = "agent"

_ACCOUNT_DOMAIN: Final = ".iam.gserviceaccount.com"


def machine_log_name(project: str) -> str:
    """Return the full name of the log."""
    return f"projects/{project}/logs/{MACHINE_LOG}"


def account_parts(email: str) -> "tuple[str, str] | None":
    """Return the project and the id of a service account's e-mail address; None for another address.

    The TPU VM itself may be in a project of Google, so its metadata does not name the stack's project.
    """
    account, _, host = email.strip().partition("@")
    if not host.endswith(_ACCOUNT_DOMAIN):
        return None
    name, _, domain = host[: -len(_ACCOUNT_DOMAIN)].partition(".")
    return (f"{domain}:{name}" if domain else name), account
