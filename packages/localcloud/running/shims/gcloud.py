"""`gcloud` for users of the local cloud: tunnels to TPU VMs, and tokens.

Commands: `alpha compute tpus tpu-vm ssh NODE --project= --zone= --tunnel-through-iap -- -N -L LOCAL:HOST:PORT`, where LOCAL is a port or a
path of a Unix socket (ssh(1), `-L local_socket:host:hostport`),
`compute ssh INSTANCE` with the same arguments,
`auth print-identity-token [--audiences=]`, `auth print-access-token`, `config get account`, `version` (as JSON), and an owner's commands
on a project (`gcloud_project`).

Commands run as the local cloud's operator, or as the account of `--account=EMAIL`, CLOUDSDK_CORE_ACCOUNT, a federation or
an impersonation (`gcloud_login`).
A tunnel sends the real gcloud's calls in the same order, so a missing permission shows at the same step
(googlecloudsdk/command_lib/compute/tpus/tpu_vm/ssh.py of SDK 528: PrepareNodeForSSH, AddSSHKeyIfNeeded, AttemptRunWithRetries;
command_lib/util/ssh/ssh.py: GetOsloginState).
The first connection to a node adds an SSH key to the node's metadata, even with OS Login, and waits until the node accepts it.
"""

import getpass
import json
import os
import re
import signal
import socket
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from localcloud.callers import SHARED_QUOTA_HEADER
from localcloud.running.shims import OPERATOR_TOKEN, gcloud_login, gcloud_project
from localcloud.running.shims.gcloud_login import Login, LoginError

if TYPE_CHECKING:
    import asyncio

_NOTICE: Final = (
    "gcloud (simulated): this is the local cloud's stand-in. It supports tunnels to TPU VMs, tokens and project setup."
)
_GCLOUD_CLIENT: Final = "32555940559.apps.googleusercontent.com"
"""The audience of gcloud's identity tokens for users: gcloud's client id."""
_TUNNEL: Final = ("compute", "tpus", "tpu-vm", "ssh")
_INSTANCE_TUNNEL: Final = ("compute", "ssh")
_IAP: Final = "--tunnel-through-iap"
_NOT_IN_GA: Final = """(gcloud.compute.tpus.tpu-vm.ssh) unrecognized arguments:
  
 --tunnel-through-iap flag is available in one or more alternate release tracks. Try:

  gcloud alpha compute tpus tpu-vm ssh --tunnel-through-iap

  --tunnel-through-iap
  To search the help text of gcloud commands, run:
  gcloud help -- SEARCH_TERMS"""  # noqa: W293 - gcloud prints the blanks
"""Recorded from gcloud 528.0.0 on 2026-11-20: `gcloud compute tpus tpu-vm ssh NODE --zone=ZONE --tunnel-through-iap`, exit code 2."""
_NOT_IN_BETA: Final = """(gcloud.beta.compute.tpus) Invalid choice: 'tpu-vm'.
This command is available in one or more alternate release tracks.  Try:
  gcloud compute tpus tpu-vm
  gcloud alpha compute tpus tpu-vm"""
"""Recorded from gcloud 528.0.0 on 2026-11-20: `gcloud beta compute tpus tpu-vm ssh NODE ...`, exit code 2."""
_SSH_KEYS: Final = "ssh-keys"
"""The key of a node's metadata in which gcloud stores public SSH keys, one per line."""
_OS_LOGIN: Final = "enable-oslogin"
_SUN_PATH: Final = 108
"""Bytes of a socket's path on Linux, including the final null (unix(7)). ssh rejects a longer one before it connects (readconf.c)."""
_LIMIT_S: Final = 30.0
_VERSION: Final = {"Google Cloud SDK": "528.0.0", "alpha": "2025.06.20", "beta": "2025.06.20", "core": "2025.06.20"}
"""Output of `gcloud version --format=json` of the modeled release, without components that are not simulated."""
_POLL_S: Final = 0.05


class CommandError(Exception):
    """A command that fails or is not simulated. `code` is the exit code."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


class GcloudRejectedError(CommandError):
    """A command that the real gcloud also rejects. The message is gcloud's own, after `ERROR: `."""

    def __init__(self, message: str) -> None:
        super().__init__(message, 2)


class CrashError(CommandError):
    """An error of gcloud itself. The message is gcloud's own, after `ERROR: `."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelRequest:
    """A forward of a local port, or of a Unix socket, to a port of a node."""

    node: str
    local: str | tuple[str, int]
    """Path of a socket, or host and port."""
    remote_port: int
    account: str = ""
    """The account of `--account`. Empty for the environment's account."""


