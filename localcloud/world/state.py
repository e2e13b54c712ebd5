"""The state folder: its lock against a second cloud, and the description for `python -m localcloud env`."""

import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from localcloud.json_values import JsonObject


class StateError(Exception):
    """The state folder cannot be used; the message is one sentence."""


@dataclass(slots=True)
class StateLock:
    """The lock of a state folder while a cloud runs on it.

    The operating system releases it when the process ends for any reason, so no stale lock remains.
    """

    path: Path
    stream: IO[str]

    @classmethod
    def take(cls, state: Path) -> "StateLock":
        """Lock the folder; create it if it does not exist."""
        try:
            state.mkdir(parents=True, exist_ok=True, mode=0o700)
            stream = (state / "lock").open("a+", encoding="utf-8")
        except OSError as error:
            raise StateError(
                f"The state folder {state} cannot be used ({error.strerror}); choose another with --state."
            ) from None
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            stream.seek(0)
            holder = stream.read().strip() or "unknown"
            stream.close()
            raise StateError(
                f"Another local cloud (process {holder}) runs on the state folder {state}; stop it, or choose another folder with --state."
            ) from None
        stream.truncate(0)
        stream.write(str(os.getpid()))
        stream.flush()
        return cls(state / "lock", stream)

    def release(self) -> None:
        """Release the lock."""
        self.stream.close()


def describe(state: Path, description: JsonObject) -> None:
    """Write the description of the running cloud."""
    path = state / "cloud.json"
    path.write_text(json.dumps(description, indent=1), encoding="utf-8")
    path.chmod(0o600)


def clear_description(state: Path) -> None:
    """Remove the description of a stopped cloud."""
    (state / "cloud.json").unlink(missing_ok=True)


def description(state: Path) -> JsonObject:
    """Return how to reach the cloud that runs on the folder. Raise StateError if none runs."""
    path = state / "cloud.json"
    if not path.exists() or not _held(state):
        raise StateError(
            f"No local cloud runs on the state folder {state}; start one with: python -m localcloud serve --state {state}"
        )
    return cast("JsonObject", json.loads(path.read_text(encoding="utf-8")))


def _held(state: Path) -> bool:
    """Tell if a living process holds the lock."""
    try:
        with (state / "lock").open("r", encoding="utf-8") as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False
