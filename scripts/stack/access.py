"""Access to a deployed server: identity tokens for Cloud Run, a tunnel for TPU nodes, API keys.

vLLM's `--api-key` also uses the Authorization header: with both, the identity token goes into
X-Serverless-Authorization, which Cloud Run removes. No token appears in an argument list or an exception.
"""

import base64
import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO, Any, Final
from urllib.parse import urlsplit, urlunsplit

from gemma_serving.contracts.capacity_states import WITHOUT_MACHINE
from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.contracts.fields import as_mapping
from gemma_serving.contracts.labels import STACK_LABEL
from gemma_serving.contracts.masking import masked
from gemma_serving.contracts.outputs import Auth, StackOutputs, Tunnel
from gemma_serving.contracts.secret_payload import UnusableSecretError, usable_secret
from loadtest.client.urls import server_root, unix_url

API_KEY_VARIABLE: Final = "GEMMA_API_KEY"
"""Not OPENAI_API_KEY, which is often a key of OpenAI: any server at `--url` would get it."""
_IAM_CREDENTIALS: Final = "CLOUDSDK_API_ENDPOINT_OVERRIDES_IAMCREDENTIALS"
_CLOUD_SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"
TUNNEL_OPEN_LIMIT_S: Final = 180.0
"""`gcloud alpha ... ssh --tunnel-through-iap` takes 5 to 20 s.

The first run also creates an SSH key, writes it to the node's metadata, and tries to log in ten times at intervals of 5 s.
"""
TUNNEL_CLOSE_LIMIT_S: Final = 5.0
_REFUSED_LOGIN: Final = "Permission denied (publickey)"
_TAIL_LINES: Final = 6
"""gcloud rejects a flag with five lines; the middle one has the remedy."""
TOKEN_LIMIT_S: Final = 30
TOKEN_LIFE_S: Final = 3600.0
"""Google's identity tokens are valid for one hour."""
TOKEN_MARGIN_S: Final = 2100.0
"""With less time left it is renewed. The benchmark reads its headers once per point of up to half an hour."""


class AccessError(CommandRefusedError):
    """The server cannot be reached through its stack or `--url`. The message includes the fix."""


