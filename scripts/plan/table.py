"""A plan as text: memory as a bar, start-up as a timeline, speed, cost and findings."""

import sys
from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import Console
from rich.text import Text

from gemma_serving.planning.cost.capacity_order import order_lines
from gemma_serving.planning.data.checkpoints import with_owner
from gemma_serving.planning.machine.hardware import ACCELERATORS, Accelerator
from gemma_serving.planning.memory.margins import margin_words
from gemma_serving.planning.question.types import LIMIT_WORDS, Band, Plan, RunningCosts, ThroughputPlan, WorkloadPlan
from gemma_serving.planning.rules.findings import counted_notes, notes_of
from gemma_serving.planning.settings.finding import Finding
from gemma_serving.planning.solve.remedy_wording import (
    Wording,
    decode_of,
    message_of,
    remedy_of,
    together_text,
    with_band,
)
from gemma_serving.planning.speed.bands import WIDER
from gemma_serving.planning.speed.measured_starts import behind_the_start
from gemma_serving.planning.units import CLOSE, ROUGH, duration, figure, number_of
from gemma_serving.scripts.cli.tables import FittedTable, paragraph
from gemma_serving.scripts.cli.tables import console as screen

_BAR: Final = 60
"""Characters of a whole bar, if the terminal has room for it."""
_INDENT: Final = "  "
_Part = tuple[str, float, str, str]
"""A part of a bar: name, size, mark and color."""
_BAND: Final = ("low", "typical", "high")
_SHARES: Final = ("KV cache in use", "prompt from the prefix cache")
"""Metrics of the workload that are fractions."""
_SOURCES: Final = ("no public source has", "only one public source has")
_MAX_WIDTH: Final = 120
_COLORS: Final = {"block": "bold red", "warn": "yellow", "info": "cyan"}
_VERDICTS: Final = {
    "fits": ("bold green", "fits"),
    "out-of-memory": ("bold red", "out of memory"),
    "blocked": ("bold red", "blocked"),
}


def show(plan: Plan, wording: Wording, note: str = "", starts: Sequence[str] = (), *, has_table: bool = False) -> None:
    """Print the plan on stdout, with a note about the model below the verdict, and paragraphs about later and faster starts below the start-up.

    A plan that does not fit has its reason below the verdict, and no figures of a server that runs. `has_table`: print the workload as a table.
    """
    console = _console()
    _verdict(console, plan, wording)
    if note:
        paragraph(console, note)
    console.print()
    _memory(console, plan)
    if plan.verdict != "out-of-memory":
        _startup(console, plan, starts)
    _figures(console, plan, has_load=not has_table)
    if plan.fits and plan.workload is not None and has_table:
        show_workload(plan, plan.workload)
    shown = (*notes_of(plan), *plan.stopping)
    for finding in plan.findings:
        if finding not in shown:
            _finding(console, finding, wording, accepted=finding.id in plan.accepted)
    if joined := together_text([one for one in plan.together if one not in plan.together_to_start], wording):
        paragraph(console, joined)
    if counted := counted_notes(plan):
        paragraph(console, f"{counted}; --explain lists them")


def show_verdict(plan: Plan, wording: Wording) -> None:
    """Print the first line of the plan on stdout, and the findings that stop it."""
    console = _console()
    _verdict(console, plan, wording)
    console.print()


def _console() -> Console:
    console = screen(sys.stdout)
    if console.is_terminal:
        console.width = min(console.width, _MAX_WIDTH)
    return console


def _verdict(console: Console, plan: Plan, wording: Wording) -> None:
    """Print the first line of a plan. If it does not fit, also the findings that stop it."""
    color, word = _VERDICTS[plan.verdict]
    if plan.fits and plan.margin:
        color, word = "bold yellow", f"fits, but may fail ({margin_words(plan.margin)})"
    title = Text.assemble(
        (with_owner(plan.model), "bold"),
        f" as {plan.quantization} on {plan.accelerator} ({plan.platform}): ",
        (word, color),
        _speed_and_price(plan) if plan.fits else "",
    )
    paragraph(console, title)
    for finding in plan.stopping:
        _finding(console, finding, wording, accepted=False)
    if joined := together_text(plan.together_to_start, wording):
        paragraph(console, joined)


def _speed_and_price(plan: Plan) -> str:
    """Return the two figures that the first line adds to the verdict."""
    rate = plan.known_throughput
    speed = ", speed unknown" if rate is None else f", {with_band(decode_of(plan), 'tok/s')}"
    if plan.cost.is_known:
        return f"{speed}, ${plan.cost.usd_per_hour:.2f}/h"
    return speed if plan.platform == "own" else f"{speed}, price unknown"


