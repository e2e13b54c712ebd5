"""Codes for deletions: shown on a terminal, accepted once. A client that answers questions itself has none.

Only a hash of a code is stored, so a model that can read files does not learn it.
"""

import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.fields import as_sequence, json_object
from gemma_serving.contracts.memory import STATE_HOME_VARIABLE, Memory
from gemma_serving.engine.backend import memory

VALID_S: Final = 600
_LETTERS: Final = "ABCDEFGHJKMNPQRSTVWXYZ23456789"
"""Without characters that look alike."""
_LENGTH: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeShelf:
    """Store of the codes' hashes, at most one pair per stack. A newer pair replaces the older one."""

    memory: Memory
    clock: Callable[[], float] = time.time

    def new(self, stack: str) -> tuple[str, str]:
        """Create two codes for a stack, one that keeps its bucket and one that deletes it, and store their hashes. Raises OSError."""
        codes, salt = (_code(), _code()), secrets.token_hex(16)
        hashes = [_hash(code, salt) for code in codes]
        kept = {"until": self.clock() + VALID_S, "salt": salt, "hashes": hashes}
        self.memory.write(_name(stack), json.dumps(kept))
        return codes

    def take(self, stack: str, typed: str, *, keeps_bucket: bool) -> bool:
        """Use up the codes of a stack, and return whether the typed text is the code for this deletion.

        A wrong code also uses them up, so codes cannot be guessed.
        """
        name = _name(stack)
        taken = f"{name}.{secrets.token_hex(4)}"
        try:
            self.memory.path(name).rename(self.memory.path(taken))  # of two concurrent answers, only one gets the file
        except FileNotFoundError:
            return False
        kept = json_object(self.memory.read(taken) or "{}")
        self.memory.remove(taken)
        if "hashes" not in kept:  # another user can have written it
            return False
        wanted = str(as_sequence(kept["hashes"])[0 if keeps_bucket else 1])
        is_young = 0 <= float(str(kept["until"])) - self.clock() <= VALID_S
        return is_young and hmac.compare_digest(_hash(typed, str(kept["salt"])), wanted)


def code_shelf() -> CodeShelf:
    """Return the store of this project's codes."""
    return CodeShelf(memory=memory())


def _name(stack: str) -> str:
    # A path contains a name only as a hash, so client input never becomes part of a path.
    return f"code-{hashlib.sha256(stack.encode()).hexdigest()[:32]}.json"


def show_codes(stack: str, shelf: CodeShelf) -> None:
    """Create codes and print them on the terminal itself. Raises CommandRefusedError without one."""
    try:
        terminal = Path("/dev/tty").open("w", encoding="utf-8")  # noqa: SIM115 - closed below
    except OSError:
        raise CommandRefusedError(
            "Codes are shown only on a terminal, and this process has none. Run the command in your own terminal."
        ) from None
    with terminal:
        try:
            keeps, deletes = shelf.new(stack)
        except OSError as error:
            raise CommandRefusedError(
                f"Cannot store a code in {shelf.memory.folder}: {error.strerror}. Set {STATE_HOME_VARIABLE} to a folder of yours."
            ) from None
        terminal.write(
            f"Codes for a deletion of stack {stack} by an assistant.\n"
            f"Type one into your client's question, once, within {VALID_S // 60} minutes:\n"
            f"  {keeps}  deletes the stack and keeps its bucket\n"
            f"  {deletes}  deletes the stack and its bucket with the weights\n"
        )


def _code() -> str:
    text = "".join(secrets.choice(_LETTERS) for _ in range(_LENGTH))
    return f"{text[:4]}-{text[4:]}"


def _hash(code: str, salt: str) -> str:
    """Return a hash that is slow to guess, because a code has only 39 bits."""
    plain = "".join(letter for letter in code.upper() if letter.isascii() and letter.isalnum())
    return hashlib.scrypt(plain[:64].encode(), salt=bytes.fromhex(salt), n=2**14, r=8, p=1).hex()
