"""Gemma 4 behind vLLM on Google Cloud: settings -> plan -> stack -> outputs."""

import signal
import sys
from typing import Final

import pulumi

from gemma_serving.stacks.program import UserError, run

_REPORTED: Final = 32
"""Exit status of a program whose error is logged, so the engine does not add one (pulumi, sdk/go/common/constant/exec_kind.go, ExitStatusLoggedError)."""

# SIGINT exits this process immediately, like SIGTERM. A KeyboardInterrupt only stops the event loop in which the SDK answers the engine's hooks. The
# runner then waits for the pending registrations, the engine for the answer to one of their hooks, and `pulumi up` never exits.
signal.signal(signal.SIGINT, signal.SIG_DFL)

try:
    run()
except UserError as error:
    pulumi.log.error(str(error))
    sys.exit(_REPORTED)
