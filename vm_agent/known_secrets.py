"""Secrets of the servers. Each value is masked from its first read."""

from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus

from contracts.serving_document import API_KEY_VARIABLE, ServingDocument
from vm_agent.base import ServingError
from vm_agent.cloud import MetadataClient, read_secret
from vm_agent.publishing import PhasePublisher


@dataclass
class KnownSecrets:
    """Values read by this agent, which the publisher masks, by version."""

    metadata: MetadataClient
    publisher: PhasePublisher
    _values: dict[str, str] = field(default_factory=dict[str, str], repr=False)

    def learn(self, document: ServingDocument) -> None:
        """Read the secrets of a server that an earlier agent started, so no log line shows them. Raises ServingError."""
        for version in set(document.secret_environment.values()) - set(self._values):
            self.read(version)

    def read(self, version: str, *, is_back: bool = False, is_api_key: bool = False) -> str:
        """Return a secret's value and mask it from now on. For a rollback, the value read earlier for the same version is sufficient.

        An API key is an exception: if Secret Manager refuses it, it was revoked.
        """
        try:
            value = read_secret(self.metadata, version)
        except ServingError as error:
            is_refused = HTTPStatus.BAD_REQUEST <= error.status < HTTPStatus.INTERNAL_SERVER_ERROR
            if not is_back or version not in self._values or (is_api_key and is_refused):
                raise
            return self._values[version]
        self.publisher.secrets.add(value)
        self._values[version] = value
        return value

    def key_header(self, document: ServingDocument) -> "dict[str, str]":
        """Return the header with the server's API key, or none if it has no key or Secret Manager does not return it."""
        version = document.secret_environment.get(API_KEY_VARIABLE)
        if version is not None and version not in self._values:
            with suppress(ServingError):
                self.learn(document)
        key = self._values.get(version or "")
        return {} if key is None else {"Authorization": f"Bearer {key}"}
