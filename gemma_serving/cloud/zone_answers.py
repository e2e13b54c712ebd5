"""Causes in the provider's table of zones that granted no capacity. The provider reads no quota, so a request that waited is `unknown` there."""

import re
from collections.abc import Callable
from typing import Final

from gcp_tpu_provider import refusals
from gemma_serving.cloud.caller import GoogleCaller
from gemma_serving.cloud.shortage import read_quotas, shortage
from gemma_serving.contracts.capacity_states import IN_QUEUE
from gemma_serving.planning.settings.tpu import TpuSettings

_ROW: Final = re.compile(
    r"(?P<start>  (?P<zone>[a-z]+-[a-z]+\d+-[a-z])(?: (?P<form>[a-z-]+))? +)(?P<kind>\w[\w ]+): (?P<answer>.*)"
)
"""A line of the table (`gcp_tpu_provider.capacity`). It has the form if the order has several."""
_WAITED: Final = re.compile(rf"({'|'.join(sorted(IN_QUEUE))}) for ")


def with_causes(table: str, tpu: TpuSettings, connect: Callable[[], GoogleCaller]) -> str:
    """Return a table with `quota` or `stock`, and what was read about the quota, for each request that waited or expired. Other text is unchanged.

    `connect` is called if there is such a request.
    """
    lines = table.splitlines()
    rows = {at: row for at, line in enumerate(lines) if (row := _ROW.fullmatch(line))}
    waits = {at: row for at, row in rows.items() if row["kind"] == refusals.UNKNOWN and any(_of_queue(row["answer"]))}
    if not waits:
        return table
    caller = connect()
    requests = [(row["zone"], row["form"] or tpu.forms[0].model) for row in waits.values()]
    reads = read_quotas(caller, tpu.accelerator_type, requests, instances=tpu.api == "compute-engine")
    kinds = {at: row["kind"] for at, row in rows.items()}
    for (at, row), found in zip(waits.items(), reads, strict=True):
        kinds[at] = shortage(*_of_queue(row["answer"]), found, row["zone"]).cause
        known = "; ".join(read.sentence for read in found) or "no quota of this request is known"
        lines[at] = f"{row['start']}{kinds[at]}: {row['answer']} {known[0].upper()}{known[1:]}."
    advice = {why: f"{why}: {refusals.Refusal(meaning=why).advice(project=caller.project)}." for why in kinds.values()}
    former = [at for at, line in enumerate(lines) if line.partition(": ")[0] in {row["kind"] for row in rows.values()}]
    at = former[0] if former else len(lines)
    later = [line for number, line in enumerate(lines[at:], start=at) if number not in former]
    return "\n".join([*lines[:at], *(advice[why] for why in refusals.meanings() if why in advice), *later])


def _of_queue(answer: str) -> tuple[str, str]:
    """Return the state and Google's words of a request that waited or expired in its queue; both are empty for another one."""
    if refusals.has_expired(answer):
        return "FAILED", answer
    waited = _WAITED.match(answer)
    return (waited[1] if waited else "", "")
