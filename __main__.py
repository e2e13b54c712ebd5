"""Gemma 4 behind vLLM on Google Cloud: settings -> plan -> stack -> outputs."""

import signal

import pulumi

from stacks.program import UserError, run

# SIGINT exits this process immediately, like SIGTERM. A KeyboardInterrupt would only stop the event loop in which the SDK answers the engine's hooks. The
# runner would then wait for the pending registrations, the engine for the answer to one of their hooks, and `pulumi up` would never exit.
signal.signal(signal.SIGINT, signal.SIG_DFL)

try:
    run()
except UserError as error:
    # A user error is a sentence, not a traceback.
    raise pulumi.RunError(str(error)) from None
