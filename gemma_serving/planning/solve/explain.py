"""The formulas with their numbers, line by line, for `--explain`."""

from collections.abc import Iterator

from msgspec import Struct

from gemma_serving.planning.cost.running_costs import usual_start_s
from gemma_serving.planning.cost.subject import Subject, examine
from gemma_serving.planning.data.overheads import constant
from gemma_serving.planning.data.tables import typed_file
from gemma_serving.planning.memory.budget import captured_graphs, program_memory
from gemma_serving.planning.memory.kv_cache import blocks_per_request, layout_of
from gemma_serving.planning.model.spec import active_params, text_params
from gemma_serving.planning.question.releases import tokens_in_flight
from gemma_serving.planning.question.types import StartupPlan
from gemma_serving.planning.rules.security.advisories import ADVICE, vulnerabilities
from gemma_serving.planning.settings.paths import with_changes
from gemma_serving.planning.solve.text_only_start import CHANGES
from gemma_serving.planning.speed.measured_starts import behind_the_start
from gemma_serving.planning.speed.start_limits import StageLimit, stage_limits
from gemma_serving.planning.speed.startup import xla_programs
from gemma_serving.planning.units import KIB, number_of, to_gib

_BILLION = 1e9


class DocumentFigure(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A figure of a document that the project started from, which no plan is near."""

    model: str
    accelerator: str
    document: str
    figure: str
    reported: str


def explain(subject: Subject) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return sections of lines: model, memory, KV cache, start-up, figures of documents, and vulnerabilities of the image."""
    return (
        ("Model", tuple(_model(subject))),
        ("Memory of one device", tuple(_memory(subject))),
        ("KV cache", tuple(_kv(subject))),
        ("Start-up", tuple(_startup(subject))),
        *((("Documents", (far,)),) if (far := _far(subject)) else ()),
        *((("Published vulnerabilities", tuple(_vulnerabilities(subject))),) if vulnerabilities(subject) else ()),
    )


def _far(subject: Subject) -> str:
    """Return the figures of the documents behind the project that are far from a plan of this model and accelerator; empty without one."""
    place = (subject.resolved.model_id, subject.resolved.accelerator.name)
    figures = [
        f"{row.document}: {row.figure} {row.reported}"
        for row in typed_file("documents.json", tuple[DocumentFigure, ...])
        if (row.model, row.accelerator) == place
    ]
    return f"far from this plan, for the reasons in dev/docs/documents.md: {'; '.join(figures)}" if figures else ""


def _model(subject: Subject) -> Iterator[str]:
    spec, scheme = subject.resolved.spec, subject.resolved.scheme
    groups = ", ".join(
        f"{g.count} x {'window ' + format(g.attention.window, ',') if g.attention.window else 'full'} "
        f"({g.attention.kv_heads} KV heads of {g.attention.head_dim}{'' if g.owns_kv else ', borrowed KV'})"
        for g in spec.groups
    )
    whole, used = text_params(spec) / _BILLION, active_params(spec) / _BILLION
    yield f"{whole:.2f} billion parameters in the language model, {used:.2f} used per token"
    yield f"{spec.layers} layers: {groups}"
    yield f"{scheme.name}: {scheme.linear_bytes:.4g} bytes per parameter of linear layers and experts, 2 for all others"
    for role, size in spec.stored_bytes:
        yield f"{role}: {size:.4g} bytes per parameter, from its config.json"


def _memory(subject: Subject) -> Iterator[str]:
    memory = subject.memory
    resolved = subject.resolved
    weights = subject.weights
    devices = number_of(resolved.tp, "device") + (f" of each of {resolved.dp} replicas" if resolved.dp > 1 else "")
    yield f"checkpoint                     {memory.checkpoint_gib:9.3f} GiB"
    yield f"budget     {memory.usable_gib:.2f} x {resolved.utilization:g} = {memory.budget_gib:9.3f} GiB"
    tables = f", including {to_gib(weights.tables):.3f} for position tables and buffers"
    rows = [(f"- weights on one of {devices}", to_gib(weights.device), tables)]
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
        yield f"they need, in GiB: {program_memory(resolved).words}"
    else:
        yield (
            f"peak while loading: {memory.load_peak_device_gib:.2f} of {memory.usable_gib:.2f} GiB, "
            f"{memory.load_peak_host_gib:.2f} GiB of host memory"
        )


def _kv(subject: Subject) -> Iterator[str]:
    resolved = subject.resolved
    memory = subject.memory
    layout = layout_of(subject.resolved)
    length, flying = resolved.max_model_len, tokens_in_flight(resolved)
    yield f"block = {layout.block_bytes / KIB:,.0f} KiB; {memory.kv_gib:.3f} GiB / block = {memory.kv_blocks:,} blocks"
    for kind in layout.kinds:
        groups = number_of(kind.groups, "group")
        if kind.window is None:
            yield f"full length: {groups} x ceil({length:,} / {kind.block_size}) blocks per request"
        else:
            held = min(kind.window - 1 + flying, length)
            yield (
                f"window {kind.window:,}: {groups} x (ceil({held:,} / {kind.block_size}) + 1) blocks, "
                f"min({kind.window:,} - 1 + {flying:,}, {length:,}) tokens held"
            )
    each = blocks_per_request(layout, max_model_len=length, tokens_in_flight=flying)
    requests = f"{memory.kv_blocks:,} / {each:,} blocks per request = {memory.max_concurrency:.2f} requests"
    yield f"{requests} of {length:,} = {memory.kv_tokens:,} tokens"
    more = f"one more token of a long request: {memory.kv_bytes_per_token / KIB:g} KiB per device ({resolved.kv_dtype})"
    yield f"{more}; longest request that fits: {memory.largest_max_model_len:,}"


def _startup(subject: Subject) -> Iterator[str]:
    resolved, startup = subject.resolved, subject.known_startup
    if startup is None:
        yield subject.unknown_words
        return
    limits = stage_limits(resolved, startup)
    longest, whole = limits[0], limits[-1]
    yield f"{longest.name} takes longest: {longest.takes_s:.0f} of {whole.takes_s:.0f} s"
    if whole.limit_s:
        yield f"the start takes {whole.takes_s / whole.limit_s:.0f} times its physical limit of {whole.limit_s:.1f} s"
    yield behind_the_start(resolved.accelerator.name)
    width = max(len(one.name) for one in limits)
    yield f"{'seconds':<{width}}   from     to  takes  limit   best  x best"
    for one in limits:
        limit, best = _seconds(one.limit_s), _seconds(one.best_s)
        times = f"{one.takes_s / one.best_s:.1f}" if one.best_s else "-"
        spans = f"{one.begins_s:6.1f} {one.ends_s:6.1f} {one.takes_s:6.1f}"
        yield f"{one.name:<{width}} {spans} {limit:>6} {best:>6} {times:>7}"
    for one in limits:
        yield from _sources(subject, startup, one)
    if not resolved.is_tpu:
        yield f"with a margin of {constant('PROBE_MARGIN'):g}, a probe budget of {startup.probe_budget_s} s"
    if (probe := startup.probe) is not None:
        waits = f"it waits {probe.initial_delay_s} s, then probes every {probe.period_s} s"
        yield f"seen by the probe after {startup.ready_s:.1f} s; {waits}, {probe.failure_threshold} times"
    for name, seconds in (
        ("crash, or flags that keep the programs", startup.restart_s),
        ("flags that require recompilation", startup.recompile_s),
        ("reboot of the TPU VM", startup.reboot_s),
        ("node replacement, from the next boot", startup.node_replacement_s),
    ):
        if seconds is not None:
            yield f"{name:<42} {seconds:8.1f} s"
    yield from _new_machines(subject)


def _new_machines(subject: Subject) -> Iterator[str]:
    """Yield what stored programs and a server for text only change in the start of a new TPU VM, by part."""
    plain = {"tpu.compile_cache": "machine"}
    stored = {"tpu.compile_cache": "bucket"}
    if subject.startup.node_replacement_s is None:
        return
    question = subject.resolved.question
    first = examine(with_changes(question, plain)).startup
    for name, changes in (
        ("with stored programs (tpu.compileCache)", stored),
        ("with text only (vllm.limitMmPerPrompt)", plain | CHANGES),
        ("with both", stored | CHANGES),
    ):
        found = examine(with_changes(question, changes)).startup
        parts = zip(_parts(first), _parts(found), strict=True)
        changed = [f"{part} {now:.0f} instead of {before:.0f}" for (part, before), (_, now) in parts if now < before]
        yield f"{name:<42} {found.node_replacement_s or 0:8.1f} s; {', '.join(changed) or 'no change'}"


def _parts(start: StartupPlan) -> Iterator[tuple[str, float]]:
    """Yield the parts of a start that the answers change, in seconds."""
    usual = usual_start_s(start)
    yield "server process", next(one.takes_s for one in start.stages if one.name == "server process")
    yield start.stages[-1].name, start.compile_s - (start.total_s - usual)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _sources(subject: Subject, startup: StartupPlan, one: StageLimit) -> Iterator[str]:
    """Yield the constants of a stage, its limit, its best public figure, and why it takes longer."""
    resolved, details = subject.resolved, ""
    if one.name.startswith("weights"):
        details = f"; {subject.memory.checkpoint_gib:.2f} GiB"
    elif one.name == startup.stages[-1].name:
        count = xla_programs(resolved) if resolved.is_tpu else captured_graphs(resolved)
        work = f"{resolved.spec.layers} layers, {count} {'XLA programs' if resolved.is_tpu else 'graphs'}"
        details = f"; {work}; between {startup.compile_low_s:.0f} and {startup.compile_high_s:.0f} s"
    delay = f"; delayed by the {one.shared} that both use" if one.shared else ""
    yield f"{one.name}: {one.source}{details}{delay}" if one.source else "the whole start"
    yield f"  limit: {one.limit_source}"
    yield f"  best: {one.best_source}"
    if one.reason:
        yield f"  why longer: {one.reason}"


def _vulnerabilities(subject: Subject) -> Iterator[str]:
    for one in vulnerabilities(subject):
        yield f"{one.id}: a caller can {one.what}; fixed in vLLM {one.fixed}; {one.source}"
    yield ADVICE
