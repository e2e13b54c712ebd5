"""How scripts get to a deployed server: identity tokens for Cloud Run, a tunnel for TPU machines, API keys.

- `id-token`: a token from Google, by `google.oauth2.id_token` (a service account's file or the metadata server), else from
  `gcloud auth print-identity-token` for a person's own login. It is renewed before it runs out.
- `tunnel`: the stack's own command, with a free local port in place of the one it names; closed with all its children.
- `none`: nothing.

vLLM's `--api-key` uses the Authorization header too; where both are needed the identity token goes into
X-Serverless-Authorization, which Cloud Run checks and removes. No token stands in an argument list or in an exception.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, Final, Literal, Protocol
from urllib.parse import urlsplit, urlunsplit

from scripts.client.events import as_mapping
from scripts.errors import REFUSED, ScriptError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

Auth = Literal["id-token", "tunnel", "none"]

TUNNEL_OPEN_LIMIT_S: Final = 90.0
"""`gcloud ... ssh --tunnel-through-iap` takes 5 to 20 s; the first time it also makes and spreads an SSH key."""
TUNNEL_CLOSE_LIMIT_S: Final = 5.0
TOKEN_LIMIT_S: Final = 30
TOKEN_LIFE_S: Final = 3600.0
"""Google's identity tokens hold one hour."""
TOKEN_MARGIN_S: Final = 2100.0
"""A token is renewed when it holds no longer than this: a benchmark takes its headers once a point, and a point may take half an hour."""


class AccessError(ScriptError):
    """The server cannot be reached as the stack says; the message is one sentence with the way out."""

    def __init__(self, message: str) -> None:
        super().__init__(message, exit_code=REFUSED)


def server_root(url: str) -> str:
    """Return the root of a server that `--url` names, without a slash or /v1 at its end. Raises AccessError for what is no usable address."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise AccessError(f"--url is {url!r}; it must be http://HOST[:PORT] or https://HOST.")
    if parts.hostname == "localhost":
        raise AccessError("--url names localhost, which may resolve to IPv6 first and miss the server; use 127.0.0.1.")
    return url.rstrip("/").removesuffix("/v1")


class Tunnel(Protocol):
    """The stack's output `tunnel`: a command, and the port of this machine that it forwards."""

    @property
    def argv(self) -> Sequence[str]:
        """The command."""
        ...

    @property
    def local_port(self) -> int:
        """The local port that the command names."""
        ...


class IdTokenSource:
    """Identity tokens for one audience, renewed before they run out. Safe to call from threads."""

    def __init__(self, audience: str, fetch: Callable[[str], str] | None = None) -> None:
        self._audience = audience
        self._fetch = fetch or fetch_id_token
        self._lock = threading.Lock()
        self._token: str | None = None
        self._renew_at_s = 0.0

    def token(self) -> str:
        """A token that is good for some minutes at least; raises AccessError when there is none to be had."""
        with self._lock:
            if self._token is None or time.monotonic() >= self._renew_at_s:
                self._token = self._fetch(self._audience)
                left_s = _seconds_left(self._token)
                # A metadata server may hand out a token of its cache that is past its half: it is used for half of what is left.
                self._renew_at_s = time.monotonic() + max(left_s - TOKEN_MARGIN_S, left_s / 2)
            return self._token


def _seconds_left(token: str) -> float:
    """Seconds until a token runs out, by its own `exp`; TOKEN_LIFE_S where it cannot be read."""
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
    """A fresh identity token for `audience` (the service's URL), at most TOKEN_LIMIT_S seconds a step."""
    token, google_says = _google_token(audience)
    if token is not None:
        return token
    token, gcloud_says = _gcloud_token()
    if token is not None:
        return token
    raise AccessError(
        f"no identity token for {audience}: google-auth says {google_says!r}, gcloud says {gcloud_says!r}; set GOOGLE_APPLICATION_CREDENTIALS"
        " to a service account's file, or run `gcloud auth login`, and see that the account has roles/run.invoker."
    )


def _google_token(audience: str) -> tuple[str | None, str]:
    import functools  # noqa: PLC0415 - google-auth is loaded only where a token is needed: it costs a quarter of a second

    import google.auth.exceptions  # noqa: PLC0415
    import google.auth.transport.requests  # noqa: PLC0415
    import google.oauth2.id_token  # noqa: PLC0415

    request: Any = functools.partial(google.auth.transport.requests.Request(), timeout=TOKEN_LIMIT_S)
    library: Any = google.oauth2.id_token
    try:
        credentials = library.fetch_id_token_credentials(audience, request)
        credentials.refresh(request)
    except (google.auth.exceptions.GoogleAuthError, ValueError, OSError) as error:
        return None, _first_line(str(error))
    return str(credentials.token), ""