class IdTokenSource:
    """Identity tokens for one audience, renewed before they expire. Thread-safe."""

    def __init__(
        self,
        audience: str,
        fetch: Callable[[str], str] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._audience = audience
        self._fetch = fetch or fetch_id_token
        self._lock = threading.Lock()
        self._token: str | None = None
        self._clock = clock
        self._renew_at_s = 0.0

    def token(self) -> str:
        """Return a token that is valid for some minutes. Raises AccessError if no source provides one."""
        with self._lock:
            if self._token is None or self._clock() >= self._renew_at_s:
                self._token = self._fetch(self._audience)
                left_s = _seconds_left(self._token)
                # A metadata server may return a cached token, so it is used for half of its remaining life.
                self._renew_at_s = self._clock() + max(left_s - TOKEN_MARGIN_S, left_s / 2)
            return self._token

    def discard(self, token: str) -> None:
        """Discard a rejected token. The clock that measures its age stops while a computer sleeps."""
        with self._lock:
            if self._token == token:
                self._token = None


def _seconds_left(token: str) -> float:
    """Return the seconds until a token expires, from its `exp`; TOKEN_LIFE_S if it cannot be read."""
    try:
        payload = token.split(".")[1]
        claims: object = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (IndexError, ValueError):
        return TOKEN_LIFE_S
    expires_at_s = as_mapping(claims).get("exp")
    if not isinstance(expires_at_s, int | float):
        return TOKEN_LIFE_S
    return min(TOKEN_LIFE_S, max(0.0, expires_at_s - time.time()))


def fetch_id_token(audience: str) -> str:
    """Return a new identity token for the service's URL. Each source has TOKEN_LIMIT_S seconds."""
    said: list[str] = []
    for source in (_google_token, _federated_token, _gcloud_token):
        token, why = source(audience)
        if token is not None:
            return token
        said.append(why)
    google, federation, gcloud = said
    raise AccessError(
        f"no identity token for {audience}. google-auth: {federation or google!r}, gcloud: {gcloud!r}. Set GOOGLE_APPLICATION_CREDENTIALS to a"
        " service account's file or run `gcloud auth login`; the account needs roles/run.invoker."
    )


def _request() -> Any:  # noqa: ANN401 - google-auth has no types
    import google.auth.transport.requests  # noqa: PLC0415 - google-auth takes 0.25 s to load

    return partial(google.auth.transport.requests.Request(), timeout=TOKEN_LIMIT_S)


def _google_token(audience: str) -> tuple[str | None, str]:
    import google.auth.exceptions  # noqa: PLC0415 - as above
    import google.oauth2.id_token  # noqa: PLC0415 - the same

    library: Any = google.oauth2.id_token
    try:
        credentials = library.fetch_id_token_credentials(audience, _request())
        credentials.refresh(_request())
    except (google.auth.exceptions.GoogleAuthError, ValueError, OSError) as error:
        return None, _first_line(str(error))
    return str(credentials.token), ""


def _federated_token(audience: str) -> tuple[str | None, str]:
    """Return the token of the service account behind a workload identity federation, and else why there is none.

    Without a federation, the reason is empty. google.oauth2.id_token does not support federation; IAM Credentials' generateIdToken does
    the same for other accounts.
    """
    path = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    if not path:
        return None, ""
    import google.auth.exceptions  # noqa: PLC0415 - as above
    import google.auth.transport.requests  # noqa: PLC0415 - the same
    from google.auth import aws, identity_pool  # noqa: PLC0415 - the same

    try:
        known = as_mapping(json.loads(Path(path).read_text(encoding="utf-8")))
        if known.get("type") != "external_account":
            return None, ""
        is_aws = "environment_id" in as_mapping(known.get("credential_source"))
        library: Any = aws if is_aws else identity_pool
        credentials: Any = library.Credentials.from_info(known, scopes=[_CLOUD_SCOPE])
        account: str | None = credentials.service_account_email
        if account is None:
            return None, "the federation has no service account, and only service accounts have identity tokens"
        session: Any = google.auth.transport.requests.AuthorizedSession(credentials, auth_request=_request())
        endpoint = os.environ.get(_IAM_CREDENTIALS) or "https://iamcredentials.googleapis.com/"
        url = f"{endpoint}v1/projects/-/serviceAccounts/{account}:generateIdToken"
        answer = session.post(url, json={"audience": audience, "includeEmail": True}, timeout=TOKEN_LIMIT_S)
        said = f"generateIdToken of {account}: HTTP {answer.status_code}; the account needs roles/iam.serviceAccountTokenCreator on itself"
        return (str(answer.json()["token"]), "") if answer.ok else (None, said)
    except (google.auth.exceptions.GoogleAuthError, KeyError, ValueError, OSError) as error:
        return None, _first_line(str(error))


def _gcloud_token(audience: str) -> tuple[str | None, str]:
    """Return gcloud's token. Service accounts require the audience; user logins reject it."""
    token, said = _run_gcloud(f"--audiences={audience}")
    return (token, said) if token is not None else _run_gcloud()


def _run_gcloud(*options: str) -> tuple[str | None, str]:
    try:
        done = subprocess.run(
            ["gcloud", "auth", "print-identity-token", "--quiet", *options],
            capture_output=True,
            text=True,
            timeout=TOKEN_LIMIT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError:
        return None, "not installed"
    except subprocess.TimeoutExpired:
        return None, f"no response within {TOKEN_LIMIT_S} s"
    token = done.stdout.strip()
    if done.returncode != 0 or not token:
        return None, _first_line(done.stderr) or f"exit code {done.returncode}"
    return token, ""


def _first_line(text: str) -> str:
    lines = [line.strip() for line in masked(text).splitlines() if line.strip()]
    return lines[0][:200] if lines else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAccess:
    """A reachable server: its address and the headers for each request."""

    base_url: str
    """`http://HOST[:PORT]`, `https://HOST`, or `http+unix://PATH` for a tunnel (`loadtest.client.urls`)."""
    auth: Auth
    id_tokens: IdTokenSource | None = None
    api_key: str | None = field(default=None, repr=False)
    is_open: Callable[[], bool] = field(default=lambda: True, repr=False)
    """Returns False once the tunnel has closed."""
    behind_front_end: bool = False
    """True if Google's front end responds for the server. A failed connection is then a local problem."""

    def headers(self) -> Mapping[str, str]:
        """Return the headers for the next request. Blocks for up to TOKEN_LIMIT_S seconds per token source."""
        found: dict[str, str] = {}
        if self.api_key is not None:
            found["Authorization"] = f"Bearer {self.api_key}"
        if self.id_tokens is not None:
            name = "Authorization" if self.api_key is None else "X-Serverless-Authorization"
            found[name] = f"Bearer {self.id_tokens.token()}"
        return found

    def renew(self) -> bool:
        """Discard the identity token after the server rejected it. Return whether the access uses one."""
        if self.id_tokens is None:
            return False
        self.id_tokens.discard(self.id_tokens.token())
        return True

    @property
    def private(self) -> bool:
        """True if the server must reject callers without credentials."""
        return self.id_tokens is not None or self.api_key is not None


@contextlib.contextmanager
def open_access(
    *,
    endpoint: str,
    auth: Auth,
    tunnel: Tunnel | None = None,
    api_key: str | None = None,
    behind_front_end: bool = False,
) -> Generator[ServerAccess]:
    """Open access to a server according to the outputs `endpoint`, `auth` and `tunnel`, and close it at the end.

    Raises AccessError if the tunnel does not open within TUNNEL_OPEN_LIMIT_S.
    """
    access = ServerAccess(
        base_url=endpoint.rstrip("/"),
        auth=auth,
        api_key=api_key,
        behind_front_end=behind_front_end,
    )
    if auth == "none":
        yield access
    elif auth == "id-token":
        parts = urlsplit(endpoint)
        yield replace(access, id_tokens=IdTokenSource(urlunsplit((parts.scheme, parts.netloc, "", "", ""))))
    else:
        assert tunnel is not None  # noqa: S101 - the outputs of a stack with `auth: tunnel` have one
        with tempfile.TemporaryDirectory(prefix="tunnel-", ignore_cleanup_errors=True) as folder:
            path = str(Path(folder) / "s")
            with _running_tunnel(_with_socket(tunnel.argv, tunnel.local_port, path), path) as process:
                yield replace(access, base_url=unix_url(path), is_open=lambda: process.poll() is None)


def open_stack_access(outputs: StackOutputs) -> AbstractContextManager[ServerAccess]:
    """Open access to a stack's server, with the stack's API key or else the environment's.

    Raises ScriptError if the stack's key cannot be read, and AccessError if the capacity had not arrived.
    """
    if outputs.target == "tpu" and outputs.state in WITHOUT_MACHINE:
        raise AccessError(
            f"the TPU capacity has not arrived: its request in {outputs.location} was {outputs.state} at the end of the last `gemma up`. "
            f"To check for it, run `gemma up {shlex.quote(outputs.labels.get(STACK_LABEL, 'STACK'))}`.",
        )
    api_key = _stack_api_key(outputs.api_key_secret, outputs.project) if outputs.api_key_secret else _api_key()
    return open_access(
        endpoint=outputs.endpoint,
        auth=outputs.auth,
        tunnel=outputs.tunnel,
        api_key=api_key,
        behind_front_end=outputs.target != "tpu",
    )


def open_url_access(url: str) -> AbstractContextManager[ServerAccess]:
    """Open access to the server at `--url`. Raises AccessError for an invalid address."""
    try:
        root = server_root(url)
    except ValueError as error:
        raise AccessError(str(error)) from None
    return open_access(endpoint=root, auth="none", api_key=_api_key())


def _stack_api_key(version: str, project: str) -> str:
    """Return the key in Secret Manager, or the environment's if the caller cannot read it."""
    from gemma_serving.cloud.secret_values import read_secret  # noqa: PLC0415 - most servers have no key

    try:
        return read_secret(version, project=project)
    except ScriptError as error:
        given = _api_key()
        if given is None:
            raise ScriptError(f"{error} Or set {API_KEY_VARIABLE}.") from None
        return given


def _api_key() -> str | None:
    """Return the value of API_KEY_VARIABLE, or None if it is not set or empty. Raises AccessError if no header can have it."""
    given = os.environ.get(API_KEY_VARIABLE)
    try:
        return usable_secret(given, API_KEY_VARIABLE) if given else None
    except UnusableSecretError as error:
        raise AccessError(
            f"{error} To set it again, run `read -rs {API_KEY_VARIABLE} && export {API_KEY_VARIABLE}`."
        ) from None


def _with_socket(argv: Sequence[str], port: int, path: str) -> list[str]:
    """Return the command with the socket at `path` as the local end of its forwarding (`-L PORT:HOST:PORT`)."""
    return [part.replace(f"{port}:", f"{path}:", 1) if part.startswith(f"{port}:") else part for part in argv]


@contextlib.contextmanager
def _running_tunnel(argv: Sequence[str], path: str) -> "Generator[subprocess.Popen[bytes]]":
    with tempfile.TemporaryFile() as log:
        try:
            # A new session, because gcloud starts ssh and both must be stopped.
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        except OSError as error:
            raise AccessError(
                f"cannot run the tunnel command {argv[0]!r}: {error.strerror}. Install it or add it to PATH."
            ) from error
        try:
            _await_socket(process, path, log)
            yield process
        finally:
            _end_group(process)


def _await_socket(process: subprocess.Popen[bytes], path: str, log: IO[bytes]) -> None:
    deadline_s = time.monotonic() + TUNNEL_OPEN_LIMIT_S
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            said = _tail(log)
            raise AccessError(
                f"the tunnel exited with code {process.returncode} before it opened: {said.rstrip('.')}{_login_hint(said)}"
            )
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1)
            probe.connect(path)
            return
        time.sleep(0.1)
    raise AccessError(f"the tunnel did not open within {TUNNEL_OPEN_LIMIT_S:.0f} s: {_tail(log)}")


def _login_hint(said: str) -> str:
    """Return the fix if the node denied the login; otherwise an empty text."""
    if _REFUSED_LOGIN not in said:
        return ""
    return (
        ". The node denied the login. An account outside the project's organization needs roles/compute.osLoginExternalUser on the organization. "
        "If you cannot get that role, deploy with gemma-serving:tpu.ssh: metadata-key (docs/tpu.md)"
    )


def _tail(log: IO[bytes]) -> str:
    log.seek(0)
    said = masked(log.read().decode("utf-8", errors="replace"))
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return " | ".join(lines[-_TAIL_LINES:])[:500] or "no output"


def _end_group(process: subprocess.Popen[bytes]) -> None:
    for signum in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signum)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(TUNNEL_CLOSE_LIMIT_S)
            if not _group_alive(process.pid):
                return


def _group_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True
