"""The formulas with their numbers, line by line, for `--explain`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planning import overheads
from planning.kv_cache import blocks_per_request, layout_of
from planning.memory import captured_graphs
from planning.model import active_params, text_params
from planning.startup import xla_programs
from planning.throughput import step_of
from planning.units import KIB, to_gib
from planning.weights import weights_of

if TYPE_CHECKING:
    from planning.subject import Subject

_BILLION = 1e9


def explain(s: Subject) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Sections of lines: model, memory, KV cache, start-up, decoding, cost."""
    return (
        ("Model", _model(s)),
        ("Memory of one device", _memory(s)),
        ("KV cache", _kv(s)),
        ("Start-up", _startup(s)),
        ("Decoding", _decoding(s)),
        ("Cost", _cost(s)),
    )


def _model(s: Subject) -> tuple[str, ...]:
    r = s.r
    groups = ", ".join(
        f"{g.count} x {'window ' + format(g.attention.window, ',') if g.attention.window else 'full'} "
        f"({g.attention.kv_heads} KV heads of {g.attention.head_dim}{'' if g.owns_kv else ', borrowed KV'})"
        for g in r.spec.groups
    )
    return (
        f"{text_params(r.spec) / _BILLION:.2f} billion parameters in the language model, {active_params(r.spec) / _BILLION:.2f} used by a token",
        f"{r.spec.layers} layers: {groups}",
        f"{r.scheme.name}: {r.scheme.linear_bytes:.4g} bytes a parameter of linear layers and experts, 2 of everything else",
    )


def _memory(s: Subject) -> tuple[str, ...]:
    m, r, w = s.memory, s.r, weights_of(s.r)
    lines = [
        f"checkpoint                     {m.checkpoint_gib:9.3f} GiB",
        f"budget     {m.usable_gib:.2f} x {r.utilization:g} = {m.budget_gib:9.3f} GiB",
        f"- weights on one of {r.tp} device(s)  {to_gib(w.device):9.3f} GiB, of which {to_gib(w.tables):.3f} position tables and buffers",
    ]
    if m.offloaded_gib:
        lines.append(f"+ offloaded to the host        {m.offloaded_gib:9.3f} GiB")
    if not r.is_tpu:
        lines += [
            f"- activations                  {m.activations_gib:9.3f} GiB, at {r.max_num_batched_tokens:,} tokens and {r.max_num_seqs:,} sequences a step",
            f"- CUDA graphs                  {m.graphs_gib:9.3f} GiB, {captured_graphs(r)} x {overheads.GRAPH_GIB} + {overheads.GRAPH_POOL_GIB}",
        ]
    lines.append(f"= KV cache                     {m.kv_gib:9.3f} GiB")
    if r.is_tpu:
        lines.append(
            f"outside the budget: {m.headroom_gib:.2f} GiB for compiled programs, which want {m.activations_gib:.2f} GiB"
        )
    else:
        lines.append(
            f"highest while loading: {m.load_peak_device_gib:.2f} GiB of {m.usable_gib:.2f} GiB, {m.load_peak_host_gib:.2f} GiB of host memory"
        )
    return tuple(lines)


def _kv(s: Subject) -> tuple[str, ...]:
    r, m, layout = s.r, s.memory, layout_of(s.r)
    lines = [f"block = {layout.block_bytes / KIB:,.0f} KiB; {m.kv_gib:.3f} GiB / block = {m.kv_blocks:,} blocks"]
    for kind in layout.kinds:
        if kind.window is None:
            lines.append(
                f"full length: {kind.groups} group(s) x ceil({r.max_model_len:,} / {kind.block_size}) blocks a request"
            )
        else:
            held = min(kind.window - 1 + r.max_num_batched_tokens, r.max_model_len)
            lines.append(
                f"window {kind.window:,}: {kind.groups} group(s) x (ceil({held:,} / {kind.block_size}) + 1) blocks, "
                f"min({kind.window:,} - 1 + {r.max_num_batched_tokens:,}, {r.max_model_len:,}) tokens held"
            )
    per_request = blocks_per_request(
        layout, max_model_len=r.max_model_len, max_num_batched_tokens=r.max_num_batched_tokens
    )
    lines += [
        f"{m.kv_blocks:,} / {per_request:,} blocks a request = {m.max_concurrency:.2f} requests of {r.max_model_len:,} = {m.kv_tokens:,} tokens",
        f"one further token of a long request: {m.kv_bytes_per_token / KIB:g} KiB a device; longest request that fits: {m.largest_max_model_len:,}",
    ]
    return tuple(lines)


def _startup(s: Subject) -> tuple[str, ...]:
    r, u = s.r, s.startup
    work = (
        f"{xla_programs(r)} XLA programs of {r.spec.layers} layers"
        if r.is_tpu
        else f"{r.spec.layers} layers, {captured_graphs(r)} graphs"
    )
    return (
        f"image and process   {u.pull_s:8.1f} s",
        f"weights, {r.weights_mode:<10} {u.load_s:8.1f} s for {s.memory.checkpoint_gib:.2f} GiB",
        f"compile and warm-up {u.compile_s:8.1f} s ({work})",
        f"in all              {u.total_s:8.1f} s; with a margin of {overheads.PROBE_MARGIN:g}: a probe budget of {u.probe_budget_s} s",
    )


def _decoding(s: Subject) -> tuple[str, ...]:
    r, t, w = s.r, s.throughput, weights_of(s.r)
    step = step_of(r, w, s.memory, batch=1, tokens=256)
    efficiency = overheads.TPU_BANDWIDTH_EFFICIENCY if r.is_tpu else overheads.GPU_BANDWIDTH_EFFICIENCY
    return (
        f"a token reads {w.read_per_token / _BILLION:.2f} GB at {r.accelerator.bandwidth_gb_per_s:,.0f} GB/s x {efficiency:g}: {step.memory_s * 1e3:.2f} ms",
        f"PCIe {step.link_s * 1e3:.2f} ms, kernels and scheduling {step.fixed_s * 1e3:.2f} ms; bound by {t.bound}",
        f"one request: {t.decode_tok_per_s:.1f} tokens/s",
        f"{t.saturated_batch} requests: {t.saturated_tok_per_s:,.0f} tokens/s ({t.saturated_low_tok_per_s:,.0f} to {t.saturated_high_tok_per_s:,.0f})",
    )


def _cost(s: Subject) -> tuple[str, ...]:
    c = s.cost
    return (
        *(f"{name:<28} ${price:8.4f}/h" for name, price in c.parts_usd_per_hour),
        f"in all                       ${c.usd_per_hour:8.4f}/h; at most ${c.max_usd:,.2f} ({c.max_usd_basis})",
        f"a million output tokens: ${c.usd_per_million_tokens:.2f} one request at a time, ${c.usd_per_million_tokens_saturated:.2f} at saturation",
    )
