"""HTTP clients of the machine's metadata server and Google's APIs."""

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus

from gemma_serving.contracts.guest_attributes import GUEST_ATTRIBUTE_NAMESPACE, RETRYING, WAITING_FOR_STORAGE
from gemma_serving.contracts.secret_payload import UnusableSecretError, decoded_secret, store_command
from gemma_serving.contracts.serving_document import REPOSITORIES_METADATA_KEY, image_in
from gemma_serving.vm_agent.base import ServingError, environment_variable, log
from gemma_serving.vm_agent.clock import CLOCK, AgentClock

# The metadata server and the model server are never reached through a proxy.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
# Exceptions of a broken connection or an unreadable response.
CONNECTION_ERRORS = (OSError, http.client.HTTPException, ValueError)
TRIES = 5


@dataclass
class MetadataClient:
    """Client of the machine's metadata server."""

    host: str = field(default_factory=lambda: environment_variable("GCE_METADATA_HOST", "metadata.google.internal"))
    clock: AgentClock = CLOCK
    """Clock of the pauses between the attempts of a request."""

    def _open(self, path: str, *, timeout_s: float, data: bytes | None = None) -> http.client.HTTPResponse:
        request = urllib.request.Request(
            f"http://{self.host}/computeMetadata/v1/{path}",
            data=data,
            headers={"Metadata-Flavor": "Google", "Content-Type": "text/plain"},
            method="GET" if data is None else "PUT",
        )
        return DIRECT.open(request, timeout=timeout_s)

    def attribute(self, key: str, *, etag: str | None = None, wait_s: int = 60) -> tuple[str | None, str]:
        """Return (value, etag); the value is None if the key is absent.

        With an etag, wait at most `wait_s` for a value with another etag.
        """
        wait_for_change = (
            f"?wait_for_change=true&last_etag={urllib.parse.quote(etag)}&timeout_sec={wait_s}" if etag else ""
        )
        try:
            with self._open(f"instance/attributes/{key}{wait_for_change}", timeout_s=30 + wait_s) as response:
                return response.read().decode(), response.headers.get("ETag", "")
        except urllib.error.HTTPError as error:
            with error:
                if error.code == HTTPStatus.NOT_FOUND:
                    return None, ""
            raise

    def _value(self, path: str) -> str:
        with self._open(path, timeout_s=30) as response:
            return response.read().decode().strip()

    def zone(self) -> str:
        """Return the machine's zone."""
        return self._value("instance/zone").rpartition("/")[2]

    def instance_name(self) -> str:
        """Return the machine's name."""
        return self._value("instance/name")

    def account(self) -> str:
        """Return the e-mail address of the machine's service account."""
        return self._value("instance/service-accounts/default/email")

    def publish(self, key: str, value: str) -> None:
        """Set one guest attribute."""
        self._open(
            f"instance/guest-attributes/{GUEST_ATTRIBUTE_NAMESPACE}/{key}", timeout_s=10, data=value.encode()
        ).close()

    def token(self) -> str:
        """Return an access token of the machine's service account, which the metadata server renews."""
        return str(json.loads(self._value("instance/service-accounts/default/token"))["access_token"])


def near_image(metadata: MetadataClient, image: str) -> str:
    """Return the image's reference in the machine's region, if a repository there has it."""
    try:
        text, _ = metadata.attribute(REPOSITORIES_METADATA_KEY)
        return image if text is None else image_in(metadata.zone().rpartition("-")[0], image, dict(json.loads(text)))
    except (*CONNECTION_ERRORS, TypeError) as error:
        log(f"Pulling the image from the location in the document because the nearest repository is unknown ({error}).")
        return image


def endpoint(api: str) -> str:
    """Return the root URL of a Google API. gcloud's variable for Cloud Storage ends with `storage/v1/`."""
    override = environment_variable(f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{api.upper()}", f"https://{api}.googleapis.com")
    return override.rstrip("/").removesuffix(f"/{api}/v1") + "/"


def bucket_objects(uri: str) -> "tuple[str, str]":
    """Return the URL of a bucket's objects, and the prefix of those below gs://BUCKET/FOLDER."""
    bucket, _, folder = uri.removeprefix("gs://").partition("/")
    return f"{endpoint('storage')}storage/v1/b/{bucket}/o", f"{folder}/" if folder else ""


def attempts(clock: AgentClock) -> "Iterator[int]":
    """Yield the numbers of the attempts of one request, each but the first after a growing pause."""
    for attempt in range(TRIES):
        if attempt:
            clock.sleep(min(8.0, 0.25 * 2**attempt))
        yield attempt


def google(
    metadata: MetadataClient,
    url: str,
    *,
    verb: str = "GET",
    headers: "Mapping[str, str] | None" = None,
    body: "bytes | None" = None,
) -> bytes:
    """Send a request as the machine's service account and return the response's body.

    Retries 429, 5xx and broken connections. Raises ServingError with Google's error message.
    """
    typed = {} if body is None else {"Content-Type": "application/json"}
    problem, status = "", 0
    for _ in attempts(metadata.clock):
        try:
            authorized = {"Authorization": f"Bearer {metadata.token()}", **typed, **(headers or {})}
            request = urllib.request.Request(url, data=body, headers=authorized, method=verb)  # noqa: S310 - https, or the override
            with urllib.request.urlopen(request, timeout=120) as response:  # noqa: S310 - the same
                return response.read()
        except urllib.error.HTTPError as error:  # noqa: PERF203 - a retry
            with error:
                problem, status = f"{error.code} {_google_message(error)}", error.code
            if not is_passing(status):
                break
        except CONNECTION_ERRORS as error:
            problem, status = str(error), 0
    path = urllib.parse.urlsplit(url).path
    denied = status == HTTPStatus.FORBIDDEN
    waits_for = (WAITING_FOR_STORAGE if "/storage/v1/" in path else RETRYING) if is_passing(status) else ""
    raise ServingError(f"{verb} {path} failed: {problem}", denied=denied, status=status, waits_for=waits_for)


def is_passing(status: int) -> bool:
    """Return whether another attempt may succeed. The status is 0 without a response."""
    return not status or status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR


def _google_message(error: urllib.error.HTTPError) -> str:
    body = error.read()
    with suppress(ValueError, KeyError, TypeError):
        return str(json.loads(body)["error"]["message"]).rstrip(".")
    return body[:200].decode(errors="replace")


def read_secret(metadata: MetadataClient, version: str) -> str:
    """Return the value of one secret version. Raises ServingError, which never contains the value."""
    try:
        answer = json.loads(google(metadata, f"{endpoint('secretmanager')}v1/{version}:access"))
        return decoded_secret(answer["payload"]["data"], version)
    except ServingError as error:
        grant = " Grant the TPU VM's service account roles/secretmanager.secretAccessor on the secret."
        error.args = (f"Cannot read secret {version}: {error}.{grant if error.denied else ''}",)
        raise
    except UnusableSecretError as error:
        raise ServingError(f"{error} Add a usable version with `{store_command(version)}`.") from None
    except (ValueError, KeyError, TypeError):
        raise ServingError(f"Secret {version} has no payload.") from None
