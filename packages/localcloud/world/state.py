"""The state folder: its lock against a second cloud, its permissions, and the description for `python -m localcloud env`."""

import fcntl
import json
import os
import shlex
import stat
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from localcloud.json_values import JsonObject

PRIVATE_UMASK = 0o077
"""Umask of a process that writes below the state folder, so only its user can access the files."""
_OWNER = 0o700
_OWNER_WRITES = 0o200
_OWNER_READS = 0o400
_DESCRIPTION = "cloud.json"
_TRIES = 5
_PAUSE_S = 0.02


class StateError(Exception):
    """The state folder cannot be used. The message is one sentence."""


@dataclass(slots=True)
class StateLock:
    """The lock of a state folder while a cloud runs on it.

    The operating system releases it when the process exits for any reason, so no stale lock remains.
    """

    path: Path
    stream: IO[str]

    @classmethod
    def take(cls, state: Path) -> "StateLock":
        """Lock the folder, creating it if needed. Remove other users' permissions on it and a dead cloud's description."""
        try:
            state.mkdir(parents=True, exist_ok=True, mode=_OWNER)
            _own(state)
            stream = (state / "lock").open("a+", encoding="utf-8")
        except OSError as error:
            raise StateError(
                f"The state folder {state} cannot be used: {error.strerror}. Pass another --state."
            ) from None
        if not _locked(stream):
            stream.seek(0)
            holder = stream.read().strip() or "unknown"
            stream.close()
            raise StateError(
                f"Another local cloud (process {holder}) is using the state folder {state}. Run `{join_command(state)}` to "
                "use it in this terminal, stop it, or pass another --state."
            ) from None
        clear_description(state)
        stream.truncate(0)
        stream.write(str(os.getpid()))
        stream.flush()
        keep_private(state)
        return cls(state / "lock", stream)

    def release(self) -> None:
        """Release the lock."""
        self.stream.close()


def _locked(stream: IO[str]) -> bool:
    """Lock the file. Retry briefly because `localcloud env` holds the lock while it reads."""
    for _ in range(_TRIES):
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            time.sleep(_PAUSE_S)
        else:
            return True
    return False


def _own(state: Path) -> None:
    """Reject a folder of another user, who could restore permissions, and remove all other users' permissions on it."""
    owner = state.stat().st_uid
    if owner != os.geteuid():
        raise StateError(
            f"The state folder {state} belongs to another user (uid {owner}), who can read its secrets. Pass another --state."
        )
    state.chmod(_OWNER)


def keep_private(state: Path) -> None:
    """Remove the permissions of group and others on everything below the folder. Links are not followed."""
    for folder, folders, names in os.walk(state):
        for name in (*folders, *names):
            path = Path(folder, name)
            try:
                _remove_permissions(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise StateError(
                    f"Cannot make {path} private: {error.strerror}. Remove it or pass another --state."
                ) from None


def _remove_permissions(path: Path) -> None:
    found = path.lstat().st_mode
    if stat.S_ISLNK(found):
        return
    least = _OWNER if stat.S_ISDIR(found) else _OWNER_READS | _OWNER_WRITES
    wanted = (stat.S_IMODE(found) & _OWNER) | least
    if wanted != stat.S_IMODE(found):
        path.chmod(wanted)


@dataclass(slots=True)
class Description:
    """The description of the running cloud. Its writer holds a lock on it, so a dead process's file is ignored."""

    path: Path
    stream: IO[str]

    def close(self) -> None:
        """Remove the file and release its lock."""
        self.path.unlink(missing_ok=True)
        self.stream.close()


def describe(state: Path, content: JsonObject) -> Description:
    """Write the description of the running cloud. It appears complete and locked, and is valid until it is closed or this process exits."""
    path, new = state / _DESCRIPTION, state / f"{_DESCRIPTION}.new"
    new.unlink(missing_ok=True)
    new.touch(mode=_OWNER_READS | _OWNER_WRITES)
    stream = new.open("w", encoding="utf-8")
    fcntl.flock(stream, fcntl.LOCK_EX)
    json.dump(content, stream, indent=1)
    stream.flush()
    new.rename(path)
    return Description(path, stream)


def join_command(state: Path) -> str:
    """Return the command that sets the environment of the cloud on a folder in the calling shell."""
    return f'eval "$({Path(sys.executable).name} -m localcloud env --state {shlex.quote(str(state))})"'


def clear_description(state: Path) -> None:
    """Remove the description of a stopped cloud."""
    (state / _DESCRIPTION).unlink(missing_ok=True)


def description(state: Path) -> JsonObject:
    """Return the description of the cloud that runs on the folder. Raise StateError if none runs, or if it is still starting."""
    found = running(state)
    if found is None:
        raise StateError(
            f"No local cloud runs on the state folder {state}. Run `python -m localcloud serve --state {state}` to start one."
        )
    return found


def running(state: Path) -> JsonObject | None:
    """Return the description of the cloud that runs on the folder, or None. Raise StateError if it is still starting."""
    try:
        with (state / _DESCRIPTION).open("r", encoding="utf-8") as stream:
            if _is_locked(stream):
                return cast("JsonObject", json.load(stream))
    except (FileNotFoundError, NotADirectoryError):
        pass
    except PermissionError:
        raise StateError(f"The state folder {state} belongs to another user. Pass another --state.") from None
    if _held(state):
        raise StateError(f"The local cloud on the state folder {state} is still starting. Retry in a few seconds.")
    return None


def _held(state: Path) -> bool:
    """Return whether a living process holds the folder's lock."""
    try:
        with (state / "lock").open("r", encoding="utf-8") as stream:
            return _is_locked(stream)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _is_locked(stream: IO[str]) -> bool:
    """Return whether a living process holds a lock on the file."""
    try:
        fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    fcntl.flock(stream, fcntl.LOCK_UN)
    return False
