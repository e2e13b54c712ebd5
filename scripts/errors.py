"""How scripts end: exit codes that mean something, and one sentence for a person."""

DONE = 0
FAILED = 1
REFUSED = 2
INTERRUPTED = 130


class ScriptError(Exception):
    """A script cannot go on; the message is one sentence that says what to do next. `exit_code` is FAILED or REFUSED."""

    def __init__(self, message: str, *, exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code
