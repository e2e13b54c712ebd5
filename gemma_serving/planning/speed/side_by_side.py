"""Stages of a start that run side by side, and share the network and the disk of their machine."""

from collections.abc import Sequence
from typing import NamedTuple


class SharedUse(NamedTuple):
    """What a stage takes alone, in seconds, and what it then sends through each shared resource, in bytes."""

    alone_s: float
    network: float
    disk: float


def together_s(stages: Sequence[SharedUse]) -> tuple[float, str]:
    """Return the seconds until stages that begin at once are all over, and the resource that delays them, or "".

    No rate of a TPU VM's network or disk is known. The unkind assumption: neither is faster than the fastest of these stages alone has used it,
    and stages that share one get a part of that rate. If all are limited by the same resource, nothing is gained, and the result is the sum.
    """
    longest_s = max(stage.alone_s for stage in stages)
    shared_s = {
        "network": _shared_s([(stage.network, stage.alone_s) for stage in stages]),
        "disk": _shared_s([(stage.disk, stage.alone_s) for stage in stages]),
    }
    name = max(shared_s, key=lambda resource: shared_s[resource])
    return (shared_s[name], name) if shared_s[name] > longest_s else (longest_s, "")


def _shared_s(uses: Sequence[tuple[float, float]]) -> float:
    """Return the seconds of all bytes at the highest rate that one stage alone has used."""
    rate = max((size / alone_s for size, alone_s in uses if alone_s), default=0.0)
    return sum(size for size, _ in uses) / rate if rate else 0.0