def _base_url() -> str:
    url = os.environ.get("LOCALCLOUD_URL")
    if not url:
        raise CommandError(
            "LOCALCLOUD_URL is not set. Run this command under `python -m localcloud run` or after `python -m localcloud env`."
        )
    return url.rstrip("/")


def _call(
    path: str, *, body: dict[str, Any] | None = None, token: str | None = None, verb: str | None = None
) -> dict[str, Any]:
    headers = {"Content-Type": "application/json", SHARED_QUOTA_HEADER: "gcloud"} | (
        {"Authorization": f"Bearer {token}"} if token else {}
    )
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(_base_url() + path, data=data, headers=headers, method=verb)  # noqa: S310 - the local cloud
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=_LIMIT_S) as response:
            return json.loads(response.read() or b"{}")
    except urllib.error.HTTPError as error:
        with error:
            text = error.read().decode(errors="replace")
        try:
            message = str(json.loads(text)["error"]["message"])
        except (ValueError, KeyError, TypeError):
            message = text[:300]
        raise CommandError(f"{error.code} {message}") from None
    except (OSError, ValueError) as error:
        raise CommandError(f"the local cloud at {_base_url()} does not respond: {error}") from None


def parse_tunnel(words: Sequence[str], *, to_instance: bool = False) -> TunnelRequest:
    """Parse the words after `alpha compute tpus tpu-vm ssh`, or after `compute ssh`. Raises CommandError."""
    at = words.index("--") if "--" in words else len(words)
    before, after = words[:at], words[at + 1 :]
    options: dict[str, str] = {}
    for word in before:
        if word.startswith("--"):
            name, _, value = word.removeprefix("--").partition("=")
            options[name] = value
    names = [word for word in before if not word.startswith("--")]
    project = options.get("project") or os.environ.get("GOOGLE_CLOUD_PROJECT", "")
    zone = options.get("zone", "")
    if len(names) != 1 or not zone or not project:
        raise CommandError("the stand-in needs one NODE with --project=PROJECT and --zone=ZONE, each in one word.", 2)
    forward = re.search(
        r"(?:^|\s)-L\s*(?:(?P<path>/[^:\s]+)|(?:(?P<host>[\w.]+):)?(?P<local>\d+)):(?P<target>[\w.]+):(?P<remote>\d+)(?:\s|$)",
        " ".join(after),
    )
    if forward is None or "-N" not in after or _IAP not in before:
        raise CommandError(
            f"the stand-in only opens tunnels. Pass {_IAP} and end the command with `-- -N -L LOCAL_PORT:127.0.0.1:PORT`.",
            2,
        )
    path = forward["path"]
    if path is not None and len(os.fsencode(path)) >= _SUN_PATH:
        raise CommandError(f"Bad local forwarding specification '{path}:{forward['target']}:{forward['remote']}'", 255)
    node = names[0].rpartition("@")[2]
    folder = f"zones/{zone}/instances" if to_instance else f"locations/{zone}/nodes"
    return TunnelRequest(
        node=f"projects/{project}/{folder}/{node}",
        local=path or (forward["host"] or "127.0.0.1", int(forward["local"])),
        remote_port=int(forward["remote"]),
        account=options.get("account", ""),
    )


def _call_admin(path: str, *, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Call the admin API with the operator's token."""
    token = os.environ.get(OPERATOR_TOKEN) or os.environ.get("GOOGLE_OAUTH_ACCESS_TOKEN")
    return _call(path, body=body, token=token)


def _open_tunnel(tunnel: TunnelRequest) -> int:
    import asyncio  # noqa: PLC0415 - a third of the start of `gcloud`, and only a tunnel needs it

    return asyncio.run(_run_tunnel(tunnel))


async def _run_tunnel(tunnel: TunnelRequest) -> int:
    import asyncio  # noqa: PLC0415 - as above

    log_in(tunnel.node, _login(tunnel.account))
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, stopped.set)
    server = await listen(tunnel)
    parent = os.getppid()
    async with server:
        # Exit with the parent: if it was killed, nothing else closes the tunnel.
        while os.getppid() == parent and not stopped.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), 0.5)
        server.close()
    return 0 if not stopped.is_set() else 130


