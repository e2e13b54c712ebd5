"""Exit codes of every command."""

from enum import IntEnum


class ExitCode(IntEnum):
    """How a command ended. The numbers are a contract with shells and workflows."""

    DONE = 0
    FAILED = 1
    REFUSED = 2
    INTERRUPTED = 130

    @property
    def meaning(self) -> str:
        """What the code tells the caller."""
        return {
            ExitCode.DONE: "done",
            ExitCode.FAILED: "failed, or fell short of a threshold",
            ExitCode.REFUSED: "refused before anything was done: a wrong argument, a stack that does not exist, or a finding that blocks; "
            "or the server could not be reached",
            ExitCode.INTERRUPTED: "interrupted by Ctrl-C or SIGTERM",
        }[self]
