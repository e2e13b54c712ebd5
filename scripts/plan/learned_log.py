"""The log that `learn` reads: a file, or the newest start of a stack's server in Cloud Logging."""

import datetime as dt
import hashlib
from dataclasses import dataclass
from pathlib import Path

from cloud.simulated import is_simulated
from contracts.errors import CommandRefusedError
from scripts.plan.boot_log import first_line


@dataclass(frozen=True, slots=True, kw_only=True)
class BootLog:
    """A log with the facts that its text does not have."""

    text: str
    day: dt.date
    is_simulated: bool = False
    """True if a simulated server wrote it, which measures nothing."""

    @property
    def sha256(self) -> str:
        """Hash of the text, by which the same log is recognized."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def log_of_file(path: Path) -> BootLog:
    """Return the log in a file. Raises CommandRefusedError if it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
        day = dt.datetime.fromtimestamp(path.stat().st_mtime, tz=dt.UTC).date()
    except OSError as error:
        raise CommandRefusedError(f"Cannot read {path}: {error.strerror}. Pass the path of a log.") from None
    return BootLog(text=text, day=day)


def log_of_stack(stack: str) -> BootLog:
    """Return the newest start in a stack's logs. Raises ScriptError if it cannot be read, and CommandRefusedError if there is none."""
    from scripts.logs.face import newest_start  # noqa: PLC0415 - Google's client, only without a file

    lines = newest_start(stack, first_line)
    if not lines:
        raise CommandRefusedError(
            f"The logs of stack {stack} have no start of vLLM. Save the server's log and pass its path: "
            f"`python -m scripts.plan learn LOG --stack {stack}`."
        )
    text = "\n".join(line.text for line in lines) + "\n"
    return BootLog(text=text, day=lines[0].moment.date(), is_simulated=is_simulated())
