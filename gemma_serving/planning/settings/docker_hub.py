"""The account used to pull the image."""

from dataclasses import dataclass

from gemma_serving.planning.settings.fields import Block
from gemma_serving.planning.settings.text import DockerUser, SecretVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerHubSettings(Block):
    """A Docker Hub account that Artifact Registry uses to pull the image. Docker Hub limits pulls without an account."""

    username: DockerUser
    """Name of the account."""
    token_secret: SecretVersion
    """Version in Secret Manager with an access token of the account (Public Repo Read-only).

    The token itself never passes through Pulumi.
    """
