"""Consistency checks of a point's metrics, with each other and with the server's metrics.

Three checks: Little's law (requests in flight = rate x time in the system; J. D. C. Little, Operations Research 9, 1961), whose two
sides come from different readings of the client; the server's histograms and counters in /metrics, measured by another clock; and the
limits of the accelerator. A result above those counts cached prompts, names another model, or estimates tokens by characters.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

from loadtest.records import RequestRecord
from loadtest.settings import Roofline
from loadtest.steady import SteadyWindow, mean_in_flight
from loadtest.traffic.points import Point

MOST_DIFFERENCE: Final = 0.10
"""Relative difference allowed between two values of the same quantity."""
TTFT_NOTE_DIFFERENCE: Final = 0.05
"""Relative difference of the time to first token from the server's above which a point gets a note."""
LITTLE_FLOOR_S: Final = 0.02
"""Time per request by which Little's law may be off regardless of its share: the end of the stream, and the next request of a slot."""
SERVER_FLOOR_S: Final = 0.02
"""Allowed difference of a response's times, because events wait in sockets and in the client's event loop."""
NETWORK_FLOOR_S: Final = 0.05
"""Allowed time between the client and the engine, in addition to the round trip."""
TOKENS_DIFFERENCE: Final = 0.01
MOST_OF_PEAK: Final = 0.80
"""A result above this share of the peak FLOPS is impossible. The best published figure for serving is 76 %, for the input tokens of
very large batches (Pope et al., Efficiently Scaling Transformer Inference, 2022)."""
LENGTH_DIFFERENCE: Final = 0.05
"""Allowed difference of a response's length from the requested one, and allowed share of responses beyond it."""
EVENTS_BESIDE: Final = 2
"""Events of a response without a token: the role and the finish reason."""
SEVERAL_TOKENS: Final = 1.5
"""Tokens per event from which a point has a note, if no metrics of the server confirm its usage."""
COUNT_DIFFERENCE: Final = 0.02
"""Allowed difference in request counts. Server and client must count the same requests for their means to be comparable."""


def little_reasons(
    records: Sequence[RequestRecord], figures: Mapping[str, Any], point: Point, window: SteadyWindow | None
) -> list[str]:
    """Return contradictions of the metrics with Little's law and with the load."""
    if not figures["completed"] or figures["duration"] <= 0:
        return []
    counted = sum(record.end_s - record.sent_s for record in records) / figures["duration"]
    claimed = figures["request_throughput"] * figures["mean_e2el_ms"] / 1000
    reasons: list[str] = []
    if point.concurrency is not None and len(records) < point.concurrency:
        reasons.append(
            f"only {len(records)} requests were sent, fewer than the {point.concurrency} users of this load; raise --requests or --duration"
        )
    missed_s = abs(counted - claimed) * figures["duration"] / figures["completed"]
    if missed_s > LITTLE_FLOOR_S and abs(counted - claimed) > MOST_DIFFERENCE * max(counted, claimed):
        reasons.append(
            _late_end(records, missed_s)
            or f"Little's law does not hold: {counted:.2f} requests were in flight on average, but request rate x E2E is {claimed:.2f}"
            f" (more than {MOST_DIFFERENCE:.0%} apart)"
        )
    if point.concurrency is not None and window is not None:
        held = mean_in_flight(records, window)
        inside = max(1, sum(window.holds(record.end_s) for record in records))
        idle_s = (point.concurrency - held) * window.length_s / inside
        if idle_s > LITTLE_FLOOR_S and held < (1 - MOST_DIFFERENCE) * point.concurrency:
            reasons.append(
                f"the load was not maintained: {held:.2f} requests were in flight on average in the steady window, not {point.concurrency}"
                f" (more than {MOST_DIFFERENCE:.0%} apart)"
            )
    return reasons


def _late_end(records: Sequence[RequestRecord], missed_s: float) -> str | None:
    """Return why the end of the responses explains `missed_s` seconds per request, or None if it does not."""
    ended = [record for record in records if record.error is None and record.closing_s]
    if not ended:
        return None
    closing = [max(record.closing_s, record.times_s[-1]) for record in ended]
    late_s = statistics.fmean(at_s - record.times_s[-1] for at_s, record in zip(closing, ended, strict=True))
    held_s = statistics.fmean(record.end_s - at_s for at_s, record in zip(closing, ended, strict=True))
    if late_s + held_s < (1 - MOST_DIFFERENCE) * missed_s:
        return None
    what = (
        f"usage or [DONE] arrives {late_s * 1000:.0f} ms after the last token"
        if late_s > held_s
        else f"the response stays open {held_s * 1000:.0f} ms after its last event"
    )
    return f"{what}, so fewer requests were generated concurrently than were open; check the server or proxy that ends the stream late"


