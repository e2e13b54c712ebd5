"""Codes for the questions of an assistant: shown on a terminal with the question, accepted once, for exactly that question.

A client that answers questions itself has none. Only a hash of a code is stored, so a model that can read files does not learn it.
"""

import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.fields import json_object
from gemma_serving.contracts.memory import STATE_HOME_VARIABLE, Memory
from gemma_serving.contracts.plain_text import for_model
from gemma_serving.engine.backend import memory

VALID_S: Final = 600
_LETTERS: Final = "ABCDEFGHJKMNPQRSTVWXYZ23456789"
"""Without characters that look alike."""
_LENGTH: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeShelf:
    """Store of the newest question about each stack, with the hash of its code. A newer question replaces the older one and its code."""

    memory: Memory
    clock: Callable[[], float] = time.time

    def ask(self, stack: str, question: str) -> None:
        """Store a question, for which `new` can create a code. Raises CommandRefusedError if it cannot be stored."""
        kept = self._kept(_name(stack))
        if kept.get("question") != question or "hash" not in kept:  # a code that the user holds stays valid
            self._write(stack, question)

    def new(self, stack: str) -> tuple[str, str]:
        """Return the question about a stack with a new code for it. Raises CommandRefusedError without a question."""
        question = self._kept(_name(stack)).get("question")
        if not isinstance(question, str):
            raise CommandRefusedError(
                f"No assistant asked about stack {stack} here in the last {VALID_S // 60} minutes, so a code would approve nothing. "
                "Run the command again while the question is open, in the folder that it names."
            )
        code, salt = _code(), secrets.token_hex(16)
        self._write(stack, question, salt=salt, hash=_hash(code, salt))
        return question, code

    def take(self, stack: str, typed: str, question: str) -> bool:
        """Use up the code of a stack, and return whether the typed text is the code for this question.

        A wrong code also uses it up, so codes cannot be guessed.
        """
        name = _name(stack)
        taken = f"{name}.{secrets.token_hex(4)}"
        try:
            self.memory.path(name).rename(self.memory.path(taken))  # of two concurrent answers, only one gets the file
        except FileNotFoundError:
            return False
        kept = self._kept(taken)
        self.memory.remove(taken)
        if "hash" not in kept or kept.get("question") != question:
            return False
        return hmac.compare_digest(_hash(typed, str(kept["salt"])), str(kept["hash"]))

    def _write(self, stack: str, question: str, **code: str) -> None:
        kept = {"until": self.clock() + VALID_S, "question": question, **code}
        try:
            self.memory.write(_name(stack), json.dumps(kept))
        except OSError as error:
            raise CommandRefusedError(
                f"Cannot store a question in {self.memory.folder}: {error.strerror}. Set {STATE_HOME_VARIABLE} to a folder of yours."
            ) from None

    def _kept(self, name: str) -> Mapping[str, object]:
        """Return a record that is not too old; empty without one that only this user can have written."""
        kept = json_object(self.memory.read(name) or "{}")
        until = kept.get("until")
        is_young = isinstance(until, int | float) and 0 <= until - self.clock() <= VALID_S
        return kept if is_young else {}


def code_shelf() -> CodeShelf:
    """Return the store of this project's questions and codes."""
    return CodeShelf(memory=memory())


def _name(stack: str) -> str:
    # A path contains a name only as a hash, so client input never becomes part of a path.
    return f"code-{hashlib.sha256(stack.encode()).hexdigest()[:32]}.json"


def show_code(stack: str, shelf: CodeShelf) -> None:
    """Create a code for the question about a stack, and print both on the terminal itself. Raises CommandRefusedError without one."""
    try:
        terminal = Path("/dev/tty").open("w", encoding="utf-8")  # noqa: SIM115 - closed below
    except OSError:
        raise CommandRefusedError(
            "Codes are shown only on a terminal, and this process has none. Run the command in your own terminal."
        ) from None
    with terminal:
        question, code = shelf.new(stack)
        terminal.write(
            f"{for_model(question)}\nThe code for exactly this, once, within {VALID_S // 60} minutes:\n  {code}\n"
        )


def _code() -> str:
    text = "".join(secrets.choice(_LETTERS) for _ in range(_LENGTH))
    return f"{text[:4]}-{text[4:]}"


def _hash(code: str, salt: str) -> str:
    """Return a hash that is slow to guess, because a code has only 39 bits."""
    plain = "".join(letter for letter in code.upper() if letter.isascii() and letter.isalnum())
    return hashlib.scrypt(plain[:64].encode(), salt=bytes.fromhex(salt), n=2**14, r=8, p=1).hex()
