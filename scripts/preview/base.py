"""Plans of another commit, created by its own planner. This also shows changes of the planner and of its prices."""

import contextlib
import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Final

from contracts.errors import CommandRefusedError, ScriptError
from engine.checkout import other_checkout
from engine.children import ended
from scripts.cli.command import say
from scripts.preview.plans import PlansDocument, describe_checkout, read_plans

_LIMIT_S: Final = 300.0
_KEPT: Final = ("PATH", "HOME", "LANG", "TMPDIR", "GOOGLE_CLOUD_PROJECT", "SYSTEMROOT")
"""Environment variables passed to the other checkout's code, without credentials or a passphrase."""


@contextlib.contextmanager
def base_checkout(commit: str | None) -> Generator[Path | None]:
    """Yield a temporary checkout of a commit of this repository, or None without a commit.

    Raises CommandRefusedError if git does not know the commit.
    """
    with contextlib.ExitStack() as held:
        try:
            checkout = held.enter_context(other_checkout(commit)) if commit else None
        except CommandRefusedError as error:
            raise CommandRefusedError(f"--base {commit}: {error}") from None
        yield checkout


def plans_of_checkout(checkout: Path) -> PlansDocument:
    """Return the plans of another checkout, created by its own code, or by this code if that fails. Writes them next to the checkout."""
    out = checkout.with_name("plans.json")
    done = ended(
        [sys.executable, "-m", "scripts.preview", "plans", "--out", str(out.absolute())],
        folder=checkout,
        env={key: value for key, value in os.environ.items() if key in _KEPT},
        limit_s=_LIMIT_S,
    )
    if done.returncode == 0 and out.is_file():
        try:
            return read_plans(out)
        except (ValueError, ScriptError):
            pass  # another version of the document: handled below, like a checkout without the command
    say("preview", "the base's own planner failed; both sides use this checkout's planner")
    return describe_checkout(checkout).model_copy(update={"planner": "other"})
