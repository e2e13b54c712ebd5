"""Exit codes of every command."""

from enum import IntEnum


class ExitCode(IntEnum):
    """Result of a command. The numbers are a contract with shells and workflows."""

    DONE = 0
    FAILED = 1
    REFUSED = 2
    OTHERS_OVER_LIMIT = 3
    INTERRUPTED = 130

    @property
    def meaning(self) -> str:
        """Meaning for the caller."""
        return {
            ExitCode.DONE: "done",
            ExitCode.FAILED: "failed, or missed a threshold",
            ExitCode.REFUSED: "refused before any change: invalid argument, unknown stack or blocking finding; "
            "or the server could not be reached",
            ExitCode.OTHERS_OVER_LIMIT: "done, and another Pulumi project has a stack over its limit, which was left",
            ExitCode.INTERRUPTED: "interrupted by Ctrl-C or SIGTERM",
        }[self]
