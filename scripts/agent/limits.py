"""How long a call of the server may take."""

from typing import Final

ANSWER_WITHIN_S: Final = 45.0
"""Until a call whose work takes longer is answered with a handle: the SDK for TypeScript gives a call 60 s by default."""
LONGEST_WAIT_S: Final = 600.0
"""Of one call of `wait`."""
