"""The formulas with their numbers, line by line, for `--explain`."""

from planning.cost.loading_modes import loading_modes
from planning.cost.subject import Subject
from planning.data import overheads
from planning.memory.budget import captured_graphs
from planning.memory.kv_cache import blocks_per_request, layout_of
from planning.model.spec import active_params, text_params
from planning.question.releases import tokens_in_flight
from planning.speed.startup import xla_programs
from planning.units import KIB, to_gib

_BILLION = 1e9


def explain(subject: Subject) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return sections of lines: model, memory, KV cache, start-up, and the weights modes of Cloud Run."""
    return (
        ("Model", _model(subject)),
        ("Memory of one device", _memory(subject)),
        ("KV cache", _kv(subject)),
        ("Start-up", _startup(subject)),
        *((("Weights modes", _ways(subject)),) if loading_modes(subject) else ()),
    )


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _model(subject: Subject) -> tuple[str, ...]:
    resolved = subject.resolved
    groups = ", ".join(
        f"{g.count} x {'window ' + format(g.attention.window, ',') if g.attention.window else 'full'} "
        f"({g.attention.kv_heads} KV heads of {g.attention.head_dim}{'' if g.owns_kv else ', borrowed KV'})"
        for g in resolved.spec.groups
    )
    return (
        f"{text_params(resolved.spec) / _BILLION:.2f} billion parameters in the language model, {active_params(resolved.spec) / _BILLION:.2f} used per token",
        f"{resolved.spec.layers} layers: {groups}",
        f"{resolved.scheme.name}: {resolved.scheme.linear_bytes:.4g} bytes per parameter of linear layers and experts, 2 for all others",
    )


def _memory(subject: Subject) -> tuple[str, ...]:
    memory, resolved, weights = subject.memory, subject.resolved, subject.weights
    devices = _counted(resolved.tp, "device") + (f" of each of {resolved.dp} replicas" if resolved.dp > 1 else "")
    lines = [
        f"checkpoint                     {memory.checkpoint_gib:9.3f} GiB",
        f"budget     {memory.usable_gib:.2f} x {resolved.utilization:g} = {memory.budget_gib:9.3f} GiB",
        (
            f"{f'- weights on one of {devices}':<31}{to_gib(weights.device):9.3f} GiB, "
            f"including {to_gib(weights.tables):.3f} for position tables and buffers"
        ),
    ]
    if memory.offloaded_gib:
        lines.append(f"+ offloaded to the host        {memory.offloaded_gib:9.3f} GiB")
    if not resolved.is_tpu:
        lines += [
            (
                f"- activations                  {memory.activations_gib:9.3f} GiB, at {resolved.max_num_batched_tokens:,} tokens and "
                f"{resolved.max_num_seqs:,} sequences per step"
            ),
            f"- CUDA graphs                  {memory.graphs_gib:9.3f} GiB, {captured_graphs(resolved)} graphs",
        ]
    lines.append(f"= KV cache                     {memory.kv_gib:9.3f} GiB")
    if resolved.is_tpu:
        lines.append(
            f"outside the budget: {memory.headroom_gib:.2f} GiB for compiled programs; minimum {memory.outside_needs_gib:.2f} GiB, "
            f"recommended {memory.outside_enough_gib:.2f} GiB"
        )
    else:
        lines.append(
            f"peak while loading: {memory.load_peak_device_gib:.2f} of {memory.usable_gib:.2f} GiB, {memory.load_peak_host_gib:.2f} GiB of host memory"
        )
    return tuple(lines)


def _kv(subject: Subject) -> tuple[str, ...]:
    resolved, memory, layout = subject.resolved, subject.memory, layout_of(subject.resolved)
    lines = [
        f"block = {layout.block_bytes / KIB:,.0f} KiB; {memory.kv_gib:.3f} GiB / block = {memory.kv_blocks:,} blocks"
    ]
    for kind in layout.kinds:
        if kind.window is None:
            lines.append(
                f"full length: {_counted(kind.groups, 'group')} x ceil({resolved.max_model_len:,} / {kind.block_size}) blocks per request"
            )
        else:
            held = min(kind.window - 1 + tokens_in_flight(resolved), resolved.max_model_len)
            lines.append(
                f"window {kind.window:,}: {_counted(kind.groups, 'group')} x (ceil({held:,} / {kind.block_size}) + 1) blocks, "
                f"min({kind.window:,} - 1 + {tokens_in_flight(resolved):,}, {resolved.max_model_len:,}) tokens held"
            )
    per_request = blocks_per_request(
        layout, max_model_len=resolved.max_model_len, tokens_in_flight=tokens_in_flight(resolved)
    )
    lines += [
        (
            f"{memory.kv_blocks:,} / {per_request:,} blocks per request = {memory.max_concurrency:.2f} requests of "
            f"{resolved.max_model_len:,} = {memory.kv_tokens:,} tokens"
        ),
        f"one more token of a long request: {memory.kv_bytes_per_token / KIB:g} KiB per device; longest request that fits: {memory.largest_max_model_len:,}",
    ]
    return tuple(lines)


def _startup(subject: Subject) -> tuple[str, ...]:
    resolved, startup = subject.resolved, subject.startup
    work = (
        f"{xla_programs(resolved)} XLA programs of {resolved.spec.layers} layers"
        if resolved.is_tpu
        else f"{resolved.spec.layers} layers, {captured_graphs(resolved)} graphs"
    )
    lines = [
        f"image and process   {startup.pull_s:8.1f} s",
        f"weights, {resolved.weights_mode:<10} {startup.load_s:8.1f} s for {subject.memory.checkpoint_gib:.2f} GiB",
        f"compile and warm-up {startup.compile_s:8.1f} s ({work}), between {startup.compile_low_s:.0f} and {startup.compile_high_s:.0f} s",
        f"total               {startup.total_s:8.1f} s; with a margin of {overheads.PROBE_MARGIN:g}, a probe budget of {startup.probe_budget_s} s",
    ]
    if (probe := startup.probe) is not None:
        attempts = f"every {probe.period_s} s, {probe.failure_threshold} times"
        waits = f"it waits {probe.initial_delay_s} s, then probes {attempts}"
        lines.append(f"seen by the probe   {startup.ready_s:8.1f} s; {waits}")
    for name, seconds in (
        ("crash, or flags that keep the programs", startup.restart_s),
        ("flags that require recompilation", startup.recompile_s),
        ("reboot of the machine", startup.reboot_s),
        ("node replacement, from the next boot", startup.node_replacement_s),
    ):
        if seconds is not None:
            lines.append(f"{name:<42} {seconds:8.1f} s")
    return tuple(lines)


def _ways(subject: Subject) -> tuple[str, ...]:
    head = "                            load    start  2nd, with graphs   host memory   container       $/h"
    rows = [head]
    for one in loading_modes(subject):
        vpc = "Direct VPC" if one.direct_vpc else ""
        container = "does not fit" if one.memory_gib is None else f"{one.memory_gib:g} GiB, {one.vcpu:g} vCPU"
        price = "" if one.usd_per_hour is None else f"{one.usd_per_hour:.2f}"
        rows.append(
            f"{'*' if one.is_chosen else ' '} {one.mode:<13} {vpc:<10} {one.load_s:5.0f} s {one.start_s:6.0f} s {one.cached_start_s:11.0f} s "
            f"{one.host_gib:13.1f} GiB   {container:<15} {price:>6}"
        )
    return tuple(rows)
