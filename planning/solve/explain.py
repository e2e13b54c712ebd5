"""Sums that the plan's table does not show, line by line, for `--explain`."""

from collections.abc import Iterator

from planning.cost.loading_modes import loading_modes
from planning.cost.subject import Subject
from planning.memory.budget import captured_graphs
from planning.memory.kv_cache import blocks_per_request, layout_of
from planning.question.releases import tokens_in_flight
from planning.speed.startup import xla_programs
from planning.units import KIB, to_gib


def explain(subject: Subject) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return sections of lines: memory, KV cache, start-up, and the weights modes of Cloud Run."""
    return (
        ("Memory of one device", tuple(_memory(subject))),
        ("KV cache", tuple(_kv(subject))),
        ("Start-up", tuple(_startup(subject))),
        *((("Weights modes", tuple(_ways(subject))),) if loading_modes(subject) else ()),
    )


def _memory(subject: Subject) -> Iterator[str]:
    memory, resolved, weights = subject.memory, subject.resolved, subject.weights
    yield f"checkpoint                     {memory.checkpoint_gib:9.3f} GiB"
    yield f"budget     {memory.usable_gib:.2f} x {resolved.utilization:g} = {memory.budget_gib:9.3f} GiB"
    tables = f", including {to_gib(weights.tables):.3f} for position tables and buffers"
    rows = [(f"- weights, TP {resolved.tp}", to_gib(weights.device), tables)]
    if memory.offloaded_gib:
        rows.append(("+ offloaded to the host", memory.offloaded_gib, ""))
    if not resolved.is_tpu:
        step = f", at {resolved.max_num_batched_tokens:,} tokens and {resolved.max_num_seqs:,} sequences per step"
        rows.append(("- activations", memory.activations_gib, step))
        rows.append(("- CUDA graphs", memory.graphs_gib, f", {captured_graphs(resolved)} graphs"))
    for name, gib, more in (*rows, ("= KV cache", memory.kv_gib, "")):
        yield f"{name:<31}{gib:9.3f} GiB{more}"
    if resolved.is_tpu:
        needs, enough = memory.outside_needs_gib, memory.outside_enough_gib
        yield (
            f"outside the budget: {memory.headroom_gib:.2f} GiB for compiled programs; minimum {needs:.2f} GiB, "
            f"recommended {enough:.2f} GiB"
        )
    else:
        yield (
            f"peak while loading: {memory.load_peak_device_gib:.2f} of {memory.usable_gib:.2f} GiB, "
            f"{memory.load_peak_host_gib:.2f} GiB of host memory"
        )


def _kv(subject: Subject) -> Iterator[str]:
    resolved, memory, layout = subject.resolved, subject.memory, layout_of(subject.resolved)
    length = resolved.max_model_len
    each = blocks_per_request(layout, max_model_len=length, tokens_in_flight=tokens_in_flight(resolved))
    yield f"block = {layout.block_bytes / KIB:,.0f} KiB; {memory.kv_gib:.3f} GiB / block = {memory.kv_blocks:,} blocks"
    requests = f"{memory.kv_blocks:,} / {each:,} blocks per request = {memory.max_concurrency:.2f} requests"
    yield f"{requests} of {length:,} = {memory.kv_tokens:,} tokens"
    more = f"one more token of a long request: {memory.kv_bytes_per_token / KIB:g} KiB per device"
    yield f"{more}; longest request that fits: {memory.largest_max_model_len:,}"


def _startup(subject: Subject) -> Iterator[str]:
    resolved, startup = subject.resolved, subject.startup
    programs = f"{xla_programs(resolved)} XLA programs" if resolved.is_tpu else f"{captured_graphs(resolved)} graphs"
    yield f"{startup.pull_s:.1f} + {startup.load_s:.1f} + {startup.compile_s:.1f} ({programs}) = {startup.total_s:.1f} s"
    for name, seconds in (
        ("crash, or flags that keep the programs", startup.restart_s),
        ("flags that require recompilation", startup.recompile_s),
        ("reboot of the machine", startup.reboot_s),
        ("node replacement, from the next boot", startup.node_replacement_s),
    ):
        if seconds is not None:
            yield f"{name:<42} {seconds:8.1f} s"


def _ways(subject: Subject) -> Iterator[str]:
    yield "                            load    start  2nd, with graphs   host memory   container       $/h"
    for one in loading_modes(subject):
        mode = f"{'*' if one.is_chosen else ' '} {one.mode:<13} {'Direct VPC' if one.direct_vpc else '':<10}"
        container = "does not fit" if one.memory_gib is None else f"{one.memory_gib:g} GiB, {one.vcpu:g} vCPU"
        price = "" if one.usd_per_hour is None else f"{one.usd_per_hour:.2f}"
        yield (
            f"{mode} {one.load_s:5.0f} s {one.start_s:6.0f} s {one.cached_start_s:11.0f} s "
            f"{one.host_gib:13.1f} GiB   {container:<15} {price:>6}"
        )