def _gcloud_token() -> tuple[str | None, str]:
    try:
        done = subprocess.run(
            ["gcloud", "auth", "print-identity-token", "--quiet"],
            capture_output=True,
            text=True,
            timeout=TOKEN_LIMIT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError:
        return None, "not installed"
    except subprocess.TimeoutExpired:
        return None, f"no answer within {TOKEN_LIMIT_S} s"
    token = done.stdout.strip()
    if done.returncode != 0 or not token:
        return None, _first_line(done.stderr) or f"exit code {done.returncode}"
    return token, ""


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0][:200] if lines else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """An open way to a server."""

    base_url: str
    auth: Auth
    id_tokens: IdTokenSource | None = None
    api_key: str | None = field(default=None, repr=False)

    def headers(self) -> Mapping[str, str]:
        """Headers of the next request. May call the metadata server or gcloud, for TOKEN_LIMIT_S seconds at most: not for event loops."""
        found: dict[str, str] = {}
        if self.api_key is not None:
            found["Authorization"] = f"Bearer {self.api_key}"
        if self.id_tokens is not None:
            name = "Authorization" if self.api_key is None else "X-Serverless-Authorization"
            found[name] = f"Bearer {self.id_tokens.token()}"
        return found

    @property
    def private(self) -> bool:
        """Whether a caller without credentials must be refused."""
        return self.id_tokens is not None or self.api_key is not None


@contextlib.contextmanager
def open_access(
    *, endpoint: str, auth: Auth, tunnel: Tunnel | None = None, api_key: str | None = None
) -> Generator[Access]:
    """Open the way that the stack's outputs `endpoint`, `auth` and `tunnel` describe, and close it at the end, whatever happens.

    Raises AccessError when the tunnel does not open within TUNNEL_OPEN_LIMIT_S.
    """
    if auth == "none":
        yield Access(base_url=endpoint.rstrip("/"), auth=auth, api_key=api_key)
    elif auth == "id-token":
        parts = urlsplit(endpoint)
        audience = urlunsplit((parts.scheme, parts.netloc, "", "", ""))
        yield Access(base_url=endpoint.rstrip("/"), auth=auth, id_tokens=IdTokenSource(audience), api_key=api_key)
    else:
        if tunnel is None:
            raise AccessError(
                "the stack's output auth is tunnel, but its output tunnel is null; run `pulumi up` again."
            )
        free_port = _free_port()
        with _running_tunnel(_with_local_port(tunnel.argv, tunnel.local_port, free_port), free_port):
            yield Access(base_url=f"http://127.0.0.1:{free_port}", auth=auth, api_key=api_key)


def _with_local_port(argv: Sequence[str], port: int, free_port: int) -> list[str]:
    """The command with `free_port` as the local end of its forwarding (`-L PORT:host:port`, in one argument or in two)."""
    replaced: list[str] = []
    for part in argv:
        prefix = "-L" if part.startswith("-L") else ""
        forward = part.removeprefix(prefix)
        bind, found = "", forward.startswith(f"{port}:")
        for host in ("127.0.0.1:", "localhost:"):
            if forward.startswith(f"{host}{port}:"):
                bind, found = host, True
        tail = forward.removeprefix(bind).removeprefix(str(port))
        replaced.append(f"{prefix}{bind}{free_port}{tail}" if found else part)
    if replaced == list(argv) and port != free_port:
        raise AccessError(f"the stack's output tunnel names local port {port}, but its command forwards no such port.")
    return replaced


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def _running_tunnel(argv: Sequence[str], port: int) -> Generator[None]:
    with tempfile.TemporaryFile() as log:
        try:
            # A session of its own: gcloud starts ssh, and both have to go at the end.
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        except OSError as error:
            raise AccessError(
                f"the tunnel's command {argv[0]!r} cannot be run: {error.strerror}; install it or put it on PATH."
            ) from error
        try:
            _await_port(process, port, log)
            yield
        finally:
            _end_group(process)


def _await_port(process: subprocess.Popen[bytes], port: int, log: IO[bytes]) -> None:
    deadline_s = time.monotonic() + TUNNEL_OPEN_LIMIT_S
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            raise AccessError(f"the tunnel ended with exit code {process.returncode} before it was open: {_tail(log)}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.1)
    raise AccessError(f"the tunnel did not open within {TUNNEL_OPEN_LIMIT_S:.0f} s: {_tail(log)}")


def _tail(log: IO[bytes]) -> str:
    log.seek(0)
    lines = [line.strip() for line in log.read().decode("utf-8", errors="replace").splitlines() if line.strip()]
    return " | ".join(lines[-3:])[:500] or "it said nothing"


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
