"""Downloads from Cloud Storage: bytes served by object and account, and their duration on a machine's network."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from localcloud.json_values import JsonObject
from localcloud.world.timeline import Timeline

BYTES_PER_S: Final = 185e6
"""Combined bandwidth of one account's reads (public log: 58 GiB copied to one machine in 337 s)."""
SIMULATED_BYTES: Final = "localcloud-simulated-bytes"
"""Custom metadata of an object: the size that a placeholder represents. Downloads are counted and timed as if it had that size."""


@dataclass(slots=True)
class Downloads:
    """Counts bytes and delays an account's reads accordingly. Reads of one account share its network."""

    timeline: Timeline
    counts: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    _busy_until_s: dict[str, float] = field(default_factory=dict[str, float])

    async def serve(self, name: str, account: str, size: int, *, instant: bool) -> None:
        """Count a read of `size` bytes of an object by an account, and wait as long as its network takes."""
        self.counts[name, account] += size
        if instant:
            return
        now_s = asyncio.get_running_loop().time()
        begin_s = max(now_s, self._busy_until_s.get(account, 0.0))
        self._busy_until_s[account] = begin_s + self.timeline.clock.real_s(size / BYTES_PER_S)
        await asyncio.sleep(self._busy_until_s[account] - now_s)

    def rows(self) -> list[JsonObject]:
        """Return the counts: object, account, bytes, and the simulated seconds if read one after the other."""
        return [
            {"object": name, "account": account, "bytes": size, "seconds": size / BYTES_PER_S}
            for (name, account), size in sorted(self.counts.items())
        ]