def _memory(console: Console, plan: Plan) -> None:
    m = plan.memory
    replicas = f" of each of {plan.replicas} replicas" if plan.replicas > 1 else ""
    parts = [("weights", m.weights_gib, "█", "blue"), ("KV cache", m.kv_gib, "░", "green")]
    if plan.platform != "tpu-vm":
        parts[1:1] = [("activations", m.activations_gib, "▓", "magenta"), ("graphs", m.graphs_gib, "▒", "yellow")]
    paragraph(console, f"Memory per device: {m.usable_gib:.2f} GiB usable, {m.budget_gib:.2f} GiB budget")
    legend = [f"{name} {_gib(size)}" for name, size, *_ in parts]
    left = Text.assemble(("·", "dim"), f" outside the budget {_gib(max(m.headroom_gib, 0))} GiB")
    _bar(console, parts, m.usable_gib, legend, left)
    lacks = f", up to {min(m.kv_margin_gib / m.kv_gib, 1):.0%} less" if m.kv_gib else ""
    paragraph(
        console,
        f"KV cache{replicas}: {figure(m.kv_tokens, CLOSE)} tokens in {figure(m.kv_blocks, CLOSE)} blocks; "
        f"{figure(m.max_concurrency, CLOSE)} concurrent requests of {plan.vllm.max_model_len or 0:,} tokens{lacks}",
        prefix=_INDENT,
    )
    console.print()


def _gib(size: float) -> str:
    return figure(size, CLOSE if size >= 1 else ROUGH)


def _startup(console: Console, plan: Plan, starts: Sequence[str]) -> None:
    s = plan.known_startup
    if s is None:
        paragraph(console, f"Start-up: unknown (no public vLLM server on {plan.accelerator} was measured)")
        console.print()
        return
    too_long = s.probe_limit_s is not None and s.total_s > s.probe_limit_s
    facts = [s.ready_words]
    if s.cached_total_s is not None:
        saved = f"the cache saves {(s.total_s - s.cached_total_s) / s.compile_s:.0%} of compiling"
        facts.append(f"each later one about {duration(s.cached_total_s)} ({saved})")
    if too_long:
        facts.append("exceeds any startup probe")
    elif s.probe is not None:
        facts.append(f"a startup probe needs at least {duration(s.probe_budget_s)}")
    facts.append(f"in-place restart {duration(s.restart_s)}")
    if s.recompile_s is not None and s.recompile_s > s.restart_s:
        facts[-1] += f", {duration(s.recompile_s)} if a flag compiles again"
    paragraph(console, f"Start-up: {'; '.join(facts)}")
    parts = [
        ("image", s.pull_s - s.connects_s, "─", "blue"),
        *([("first connections (assumed)", s.connects_s, "╌", "cyan")] if s.connects_s else []),
        (f"weights ({plan.weights_mode})", s.load_s - s.beside_s, "━", "magenta"),
        ("compile", s.compile_s, "═", "yellow"),
    ]
    legend = [f"{name} {duration(seconds)}" for name, seconds, *_ in parts]
    if s.beside_s:
        legend[-2] += f", and {duration(s.beside_s)} beside the image"
    legend[-1] += f" ({duration(s.compile_low_s)} to {duration(s.compile_high_s)})"
    _bar(console, parts, s.total_s, legend)
    without = ", none with the options of ARG05" if _ignores(plan) else ""
    paragraph(console, f"({behind_the_start(plan.accelerator)}{without})", prefix=_INDENT)
    for text in starts:
        paragraph(console, text, prefix=_INDENT)
    console.print()


def _bar(
    console: Console, parts: Sequence[_Part], whole: float, legend: Sequence[str], left: Text | None = None
) -> None:
    """Print parts as a bar of the whole, and the legend below, as many entries on a line as fit."""
    longest, bar = min(_BAR, console.width - len(_INDENT)), Text()
    for _, size, mark, color in parts:
        bar.append(mark * max(round(size / whole * longest), 1 if size > 0 else 0), style=color)
    bar.truncate(longest)
    if left is not None:
        bar.append("·" * max(longest - len(bar.plain), 0), style="dim")
    paragraph(console, bar, prefix=_INDENT)
    entries = [Text.assemble((mark, color), f" {text}") for (*_, mark, color), text in zip(parts, legend, strict=True)]
    line = Text()
    for entry in (*entries, left) if left else entries:
        longer = Text("   ").join([line, entry]) if line else entry
        if longer.cell_len > console.width - len(_INDENT):
            paragraph(console, line, prefix=_INDENT)
            longer = entry
        line = longer
    paragraph(console, line, prefix=_INDENT)


