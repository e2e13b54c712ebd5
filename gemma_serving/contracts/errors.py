"""Errors with which a command exits with one sentence."""

from gemma_serving.contracts.exit_codes import ExitCode


class ScriptError(Exception):
    """The command failed. The message is one sentence with the fix; `exit_code` is the command's."""

    exit_code = ExitCode.FAILED


class CommandRefusedError(ScriptError):
    """The command changed nothing: invalid argument, unknown stack, or no access to the server."""

    exit_code = ExitCode.REFUSED