async def listen(tunnel: TunnelRequest) -> "asyncio.Server":
    """Listen at the local end, as ssh does. It replaces no file, and only its user can open its socket (ssh_config(5), StreamLocalBindMask)."""
    import asyncio  # noqa: PLC0415 - as above

    async def carry(reader: "asyncio.StreamReader", writer: "asyncio.StreamWriter") -> None:
        await _forward(tunnel, reader, writer)

    try:
        if not isinstance(tunnel.local, str):
            return await asyncio.start_server(carry, *tunnel.local)
        bound = socket.socket(socket.AF_UNIX)
        before = os.umask(0o177)
        try:
            bound.bind(tunnel.local)
        finally:
            os.umask(before)
        return await asyncio.start_unix_server(carry, sock=bound)
    except OSError as error:
        if isinstance(tunnel.local, str):
            raise CommandError(f"unix_listener: cannot bind to path {tunnel.local}: {error.strerror}") from error
        raise CommandError("bind [{}]:{}: {}".format(*tunnel.local, error.strerror)) from error


def _login(account: str) -> Login:
    try:
        return gcloud_login.current(account, _call, _call_admin)
    except LoginError as error:
        raise CommandError(str(error)) from None


def log_in(node: str, login: Login) -> None:
    """Send the calls of a connection up to the login. Raises CommandError at the first rejected one."""
    account = login.account
    issued = _call_admin("/admin/tokens", body={"email": account} if account else {})
    token, account = str(issued["accessToken"]), str(issued.get("email", account))
    if "/instances/" in node:
        _log_in_to_instance(node, replace(login, account=account), token)
        return
    path, user = f"/tpu/v2alpha1/{node}", getpass.getuser()
    metadata: dict[str, str] = _call(path, token=token).get("metadata") or {}
    _call(f"{path}:getGuestAttributes", body={}, token=token)
    public_key, project = f"ssh-rsa simulated-key-of-{user}", node.split("/")[1]
    shared: dict[str, list[dict[str, str]]] = (
        _call(f"/compute/compute/v1/projects/{project}", token=token).get("commonInstanceMetadata") or {}
    )
    if metadata.get(_OS_LOGIN, "").upper() == "TRUE":
        if login.third_party:
            raise CrashError(gcloud_login.NO_INSTANCE)
        user = _os_login(account, project, public_key, token)
    key = f"{user}:{public_key} {user}@localcloud"
    if not any(item["key"] == _SSH_KEYS and key in item["value"] for item in shared.get("items", [])):
        _await_ssh_key(path, metadata, key, token)
    _call_admin(f"/admin/ssh?{urllib.parse.urlencode({'node': node, 'account': account})}")


def _log_in_to_instance(node: str, login: Login, token: str) -> None:
    """Send the calls of `gcloud compute ssh`: the instance, the project, and with OS Login the user's profile (SDK 528: ssh_utils.py).

    Without OS Login gcloud writes the key to the project's metadata, or to the instance's if it lacks permission. Here: the instance's.
    """
    found: dict[str, Any] = _call(f"/compute/compute/v1/{node}", token=token).get("metadata") or {}
    metadata = {str(item["key"]): str(item.get("value") or "") for item in found.get("items") or ()}
    project, public_key = node.split("/")[1], f"ssh-rsa simulated-key-of-{getpass.getuser()}"
    _call(f"/compute/compute/v1/projects/{project}", token=token)
    if metadata.get(_OS_LOGIN, "").upper() == "TRUE":
        if login.third_party:
            raise CrashError(gcloud_login.NOT_IN_GA)
        _os_login(login.account, project, public_key, token)
    elif public_key not in metadata.get(_SSH_KEYS, ""):
        key = f"{getpass.getuser()}:{public_key} {getpass.getuser()}@localcloud"
        keys = {**metadata, _SSH_KEYS: f"{metadata.get(_SSH_KEYS, '')}\n{key}".strip()}
        items = [{"key": name, "value": value} for name, value in keys.items()]
        print("Updating instance ssh metadata...", file=sys.stderr)
        path, body = f"/compute/compute/v1/{node}", {"fingerprint": found.get("fingerprint"), "items": items}
        _call(f"{path}/setMetadata", body=body, token=token)
    _call_admin(f"/admin/ssh?{urllib.parse.urlencode({'node': node, 'account': login.account})}")


def _os_login(account: str, project: str, public_key: str, token: str) -> str:
    """Import the key into the account's login profile if it lacks the key. Return the name of its POSIX account."""
    users, query = f"/oslogin/v1alpha/users/{account}", f"projectId={project}"
    profile = _call(f"{users}/loginProfile?{query}", token=token)
    keys: dict[str, dict[str, str]] = profile.get("sshPublicKeys") or {}
    if not profile.get("posixAccounts") or all(known["key"] != public_key for known in keys.values()):
        answer = _call(f"{users}:importSshPublicKey?{query}", body={"key": public_key}, token=token)
        profile = answer["loginProfile"]
    return str(profile["posixAccounts"][0]["username"])


