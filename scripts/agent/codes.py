"""Codes for deletions. A person gets one on a terminal, and the server accepts it once: a client that answers questions by itself has none.

The project's folder holds only a hash of a code, so a model that can read files does not learn it. A model that can write there, or
has a shell, does not need this server: docs/agent.md says so.
"""

import hashlib
import hmac
import json
import os
import secrets
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TextIO

from contracts.errors import CommandRefusedError, ScriptError

VALID_S: Final = 600
FOLDER: Final = Path(".work") / "agent-codes"
_LETTERS: Final = "ABCDEFGHJKMNPQRSTVWXYZ23456789"
"""Without those that look like others."""
_LENGTH: Final = 8
_OWNER_ONLY: Final = 0o600


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionCodes:
    """A new code for each extent of a deletion."""

    keeps_bucket: str
    deletes_bucket: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeShelf:
    """Where the hashes of codes are, at most one pair for each stack. A newer pair replaces the older one."""

    folder: Path
    clock: Callable[[], float] = time.time

    def new(self, stack: str) -> DeletionCodes:
        """Make codes for a stack and keep their hashes. Raises ScriptError if they cannot be kept."""
        codes = DeletionCodes(keeps_bucket=_code(), deletes_bucket=_code())
        salt = secrets.token_hex(16)
        kept = {
            "until": self.clock() + VALID_S,
            "salt": salt,
            "keeps_bucket": _hash(codes.keeps_bucket, salt),
            "deletes_bucket": _hash(codes.deletes_bucket, salt),
        }
        path = self._path(stack)
        fresh = path.with_suffix(f".{secrets.token_hex(4)}")
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ONLY), "w") as file:
                json.dump(kept, file)
            fresh.replace(path)
        except OSError as error:
            raise ScriptError(
                f"No code can be kept in {self.folder} ({error.strerror}). Free the disk, then try again."
            ) from None
        return codes

    def take(self, stack: str, typed: str, *, keeps_bucket: bool) -> str | None:
        """Use up the codes of a stack. Return why what was typed is not the code for this deletion; None if it is.

        A wrong code uses them up too, so that none can be guessed.
        """
        path = self._path(stack)
        taken = path.with_suffix(f".{secrets.token_hex(4)}")
        try:
            path.rename(taken)  # of two answers at the same time one has the file
        except OSError:
            return "there is no code for it now"
        try:
            kept: Mapping[str, object] = json.loads(taken.read_text(encoding="utf-8"))
            until, salt = float(str(kept["until"])), str(kept["salt"])
            wanted, other = str(kept["keeps_bucket"]), str(kept["deletes_bucket"])
        except (OSError, ValueError, KeyError, TypeError):
            return "its code cannot be read"
        finally:
            with suppress(OSError):
                taken.unlink()
        if not 0 <= until - self.clock() <= VALID_S:
            return f"its code is older than {VALID_S // 60} minutes"
        if not keeps_bucket:
            wanted, other = other, wanted
        found = _hash(typed, salt)
        if hmac.compare_digest(found, wanted):
            return None
        if hmac.compare_digest(found, other):
            return f"the code is for a deletion that {'deletes' if keeps_bucket else 'keeps'} the bucket"
        return "the code is wrong, and is used up"

    def _path(self, stack: str) -> Path:
        # A name is a path only by its hash: what a client sends is no part of a path.
        return self.folder / f"{hashlib.sha256(stack.encode()).hexdigest()[:32]}.json"


def show_codes(stack: str, plan_store: CodeShelf) -> None:
    """Make codes and print them on the terminal of this process, and nowhere else. Raises CommandRefusedError without a terminal."""
    with _terminal() as terminal:
        codes = plan_store.new(stack)
        terminal.write(
            f"Codes for a deletion of stack {stack} by an assistant.\n"
            f"Type one into the question of your client, once, within {VALID_S // 60} minutes:\n"
            f"  {codes.keeps_bucket}  deletes the stack and keeps its bucket\n"
            f"  {codes.deletes_bucket}  deletes the stack and its bucket with the weights\n"
        )


@contextmanager
def _terminal() -> Generator[TextIO]:
    """Open the controlling terminal. What is printed there is in no output that a program captures."""
    try:
        terminal = Path("/dev/tty").open("w", encoding="utf-8")  # noqa: SIM115 - closed below
    except OSError:
        raise CommandRefusedError(
            "A code is shown on a terminal only, and this process has none. Run the command in a terminal of your own."
        ) from None
    with terminal:
        yield terminal


def _code() -> str:
    text = "".join(secrets.choice(_LETTERS) for _ in range(_LENGTH))
    return f"{text[:4]}-{text[4:]}"


def _hash(code: str, salt: str) -> str:
    """Return a hash that takes long to try: a code has 39 bits, and is valid for minutes."""
    plain = "".join(letter for letter in code.upper() if letter.isascii() and letter.isalnum())
    return hashlib.scrypt(plain[:64].encode(), salt=bytes.fromhex(salt), n=2**14, r=8, p=1).hex()
