"""The result of a run, and the comparison of several, as tables and as JSON."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from scripts.cli.tables import paragraph, table
from scripts.quality.chance import SIGNIFICANT, RightShare
from scripts.quality.compare import QualityComparison, QualityRow
from scripts.quality.results import SCHEMA_VERSION, Ending, JudgedAnswer, QualityResult, kinds_of
from scripts.quality.store import ANSWERS

SIMULATED_NOTE: Final = (
    "The server is SIMULATED: no model answers, so these figures mean nothing. They only show that the command works."
)
_NOTHING: Final = "-"
_ASKED: Final = 100
_MOST_SHOWN: Final = 20
"""Wrong answers to print. The folder has all of them."""
_LEAST_P: Final = 0.001


# --- one run -------------------------------------------------------------------------------------------------------------------------


def show_result(result: QualityResult, ending: Ending, out: Console) -> None:
    """Print the shares, the wrong and missing answers, and what was left out."""
    numbers = ("right", "share", "95% interval", "unknown", "tokens", "s")
    shown = table(_title(result), ("kind", *numbers), whole=("kind",), numbers=numbers, least=("s", "tokens"))
    for kind in kinds_of(result):
        shown.add_row(*_cells(kind, result.share(kind), [one for one in result.answers if one.kind == kind]))
    shown.add_row(*_cells("all", result.share(), result.answers), style="bold")
    out.print(shown)
    missed = [one for one in result.answers if one.verdict != "right"]
    for one in missed[:_MOST_SHOWN]:
        paragraph(out, _wrong(one), prefix=Text(f"{one.id}: ", "yellow" if one.verdict == "unknown" else "red"))
    if len(missed) > _MOST_SHOWN:
        paragraph(out, f"{len(missed) - _MOST_SHOWN} more without a right answer are in {result.folder}/{ANSWERS}.")
    for what, why in result.header.left_out.items():
        paragraph(out, f"{why}.", prefix=f"not asked, {what}: ")
    if result.header.served.simulated is not None:
        paragraph(out, Text(SIMULATED_NOTE, style="yellow"))
    paragraph(out, summary(result, ending))


def summary(result: QualityResult, ending: Ending) -> str:
    """Return the result as one line."""
    total = result.share()
    heads: dict[Ending, str] = {
        "done": "quality",
        "interrupted": "quality, interrupted",
        "unreachable": "quality: cannot reach the server",
    }
    missing = f", {result.unknown} unknown" if result.unknown else ""
    simulated = " (SIMULATED)" if result.header.served.simulated else ""
    asked = f"{len(result.answers)} of {result.header.planned} questions"
    return f"{heads[ending]}{simulated}: {_share_line(total)}{missing}; {asked}, in {result.folder}"


def result_json(result: QualityResult, ending: Ending) -> dict[str, Any]:
    """Return the `--json` output of a run."""
    shares = {kind: share_json(result.share(kind)) for kind in kinds_of(result)}
    return {
        **asdict(result.header),
        "schema_version": SCHEMA_VERSION,
        "ending": ending,
        "complete": result.is_complete,
        "folder": result.folder,
        "share": share_json(result.share()),
        "shares": shares,
        "unknown": result.unknown,
        "answers": [asdict(one) for one in result.answers],
    }


def share_json(share: RightShare) -> dict[str, Any]:
    """Return a share in JSON types."""
    low, high = share.interval
    value = None if share.value is None else round(share.value, 4)
    return {"right": share.right, "judged": share.judged, "share": value, "low": round(low, 4), "high": round(high, 4)}


def share_text(share: RightShare) -> str:
    """Return a share with its interval in a few characters."""
    return f"{_percent(share)} ({_interval(share)})"


def _title(result: QualityResult) -> str:
    served = result.header.served
    parts = [
        f"{served.model} at {result.header.url}",
        f"weights {served.weights}" if served.weights else "",
        f"KV cache {served.kv_cache}" if served.kv_cache else "",
        f"on {served.accelerator}" if served.accelerator else "",
        "with thinking" if result.header.thinking else "",
    ]
    return ", ".join(filter(None, parts))


def _cells(name: str, share: RightShare, answers: "tuple[JudgedAnswer, ...] | list[JudgedAnswer]") -> tuple[str, ...]:
    tokens = sum(one.completion_tokens or 0 for one in answers)
    seconds = sum(one.elapsed_s for one in answers)
    unknown = sum(one.verdict == "unknown" for one in answers)
    right = f"{share.right} of {share.judged}"
    return (name, right, _percent(share), _interval(share), str(unknown), f"{tokens:,}", f"{seconds:,.1f}")


def _percent(share: RightShare) -> str:
    return _NOTHING if share.value is None else f"{share.value:.0%}"


def _interval(share: RightShare) -> str:
    low, high = share.interval
    return _NOTHING if share.value is None else f"{100 * low:.0f}-{100 * high:.0f}%"


def _share_line(share: RightShare) -> str:
    if share.value is None:
        return "nothing was judged"
    return f"{share.right} of {share.judged} right, {share.value:.1%} (95% interval {_interval(share)})"


def _wrong(one: JudgedAnswer) -> str:
    if one.verdict == "unknown":
        return f"no answer: {one.fault}"
    asked = one.asked if len(one.asked) <= _ASKED else f"{one.asked[: _ASKED - 1]}…"
    return f"asked: {asked} Expected: {one.expected}. Answered: {one.found or 'nothing'}. {one.fault}"


# --- comparison ----------------------------------------------------------------------------------------------------------------------


def show_comparison(comparison: QualityComparison, out: Console) -> None:
    """Print one row per deployment, and what the columns mean."""
    numbers = ("all", *comparison.kinds, "tok/s", "$/h", "$/M")
    shown = table(
        f"Share of right answers to the {comparison.common} questions that all runs answered, with 95% intervals",
        ("deployment", *numbers[:1], "vs. first", *numbers[1:]),
        numbers=numbers,
        least=(
            *comparison.kinds,
            "$/M",
            "tok/s",
            "$/h",
        ),
    )
    for row in comparison.rows:
        served = row.result.header.served
        shown.add_row(
            _deployment(row),
            _two_lines(row.total),
            _difference(row),
            *(_two_lines(row.by_kind[kind]) for kind in comparison.kinds),
            _NOTHING if row.speed is None else f"{row.speed.output_tok_per_s:,.0f}",
            _NOTHING if served.usd_per_hour is None else f"{served.usd_per_hour:.2f}",
            _NOTHING if row.usd_per_million_tokens is None else f"{row.usd_per_million_tokens:.2f}",
        )
    out.print(shown)
    for note in notes(comparison):
        paragraph(out, note)


def notes(comparison: QualityComparison) -> Iterator[str]:
    """Yield what a reader must know about the table, one paragraph each."""
    if comparison.is_simulated:
        yield SIMULATED_NOTE
    several = " The p-values are corrected for the number of rows (Holm)." if len(comparison.rows) > 2 else ""  # noqa: PLR2004 - a pair needs no correction
    yield (
        "vs. first: questions that only this run (+) and only the first (-) answered right, and how probable such a split is by chance "
        f"(McNemar's exact test). A difference counts below {SIGNIFICANT:g}; otherwise it is unclear, not absent.{several}"
    )
    more = {row.result.name: len(row.result.answers) - comparison.common for row in comparison.rows}
    if any(more.values()):
        each = ", ".join(f"{count} of {name}" for name, count in more.items() if count)
        yield f"Not in the table, because not every run has an answer: {each}."
    measured = [f"{row.result.name} {row.speed.load}" for row in comparison.rows if row.speed is not None]
    if measured:
        yield f"tok/s: best measured output rate ({'; '.join(measured)}). $/h: planned price. $/M: price per 1M output tokens at that rate."
    for row in comparison.rows:
        stack = row.result.header.served.stack
        if row.speed is None and stack is not None:
            yield f"No benchmark of this deployment of {stack} is stored. Run `python -m scripts.bench --stack {stack}`."


def comparison_json(comparison: QualityComparison) -> dict[str, Any]:
    """Return the `--json` output of a comparison."""
    return {
        "schema_version": SCHEMA_VERSION,
        "simulated": comparison.is_simulated,
        "common": comparison.common,
        "rows": [
            {
                "folder": row.result.folder,
                "served": asdict(row.result.header.served),
                "thinking": row.result.header.thinking,
                "share": share_json(row.total),
                "shares": {kind: share_json(share) for kind, share in row.by_kind.items()},
                "lost": row.lost,
                "won": row.won,
                "p": None if row.p is None else round(row.p, 6),
                "verdict": row.verdict,
                "output_tok_per_s": None if row.speed is None else row.speed.output_tok_per_s,
                "usd_per_million_output_tokens": row.usd_per_million_tokens,
            }
            for row in comparison.rows
        ],
    }


def _deployment(row: QualityRow) -> str:
    served = row.result.header.served
    weights = f"{served.weights or 'weights unknown'}, KV {served.kv_cache or 'unknown'}"
    thinking = "\n  with thinking" if row.result.header.thinking else ""
    machine = served.accelerator or "machine unknown"
    model = (served.checkpoint or served.model).rpartition("/")[2]
    adapter = f"\n  adapter {served.adapter}" if served.adapter else ""
    return f"{row.result.name}\n  {model}{adapter}\n  {weights}\n  {machine}{thinking}"


def _two_lines(share: RightShare) -> str:
    return _NOTHING if share.value is None else f"{_percent(share)}\n{_interval(share)}"


def _difference(row: QualityRow) -> str:
    if row.p is None:
        return "first"
    p = "p<0.001" if row.p < _LEAST_P else f"p={row.p:.3f}"
    return f"{row.verdict}\n+{row.won} -{row.lost}\n{p}"