def answer_findings(
    records: Sequence[RequestRecord], server: Mapping[str, Any], *, ignore_eos: bool
) -> tuple[list[str], list[str]]:
    """Return why a point is invalid by the stated lengths, and notes about lengths that nothing confirms.

    `ignore_eos`: whether the responses must have exactly the requested length. Otherwise a response may be shorter.
    """
    done = [record for record in records if record.error is None]
    reasons = _length_reasons(done, ignore_eos=ignore_eos)
    tokens = sum(record.output_tokens for record in done)
    events = sum(len(record.times_s) for record in done)
    counted = server.get("generation_tokens")
    if not tokens or (counted is not None and abs(tokens - counted) <= max(1.0, TOKENS_DIFFERENCE * counted)):
        return reasons, []
    if events - EVENTS_BESIDE * len(done) > (1 + LENGTH_DIFFERENCE) * tokens:
        reasons.append(
            f"the responses have {events} events, but their usage states {tokens} tokens, so the usage is wrong, or a proxy splits events"
        )
    elif tokens > SEVERAL_TOKENS * events:
        note = (
            f"usage states {tokens / events:.1f} tokens per event, which no metrics of the server confirm:"
            " the server sends several tokens per event, or its usage is wrong"
        )
        return reasons, [note]
    return reasons, []


def _length_reasons(done: Sequence[RequestRecord], *, ignore_eos: bool) -> list[str]:
    asked = [record for record in done if record.asked_tokens]
    longer = sum(r.output_tokens > (1 + LENGTH_DIFFERENCE) * r.asked_tokens for r in asked)
    shorter = sum(r.output_tokens < (1 - LENGTH_DIFFERENCE) * r.asked_tokens for r in asked) if ignore_eos else 0
    if longer + shorter <= LENGTH_DIFFERENCE * len(asked):
        return []
    reason = (
        f"{longer + shorter} of {len(asked)} responses differ by more than {LENGTH_DIFFERENCE:.0%} from the requested length by their usage"
        f" ({longer} longer, {shorter} shorter): the server ignores max_tokens or ignore_eos, or its usage is wrong"
    )
    return [reason]


def server_reasons(
    records: Sequence[RequestRecord], figures: Mapping[str, Any], server: Mapping[str, Any], lag_mean_ms: float = 0.0
) -> tuple[list[str], list[str]]:
    """Return contradictions with the server's metrics, and notes about metrics that could not be compared.

    `lag_mean_ms`: mean lag of the client's event loop, which tells whether the client or the network adds a difference.
    """
    begun = [record for record in records if record.times_s]
    theirs = server.get("requests_begun")
    if theirs is None or not begun:
        return [], []
    if abs(theirs - len(begun)) > max(1.0, COUNT_DIFFERENCE * len(begun)):
        note = (
            f"the server's metrics count {theirs:.0f} requests, but this point has {len(begun)} (other clients, or several replicas);"
            " its metrics were not compared with the server's"
        )
        return [], [note]
    reasons = [_ttft_reason(begun, server, lag_mean_ms), _tpot_reason(begun, server)]
    tokens, counted = figures["total_output_tokens"], server["generation_tokens"]
    if counted is not None and not figures["failed"] and abs(tokens - counted) > max(1.0, TOKENS_DIFFERENCE * counted):
        reasons.append(
            f"the responses state {tokens} output tokens, but the server's counter {counted:.0f} (more than {TOKENS_DIFFERENCE:.0%} apart)"
        )
    notes = [] if reasons[0] else _ttft_notes(begun, server)
    return [reason for reason in reasons if reason is not None], notes


