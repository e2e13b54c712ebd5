"""Gemma 4 behind vLLM on Google Cloud: settings -> plan -> stack -> outputs."""

import signal

import pulumi

from stacks.program import UserError, run

# SIGINT ends this process at once, as SIGTERM does. A KeyboardInterrupt would end only the event loop in which the SDK answers the engine's hooks: the runner
# then waits for the registrations under way, the engine for an answer to the hook of one of them, and `pulumi up` never ends.
signal.signal(signal.SIGINT, signal.SIG_DFL)

try:
    run()
except UserError as error:
    # A mistake of the user's is a sentence, not a traceback.
    raise pulumi.RunError(str(error)) from None
