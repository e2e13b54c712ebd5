"""Time limits of calls to the server."""

from typing import Final

ANSWER_WITHIN_S: Final = 45.0
"""Time after which a longer call returns a handle. The TypeScript SDK limits a call to 60 s by default."""
LONGEST_WAIT_S: Final = 600.0
"""Maximum duration of one call of `wait`."""
