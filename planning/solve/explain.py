"""The formulas with their numbers, line by line, for `--explain`."""

from planning.cost.loading_modes import loading_modes
from planning.cost.running_costs import running_costs
from planning.cost.subject import Subject
from planning.data import overheads
from planning.memory.budget import captured_graphs
from planning.memory.kv_cache import blocks_per_request, layout_of
from planning.model.spec import active_params, text_params
from planning.question.releases import tokens_in_flight
from planning.rules.platforms.replicas import each_of
from planning.speed import bands
from planning.speed.serving import server_of
from planning.speed.startup import xla_programs
from planning.speed.steps import step_of
from planning.units import KIB, to_gib

_BILLION = 1e9


def explain(subject: Subject) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return sections of lines: model, memory, KV cache, start-up, decoding, the workload if set, cost."""
    return (
        ("Model", _model(subject)),
        ("Memory of one device", _memory(subject)),
        ("KV cache", _kv(subject)),
        ("Start-up", _startup(subject)),
        *((("Weights modes", _ways(subject)),) if loading_modes(subject) else ()),
        ("Decoding", _decoding(subject)),
        *((("Workload", _workload(subject)),) if subject.workload is not None else ()),
        ("Cost", _cost(subject)),
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
            f"- CUDA graphs                  {memory.graphs_gib:9.3f} GiB, {_graphs(subject)}",
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


def _graphs(subject: Subject) -> str:
    """Return how the memory of the CUDA graphs is computed, or why none is subtracted."""
    resolved, graphs = subject.resolved, captured_graphs(subject.resolved)
    if graphs and not subject.memory.graphs_gib:
        return f"because this release of vLLM captures its {graphs} graphs outside the budget"
    if resolved.accelerator.is_rocm:
        return f"{graphs} x {resolved.spec.layers} layers x {overheads.ROCM_GRAPH_LAYER_GIB}"
    return f"{graphs} x {overheads.GRAPH_GIB} + {overheads.GRAPH_POOL_GIB}"


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
    running = running_costs(subject)
    even = running.even_requests_per_day
    rows.append(
        f"one minimum instance: ${running.always_on_usd_per_month:,.0f} per month, no start of {running.cold_start_s:.0f} s; cheaper from "
        f"{even or 0:.0f} single requests per day, or from {running.even_hours_per_day:.1f} h of continuous traffic per day"
    )
    return tuple(rows)


def _decoding(subject: Subject) -> tuple[str, ...]:
    resolved, rates, weights = subject.resolved, subject.throughput, subject.weights
    step = step_of(resolved, weights, subject.memory, batch=1, tokens=256)
    efficiency = overheads.TPU_BANDWIDTH_EFFICIENCY if resolved.is_tpu else overheads.GPU_BANDWIDTH_EFFICIENCY
    return (
        (
            f"a token reads {weights.read_per_token / _BILLION:.2f} GB at {resolved.accelerator.bandwidth_gb_per_s:,.0f} GB/s x {efficiency:g}: "
            f"{step.memory_s * 1e3:.2f} ms"
        ),
        f"PCIe {step.link_s * 1e3:.2f} ms, kernels and scheduling {step.fixed_s * 1e3:.2f} ms; bound by {rates.bound}",
        f"one request: {rates.decode_tok_per_s:.1f} tokens/s",
        (
            f"{rates.saturated_batch} requests: {rates.saturated_tok_per_s:,.0f} tokens/s "
            f"({rates.saturated_low_tok_per_s:,.0f} to {rates.saturated_high_tok_per_s:,.0f})"
        ),
    )


def _workload(subject: Subject) -> tuple[str, ...]:
    answer, workload = subject.workload, subject.resolved.deployment.workload
    if answer is None or workload is None:
        return ()
    server = server_of(subject.resolved, subject.memory, workload)
    prompt, running = server.prompt, max(answer.running_requests.typical / subject.resolved.dp, 1.0)
    step, alone = server.step(running), server.alone
    kind = bands.kind_of(subject.resolved, prompt)
    rate = bands.BANDS["rate", kind]
    points = f"{rate.points} measured points" if rate.points else "assumed"
    return (
        f"a prompt has {prompt.tokens:,} tokens, {prompt.cached:,} of them in the prefix cache; it fills {prompt.steps:.2f} steps",
        (
            f"prefill: {prompt.compute_s * 1e3:.2f} ms of arithmetic and {prompt.encoder_s * 1e3:.2f} ms of encoders; a step hides "
            f"{max(alone.memory_s - alone.compute_s, 0.0) * 1e3:.2f} ms of it behind what it reads"
        ),
        (
            f"a response takes {server.steps:,.0f} steps ({server.tokens_per_step:.2f} tokens each); a step with {running:,.1f} requests of "
            f"{server.held_tokens:,.0f} tokens takes {step.total_s * 1e3:.2f} ms"
        ),
        (
            f"slots{each_of(subject.resolved)}: {subject.resolved.max_num_seqs:,} by max-num-seqs, {server.kv_slots:,} by the KV cache; "
            f"{answer.queued_requests.typical:,.1f} requests wait {answer.queue_s.typical:,.2f} s"
        ),
        (
            f"{answer.requests_per_s.typical:.3g} requests/s, {answer.output_tok_per_s.typical:,.0f} tokens/s, bound by {answer.bound}; saturated at "
            f"{answer.most_requests_per_s:.3g} requests/s"
        ),
        f"band of the rate: {rate.low:g} to {rate.high:g} times ({kind}, {points})",
    )


def _cost(subject: Subject) -> tuple[str, ...]:
    cost = subject.cost
    if not cost.is_known:
        return ("no price was set for this device",)
    return (
        *(f"{name:<28} ${price:8.4f}/h" for name, price in cost.parts_usd_per_hour),
        f"total                        ${cost.usd_per_hour:8.4f}/h; ${cost.max_usd:,.2f} maximum ({cost.max_usd_basis})",
        f"per 1M output tokens: ${cost.usd_per_million_tokens:.2f} (one request), ${cost.usd_per_million_tokens_saturated:.2f} at saturation",
    )
