"""Errors that end a command with one sentence for a person."""

from contracts.exit_codes import ExitCode


class ScriptError(Exception):
    """The command failed. The message is one sentence that says what to do next; `exit_code` is the command's."""

    exit_code = ExitCode.FAILED


class CommandRefusedError(ScriptError):
    """The command did nothing: a wrong argument, a stack that does not exist, or a server without access."""

    exit_code = ExitCode.REFUSED