def _limit(bound: str) -> str:
    """Return what limits the speed, as text."""
    words = {
        "overhead": "the part of a step that is neither memory nor compute",
        "front-end": "the API process, which passes as many requests of any model on, not by the device",
        **LIMIT_WORDS,
    }
    return f"limited by {words.get(bound, bound)}"


def _metrics(costs: RunningCosts) -> str:
    """Return the cost of the metrics next to the whole bill, which has it if they are on; empty without alerts and metrics."""
    usd = costs.metrics_usd_per_month
    if usd is None:
        return ""
    if costs.collects_metrics:
        return f"${usd:.2f} of the ${costs.observability_usd_per_month:.2f} per month; metrics.enabled: false turns them off"
    return f"off; up to ${usd:.2f} more per month with metrics.enabled: true"


def _few_sources(card: Accelerator | None, throughput: ThroughputPlan, *, ignores: bool) -> Iterator[str]:
    """Yield the figures that rest on no or one public source, as text."""
    decode = throughput.decode_sources
    known = card.decode_sources if card else 0
    prefill = card.prefill_sources if card else 0
    if decode < len(_SOURCES):
        subject = "" if known <= decode else "with the options of ARG05 " if ignores else "of a mixture of experts "
        yield f"({_SOURCES[decode]} a time per token {subject}on this accelerator)"
    if prefill < len(_SOURCES):
        yield f"({_SOURCES[prefill]} a time to the first token on this accelerator)"


def _ignores(plan: Plan) -> bool:
    """Return whether the plan ignores the effect of an option."""
    return any(finding.id == "ARG05" for finding in plan.findings)