def impossible_reason(figures: Mapping[str, Any], roofline: Roofline | None, *, cached_tokens: float) -> str | None:
    """Return one sentence if a point's metrics are above the limits of the accelerator; None otherwise, or if the limits are unknown."""
    duration_s = figures["duration"]
    if roofline is None or not duration_s or not figures["completed"]:
        return None
    computed = max(0.0, figures["total_input_tokens"] - cached_tokens)
    tokens_out = figures["total_output_tokens"]
    # A token attends to half of the mean request on average.
    earlier = (figures["total_input_tokens"] + tokens_out) / figures["completed"] / 2
    attention_s = sum(min(earlier, window or earlier) / pairs_per_s for pairs_per_s, window in roofline.attention)
    busy_s = (
        computed / roofline.prompt_tok_per_s
        + tokens_out / roofline.output_tok_per_s
        + (computed + tokens_out) * attention_s
    )
    if busy_s > MOST_OF_PEAK * duration_s:
        return (
            f"{figures['total_token_throughput']:.0f} tok/s is impossible on {roofline.accelerator}: {roofline.model} needs"
            f" {busy_s / duration_s:.0%} of its peak FLOPS for that, but no server reaches {MOST_OF_PEAK:.0%}; check whether cached prompts were counted"
        )
    # Without speculative decoding a request gets one token per step, and each step reads the active weights at least once.
    fastest = figures["max_concurrent_requests"] * roofline.steps_per_s
    if figures["output_throughput"] > fastest:
        return (
            f"{figures['output_throughput']:.0f} output tok/s is impossible on {roofline.accelerator} without speculative decoding: reading the"
            f" weights of {roofline.model} once per step allows {fastest:.0f}"
        )
    return None


def _ttft_notes(begun: Sequence[RequestRecord], server: Mapping[str, Any]) -> list[str]:
    """Return a note if the reported time to first token differs from the server's, but by less than a network may add."""
    if not server["mean_ttft_ms"]:
        return []
    ours_ms = statistics.fmean(record.first_s - record.sent_s for record in begun) * 1000
    theirs_ms = server["mean_ttft_ms"]
    if abs(ours_ms / theirs_ms - 1) <= TTFT_NOTE_DIFFERENCE:
        return []
    both = f"{ours_ms:.1f} ms here, {theirs_ms:.1f} ms in the server's histogram"
    return [f"the mean time to first token is uncertain by {abs(ours_ms - theirs_ms):.1f} ms: {both}"]


def _ttft_reason(begun: Sequence[RequestRecord], server: Mapping[str, Any], lag_mean_ms: float) -> str | None:
    if server["mean_ttft_ms"] is None:
        return None
    # The engine does not know intended send times or tokens without text, so count from the send to the first event.
    ours_s = statistics.fmean(record.times_s[0] - record.sent_s for record in begun)
    theirs_s = server["mean_ttft_ms"] / 1000
    network_s = NETWORK_FLOOR_S + (server["round_trip_ms"] or 0.0) / 1000
    both = f"{ours_s * 1000:.1f} ms here, {theirs_s * 1000:.1f} ms in the server's histogram (more than {MOST_DIFFERENCE:.0%} apart)"
    if ours_s < theirs_s * (1 - MOST_DIFFERENCE) - SERVER_FLOOR_S:
        return f"the mean time to first token is shorter than the server's: {both}"
    if ours_s > theirs_s * (1 + MOST_DIFFERENCE) + network_s:
        is_client = lag_mean_ms / 1000 > (ours_s - theirs_s) / 2
        who = "the client adds" if is_client else "the network or a proxy adds"
        return (
            f"the mean time to first token is longer than the server's: {both}; {who} the difference"
            f" (the client's event loop was late by {lag_mean_ms:.3g} ms on average)"
        )
    return None


def _tpot_reason(begun: Sequence[RequestRecord], server: Mapping[str, Any]) -> str | None:
    steps = sum(max(0, record.output_tokens - 1) for record in begun)
    decode_s = server["decode_s"]
    if decode_s is None or steps == 0 or any(record.error is not None for record in begun):
        return None
    ours_s = sum(record.times_s[-1] - record.times_s[0] for record in begun)
    if abs(ours_s - decode_s) <= MOST_DIFFERENCE * decode_s + SERVER_FLOOR_S * len(begun):
        return None
    return (
        f"the mean time per output token is {ours_s / steps * 1000:.2f} ms here, but {decode_s / steps * 1000:.2f} ms in the server's"
        f" histogram (more than {MOST_DIFFERENCE:.0%} apart)"
    )
