"""Downloads from Cloud Storage: their duration on a machine's network."""

import asyncio
from dataclasses import dataclass, field
from typing import Final

from localcloud.world.timeline import Timeline

BYTES_PER_S: Final = 185e6
"""Combined bandwidth of one account's reads (public log: 58 GiB copied to one machine in 337 s)."""
SIMULATED_BYTES: Final = "localcloud-simulated-bytes"
"""Custom metadata of an object: the size that a placeholder represents. Downloads take as long as if it had that size."""


@dataclass(slots=True)
class Downloads:
    """Delays an account's reads by their bytes. Reads of one account share its network."""

    timeline: Timeline
    _busy_until_s: dict[str, float] = field(default_factory=dict[str, float])

    async def serve(self, account: str, size: int) -> None:
        """Wait as long as the account's network takes to read `size` bytes."""
        now_s = asyncio.get_running_loop().time()
        begin_s = max(now_s, self._busy_until_s.get(account, 0.0))
        self._busy_until_s[account] = begin_s + self.timeline.clock.real_s(size / BYTES_PER_S)
        await asyncio.sleep(self._busy_until_s[account] - now_s)