def _speed(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield the lines about speed: label and text."""
    t = plan.known_throughput
    if t is None:
        figures = " and ".join(figure for figure in plan.unknown if figure != "start")
        yield "Speed", f"unknown ({figures}: no public vLLM server on {plan.accelerator} was measured)"
        return
    requests = number_of(t.saturated_batch, "concurrent request")
    yield "Speed", f"{with_band(decode_of(plan), 'tokens/s for one request')}, {_limit(t.bound)}"
    for text in _few_sources(ACCELERATORS.get(plan.accelerator), t, ignores=_ignores(plan)):
        yield "", text
    if t.accepted_share is not None:
        times = f"{figure(t.decode_tok_per_s / t.plain_tok_per_s, ROUGH)} times the {figure(t.plain_tok_per_s, ROUGH)} without speculative decoding"
        yield "", f"{times} if {t.accepted_share:.0%} of proposed tokens are accepted"
        if t.break_even_share is not None and t.saturated_break_even_share is not None:
            one = f"{min(t.break_even_share, 1):.0%}"
            full = f"{min(t.saturated_break_even_share, 1):.0%}"
            yield "", f"slower if fewer than {one} are accepted; with {requests}, if fewer than {full} are"
    yield "", with_band(_saturated(t), f"tokens/s for {requests}")


def _saturated(t: ThroughputPlan) -> Band:
    return Band(low=t.saturated_low_tok_per_s, typical=t.saturated_tok_per_s, high=t.saturated_high_tok_per_s)


def _per_million(plan: Plan) -> Iterator[str]:
    """Yield the prices of output tokens as text: of one request, and at saturation. A price of a measured rate has no band."""
    c, t = plan.cost, plan.known_throughput
    one, all_ = c.usd_per_million_tokens, c.usd_per_million_tokens_saturated
    if one is None or all_ is None:
        return
    if c.is_measured or t is None:
        yield f"${figure(one, ROUGH)} per 1M output tokens at the measured rate"
        return
    yield f"{_usd_of(one, decode_of(plan))} per 1M output tokens of one request, {_usd_of(all_, _saturated(t))} at saturation"


def _usd_of(usd: float, rate: Band) -> str:
    """Return a price per token with the band of its rate."""
    low = figure(usd * rate.typical / rate.high, ROUGH)
    high = figure(usd * rate.typical / rate.low, ROUGH)
    return f"${figure(usd, ROUGH)} (${low} to ${high})"


def _figures(console: Console, plan: Plan, *, has_load: bool) -> None:
    """Print speed and cost; of a plan that does not fit only the cost, without a price per token."""
    c = plan.cost
    lines = list(_speed(plan)) if plan.fits else []
    if plan.fits and plan.workload is not None and has_load:
        lines.append(("Load", _load(plan.workload)))
    if c.is_known:
        lines.append(("Cost", plan.bill))
        lines += [("Order" if index == 0 else "", line) for index, line in enumerate(order_lines(c.order))]
        if plan.fits:
            lines += [("", line) for line in _per_million(plan)]
    elif plan.platform != "own":
        lines.append(("Cost", f"unknown: the price list has no price of {plan.accelerator}"))
    if metrics := _metrics(plan.running):
        lines.append(("Metrics", metrics))
    for label, text in lines:
        paragraph(console, text, prefix=f"{_INDENT}{label:<7}  ")
    console.print()


def _load(answer: WorkloadPlan) -> str:
    """Return a workload that only the settings file states as one line."""
    first, whole = answer.ttft_s, answer.request_s
    return (
        f"{_asked(answer)}: first token after {figure(first.typical, ROUGH)} s ({first.words}), "
        f"whole request {figure(whole.typical, ROUGH)} s ({whole.words}); --explain has all figures"
    )


def _asked(answer: WorkloadPlan) -> str:
    """Return the requests of a workload as text."""
    asked = answer.workload
    clients = f"{asked.rate_per_s:g} requests/s" if asked.rate_per_s is not None else number_of(answer.users, "user")
    return f"{answer.prompt_tokens:,} tokens in, {asked.output_tokens:,} out, {clients}"


def show_workload(plan: Plan, answer: WorkloadPlan) -> None:
    """Print the figures of a workload as a table on stdout, with its limit."""
    console = _console()
    shown = FittedTable(
        f"Workload: {_asked(answer)}; {_limit(answer.bound)}",
        ("figure", *_BAND),
        numbers=_BAND,
    )
    for name, band in _answers(answer):
        if name.startswith("USD") and not plan.cost.is_known:
            continue
        shown.add_row(name, *(_cell(name, one, band) for one in (band.low, band.typical, band.high)))
    console.print(shown)
    is_front_end = answer.most_requests_per_s >= answer.front_end_requests_per_s
    whose = " (that of the API process for any model, not the device's)" if is_front_end else ""
    limits = " and ".join(LIMIT_WORDS[limit].removeprefix("the ") for limit in answer.limits)
    limit = (
        f"Limit{' per instance' if plan.platform == 'cloud-run' else ''}: "
        f"{number_of(answer.most_users, 'concurrent request')} of this workload ({limits}), "
        f"{figure(answer.most_requests_per_s, ROUGH)} requests/s{whose}."
    )
    paragraph(console, limit)
    if answer.recomputed_tokens:
        paragraph(
            console,
            f"Preemption: the KV cache holds {number_of(answer.whole_users, 'request')} of full length, but {answer.running_requests.typical:,.0f} "
            f"run. vLLM preempts requests and computes about {figure(answer.recomputed_tokens, ROUGH)} tokens per response again, which lowers the rate "
            f"by {figure(answer.preemption_share * 100, ROUGH)}%.",
        )
    if answer.in_step_ttft_s > answer.ttft_s.typical:
        paragraph(
            console,
            "The typical time to the first token is of users who send at different moments. In step, as in a benchmark with responses of one length, "
            f"it is {figure(answer.in_step_ttft_s, ROUGH)} s, which the high end holds.",
        )
    if answer.unexplained_share:
        paragraph(
            console,
            f"Unexplained: {answer.unexplained_share:.0%} of a step, as one publisher measured with more than 16 requests and others did not. The slow "
            "ends have it, and no typical value.",
        )
    if answer.not_measured:
        words = " and ".join(answer.not_measured)
        paragraph(console, f"Not measured: no public load test has {words}. The bands are {WIDER:g} times wider.")
    console.print()


def _cell(name: str, value: float, band: Band) -> str:
    """Return a value of the table. A number without a band is known: a whole one is exact."""
    if name in _SHARES:
        return f"{value:.0%}"
    if band.low < band.high:
        return figure(value, ROUGH)
    return f"{value:,.0f}" if value == round(value) else figure(value, CLOSE)


def _answers(answer: WorkloadPlan) -> tuple[tuple[str, Band], ...]:
    """Return each metric with its name."""
    return (
        ("time to first token, s", answer.ttft_s),
        ("time per output token, ms", answer.tpot_s.times(1e3)),
        ("whole request, s", answer.request_s),
        ("output tokens/s, all requests", answer.output_tok_per_s),
        ("requests/s", answer.requests_per_s),
        ("USD per million input tokens", answer.usd_per_million_input_tokens),
        ("USD per million output tokens", answer.usd_per_million_output_tokens),
        ("running requests", answer.running_requests),
        ("queued requests", answer.queued_requests),
        ("queue time, s", answer.queue_s),
        (_SHARES[0], answer.kv_share),
        (_SHARES[1], answer.prefix_hit_share),
    )


def _finding(console: Console, finding: Finding, wording: Wording, *, accepted: bool) -> None:
    label = f"{finding.id} {'accepted' if accepted else finding.severity:<5} "
    message, remedy = message_of(finding, wording), remedy_of(finding, wording)
    paragraph(
        console, Text.assemble(f"{message} ", (remedy, "italic")), prefix=Text(label, style=_COLORS[finding.severity])
    )