def _await_ssh_key(path: str, metadata: dict[str, str], key: str, token: str) -> None:
    """Add a key to the node's metadata if it lacks the key, and wait until the node accepts it.

    The wait is the scenario's `tpu.durations_s.ssh_key`. Raises CommandError if the node cannot be updated.
    """
    known = metadata.get(_SSH_KEYS, "")
    if key in known:
        return
    print("Propagating SSH public key to all TPU workers...", file=sys.stderr)
    updated = {"metadata": {**metadata, _SSH_KEYS: f"{known}\n{key}"}}
    operation = _call(f"{path}?updateMask=metadata", body=updated, token=token, verb="PATCH")
    # Read at least once, as gcloud does, even if the response reports completion, because the read needs its own permission.
    while not (operation := _call(f"/tpu/v2alpha1/{operation['name']}", token=token)).get("done"):
        time.sleep(_POLL_S)
    print("SSH: Attempting to connect to worker 0...", file=sys.stderr)
    clock = _call_admin("/admin/clock")
    if not clock["instant"]:
        time.sleep(_call_admin("/admin/scenario")["tpu"]["durations_s"]["ssh_key"] / clock["speed"])


async def _forward(tunnel: TunnelRequest, reader: "asyncio.StreamReader", writer: "asyncio.StreamWriter") -> None:
    """Forward one connection. Reject it if nothing listens on the port, as ssh does."""
    import asyncio  # noqa: PLC0415 - as above

    query = urllib.parse.urlencode({"node": tunnel.node, "port": tunnel.remote_port})
    try:
        where = await asyncio.to_thread(_call_admin, f"/admin/tunnel?{query}")
        far_reader, far_writer = await asyncio.open_connection(where["host"], where["port"])
    except (CommandError, OSError) as error:
        print(f"channel 1: open failed: connect failed: {error}", file=sys.stderr)
        writer.transport.abort()
        return
    await asyncio.gather(_carry(reader, far_writer), _carry(far_reader, writer))
    for end in (writer, far_writer):
        end.close()


async def _carry(reader: "asyncio.StreamReader", writer: "asyncio.StreamWriter") -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
        return
    writer.transport.abort()


def _ssh(track: str, words: Sequence[str]) -> int:
    """Run the ssh command of a release track (`alpha`, `beta` or empty). Only the alpha track can tunnel through IAP."""
    if track == "beta":
        raise GcloudRejectedError(_NOT_IN_BETA)
    if track != "alpha" and _IAP in words:
        raise GcloudRejectedError(_NOT_IN_GA)
    return _open_tunnel(parse_tunnel(words))


def _read_only_output(words: Sequence[str]) -> str | None:
    """Return the output of a read-only command, or None if the words are another command."""
    if words[:1] == ["version"]:
        return json.dumps(_VERSION)
    if words[:3] == ["config", "get", "account"]:
        return gcloud_project.owner(_call_admin)[0]
    if words[:2] == ["auth", "print-access-token"]:
        return str(_call_admin("/admin/tokens", body={})["accessToken"])
    if words[:2] == ["auth", "print-identity-token"]:
        audience = next((word.partition("=")[2] for word in words if word.startswith("--audiences=")), _GCLOUD_CLIENT)
        return str(_call_admin("/admin/tokens", body={"audience": audience})["idToken"])
    return None


def _run(words: Sequence[str]) -> int:
    track, command = (words[0], words[1:]) if words[:1] in (["alpha"], ["beta"]) else ("", words)
    if tuple(command[: len(_TUNNEL)]) == _TUNNEL:
        return _ssh(track, command[len(_TUNNEL) :])
    if tuple(command[: len(_INSTANCE_TUNNEL)]) == _INSTANCE_TUNNEL:
        return _open_tunnel(parse_tunnel(command[len(_INSTANCE_TUNNEL) :], to_instance=True))
    for command, change in gcloud_project.COMMANDS.items():
        if tuple(words[: len(command)]) == command:
            change(gcloud_project.Api(_call, _call_admin), gcloud_project.Words.of(words[len(command) :]))
            return 0
    output = _read_only_output(words)
    if output is not None:
        print(output)
        return 0
    raise CommandError(
        f"the stand-in does not support `gcloud {' '.join(words)}`. Use the real gcloud with a real project.", 2
    )


def main(argv: Sequence[str]) -> int:
    """Run the command line. Return exit code 2 for an unknown command."""
    print(_NOTICE, file=sys.stderr)
    try:
        return _run([word for word in argv if word not in ("--quiet", "-q")])
    except (GcloudRejectedError, CrashError) as error:
        print(f"ERROR: {error}", file=sys.stderr)
        return error.code
    except CommandError as error:
        print(f"ERROR: (gcloud) {error}", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
