"""Gemma 4 behind vLLM on Google Cloud: settings -> plan -> stack -> outputs."""

import signal
import sys
from typing import Final

import pulumi

from stacks.program import UserError, run

_REPORTED: Final = 32
"""Exit status of a program whose error is logged: the engine adds none of its own (pulumi, sdk/go/common/constant/exec_kind.go, ExitStatusLoggedError)."""

# SIGINT ends this process at once, as SIGTERM does. A KeyboardInterrupt would end only the event loop in which the SDK answers the engine's hooks: the runner
# then waits for the registrations under way, the engine for an answer to the hook of one of them, and `pulumi up` never ends.
signal.signal(signal.SIGINT, signal.SIG_DFL)

try:
    run()
except UserError as error:
    pulumi.log.error(str(error))
    sys.exit(_REPORTED)
