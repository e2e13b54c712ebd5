"""Gemma 4 behind vLLM on Google Cloud: settings -> plan -> stack -> outputs."""

import pulumi

from stacks.program import UserError, run

try:
    run()
except UserError as error:
    # A mistake of the user's is a sentence, not a traceback.
    raise pulumi.RunError(str(error)) from None
