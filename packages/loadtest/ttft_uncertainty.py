"""Uncertainty of a point's time to first token, and why the client or a proxy was the limit instead of the server.

A response's event is read late if the client's event loop is late, or if a proxy holds events back and sends several together. Both add to
the time to first token. The server's own histogram (/metrics) is independent of both and is shown next to the client's figure.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from loadtest.records import RequestRecord

MOST_LAG_OF_MEAN: Final = 0.05
"""A point is invalid if the event loop's mean lag exceeds this share of the mean time to first token ..."""
MOST_LAG_OF_P99: Final = 0.25
"""... or if the 99th percentile of its lag exceeds this share of the 99th percentile. The largest lag and the slowest response rarely
meet, so the error of the percentile is smaller than its lag."""
MOST_CPU_SHARE: Final = 0.95
"""A point is invalid if a client process was busy for this share of the time."""
BUSY_CPU_SHARE: Final = 0.5
"""CPU share of a late client process from which more processes help."""
BUNCHED_S: Final = 0.0001
"""Events of a response that arrive within this time of the event before them arrive in one bunch. No model generates a token so fast."""
NOTED_BUNCHES: Final = 0.10
MOST_BUNCHES: Final = 0.50
"""Shares of events in bunches from which a point has a note, and above which it is invalid."""


def uncertainty_figures(
    records: Sequence[RequestRecord],
    figures: Mapping[str, Any],
    client: Mapping[str, Any],
    server: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the size of each error of the time to first token, in ms or as a share, and the server's own figure; None if unknown.

    `first_event_mean_ms` is the client's figure with the server's definition: from the send to the first event of any kind.
    """
    begun = [record for record in records if record.times_s]
    done = [record for record in records if record.error is None]
    first_ms = statistics.fmean(r.times_s[0] - r.sent_s for r in begun) * 1000 if begun else None
    events = sum(len(record.times_s) for record in done)
    return {
        "lag_mean_ms": client["lag_mean_ms"],
        "lag_p99_ms": client["lag_p99_ms"],
        "lag_of_mean_ttft": _ratio(client["lag_mean_ms"], figures["mean_ttft_ms"]),
        "lag_of_p99_ttft": _ratio(client["lag_p99_ms"], _tail_ms(figures)),
        "first_event_mean_ms": None if first_ms is None else round(first_ms, 4),
        "server_mean_ms": server["mean_ttft_ms"],
        "bunched_share": bunched_share(done),
        "tokens_per_event": _ratio(sum(record.output_tokens for record in done), events),
    }


def _ratio(value: float | None, whole: float | None) -> float | None:
    return None if value is None or not whole else round(value / whole, 4)


def _tail_ms(figures: Mapping[str, Any]) -> float | None:
    """Return the 99th percentile of the time to first token, or the mean for too few requests."""
    tail_ms: float | None = figures.get("p99_ttft_ms")
    return figures.get("mean_ttft_ms") if tail_ms is None else tail_ms


def bunched_share(records: Sequence[RequestRecord]) -> float | None:
    """Return the share of events that arrive together with the event before them, or None without such pairs.

    The last event of a response does not count, because servers send the finish reason together with the last token.
    """
    gaps_s = [later - earlier for record in records for earlier, later in pairwise(record.times_s[:-1])]
    return round(sum(gap < BUNCHED_S for gap in gaps_s) / len(gaps_s), 4) if gaps_s else None


def bunch_findings(records: Sequence[RequestRecord], client: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the reason for which a point is invalid by events in bunches, and the note if they do not."""
    done = [record for record in records if record.error is None]
    share = bunched_share(done)
    if share is None or share <= NOTED_BUNCHES:
        return [], []
    bunches = sum(later - earlier >= BUNCHED_S for r in done for earlier, later in pairwise(r.times_s[:-1]))
    between_ms = math.fsum(r.times_s[-1] - r.times_s[0] for r in done) * 1000 / max(1, bunches)
    cause = (
        f"the client was late by {client['lag_mean_ms']:.1f} ms on average; {limit_of(client)}"
        if client["lag_mean_ms"] > between_ms / 2
        else "a proxy buffers (nginx: turn proxy_buffering off), or the machine of the server is busy"
    )
    text = f"events come in bunches: {cause}. {share:.0%} of the events arrived together with the one before"
    if share <= MOST_BUNCHES:
        return [], [text]
    return [f"{text} (at most {MOST_BUNCHES:.0%}), so times to first token and between tokens are not the server's"], []


def limit_of(client: Mapping[str, Any]) -> str:
    """Return why the client was late, with the fix. Only a process that used its core is helped by more processes."""
    busy = client["cpu_share_max"]
    if busy >= BUSY_CPU_SHARE:
        return f"a client process ran for {busy:.0%} of the time; use a faster machine, or more --workers"
    return (
        f"a client process ran for only {busy:.0%} of the time, so this machine or its hypervisor is busy with other work;"
        " use an idler machine, or one with dedicated cores"
    )


def invalid_reasons(client: Mapping[str, Any], figures: Mapping[str, Any]) -> list[str]:
    """Return why the client was the limit, or an empty list."""
    reasons: list[str] = []
    mean_ms, tail_ms = figures.get("mean_ttft_ms"), _tail_ms(figures)
    late = "the client's event loop was late by"
    for name, what, at, ttft_ms, most in (
        ("lag_mean_ms", late, "on average", mean_ms, MOST_LAG_OF_MEAN),
        ("lag_p99_ms", late, "at the 99th percentile", tail_ms, MOST_LAG_OF_P99),
        ("send_late_p99_ms", "requests were sent late by", "at the 99th percentile", tail_ms, MOST_LAG_OF_P99),
    ):
        late_ms = client[name]
        if ttft_ms is not None and late_ms > most * ttft_ms:
            reasons.append(
                f"{what} {late_ms:.3g} ms {at}, more than {most:.0%} of the time to first token ({ttft_ms:.3g} ms); {limit_of(client)}"
            )
    if client["cpu_share_max"] > MOST_CPU_SHARE:
        reasons.append(f"a client process was busy for {client['cpu_share_max']:.0%} of the time; use more --workers")
    if client["shed"]:
        reasons.append(
            f"{client['shed']} requests were not sent because too many were in flight; lower --request-rate or raise --max-in-flight"
        )
    return reasons
