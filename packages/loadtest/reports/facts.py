"""Text around the table and the charts of a report: problems first, then the metrics of the whole sweep."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from loadtest.client.json_values import as_list, as_mapping
from loadtest.measure import failed_share, failed_text, has_too_many_failures
from loadtest.reports.chart_model import Result
from loadtest.reports.notes import GroupedNote, failed_notes, invalid_notes, invalid_points, point_notes
from loadtest.verdict import BestLoad, SweepVerdict, sweep_verdict

UNKNOWN: Final = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A sentence above all metrics, with its reasons."""

    text: str
    reasons: tuple[GroupedNote, ...] = ()
    alarming: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """A metric of the whole sweep."""

    name: str
    value: str
    terms: tuple[str, ...] = ()
    alarming: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Text around the table and the charts."""

    title: str
    verdict: SweepVerdict
    subtitle: tuple[str, ...]
    header: tuple[str, ...]
    """Hardware, zone, price, image, release and client machine."""
    tiles: tuple[Tile, ...]
    notices: tuple[Notice, ...]
    failures: tuple[GroupedNote, ...]
    notes: tuple[str, ...]
    """Notes about the whole sweep."""
    point_notes: tuple[GroupedNote, ...]


def sweep_facts(run: Mapping[str, Any], results: Sequence[Result]) -> Facts:
    """Return the facts of a sweep from its run.json and its results."""
    server, verdict = as_mapping(run.get("server")), sweep_verdict(run, results)
    subtitle = [str(run.get("url") or "")]
    length = server.get("max_model_len")
    if isinstance(length, int):
        subtitle.append(f"max-model-len {length:,}")
    subtitle += [str(results[-1]["point"].get("traffic") or "")] if results else []
    subtitle += [f"seed {run.get('seed')}", str(results[-1]["date"]) if results else ""]
    return Facts(
        verdict=verdict,
        header=tuple(_header(run)),
        title=f"Benchmark of {run.get('model') or (results[0]['model_id'] if results else 'a server')}",
        subtitle=tuple(part for part in subtitle if part),
        tiles=tuple(_tiles(run, results, verdict)),
        notices=tuple(_notices(run, results)),
        failures=tuple(failed_notes(results)),
        notes=tuple(_sweep_notes(run)),
        point_notes=tuple(point_notes(results)),
    )


def _header(run: Mapping[str, Any]) -> list[str]:
    """Return what the figures depend on: the server's hardware and software, its price, and this client. Unknown parts are named."""
    hosting, server = as_mapping(run.get("hosting")), as_mapping(run.get("server"))
    hardware = hosting.get("accelerator") or as_mapping(run.get("roofline")).get("accelerator")
    price, version = run.get("usd_per_hour"), server.get("version")
    return [
        f"hardware: {hardware or UNKNOWN}",
        f"zone: {hosting.get('zone') or UNKNOWN}",
        f"price: {UNKNOWN if price is None else f'{price:g} USD per hour'}",
        f"image: {_short_image(hosting.get('image'))}",
        f"release: {f'vLLM {version}' if version else UNKNOWN}",
        f"client: {_client(as_mapping(run.get('client_machine')))}",
    ]


def _short_image(image: object) -> str:
    """Return an image reference with the first digits of its digest."""
    name, separator, digest = str(image or UNKNOWN).partition("@sha256:")
    return f"{name}{separator}{digest[:12]}"


def _client(machine: Mapping[str, object]) -> str:
    if not machine:
        return UNKNOWN
    processor = f" of {machine['processor']}" if machine.get("processor") else ""
    return (
        f"{machine.get('system')} {machine.get('architecture')}, {machine.get('cores')} cores{processor},"
        f" load {machine.get('load_1min')}, Python {machine.get('python')}"
    )


def _most_failed(run: Mapping[str, Any]) -> float:
    return float(run.get("max_failed", 1.0))


def _notices(run: Mapping[str, Any], results: Sequence[Result]) -> list[Notice]:
    """Return the notices of the report: invalid points, a simulated server, skipped points, old definitions."""
    notices: list[Notice] = []
    most = _most_failed(run)
    invalid = invalid_points(results, most)
    if invalid:
        which = "NO point is valid" if len(invalid) == len(results) else f"{len(invalid)} of {len(results)} points"
        notices.append(
            Notice(
                text=f"NOT VALID: {which}. Do not use their metrics.",
                reasons=tuple(invalid_notes(results, most)),
                alarming=True,
            )
        )
    if as_mapping(run.get("server")).get("simulated") or any(result["simulated"] for result in results):
        notices.append(Notice(text="Simulated server. Results do not reflect real hardware."))
    left_out = as_list(run.get("left_out"))
    if left_out:
        names = "; ".join(f"{as_mapping(row).get('key')}: {as_mapping(row).get('reason')}" for row in left_out)
        notices.append(
            Notice(
                text=f"{len(left_out)} {'point was' if len(left_out) == 1 else 'points were'} not measured: {names}."
            )
        )
    return notices


def _tiles(run: Mapping[str, Any], results: Sequence[Result], verdict: SweepVerdict) -> list[Tile]:
    failed, done = (sum(result[name] for result in results) for name in ("failed", "completed"))
    most = _most_failed(run)
    worst = max(results, key=failed_share, default=None)
    worst_said = f", at most {failed_text(failed_share(worst))} of a point" if failed and worst is not None else ""
    tiles = [
        Tile(
            name=f"of the requests failed: {failed:,} of {failed + done:,}{worst_said}",
            value=failed_text(failed / max(1, failed + done)),
            terms=("failed",),
            alarming=any(has_too_many_failures(result, most) for result in results),
        ),
        Tile(
            name="points are valid",
            value=f"{len(results) - len(invalid_points(results, most))} of {len(results)}",
            terms=("valid",),
            alarming=bool(invalid_points(results, most)),
        ),
    ]
    found = as_mapping(run.get("found"))
    has_found = isinstance(found.get("level"), int | float)
    tiles += _limit_tiles(run, verdict, has_found=has_found) if verdict.limits else _best_tiles(run, results, verdict)
    if has_found:
        tiles.append(
            Tile(
                name="highest load that meets the limits",
                value=f"{found['level']:g} {found['unit']}",
                terms=("kept",),
                alarming=not found["valid"],
            )
        )
    return tiles


def _limit_tiles(run: Mapping[str, Any], verdict: SweepVerdict, *, has_found: bool) -> list[Tile]:
    """Return the tiles of a sweep with limits: the highest load within them, and its price. A search has its own tile for the load."""
    share = f"{100 * verdict.slo_share:.6g}%"
    best = verdict.best
    if best is None:
        return [
            Tile(
                name=f"of the valid loads meets {verdict.limits} for {share} of the requests",
                value="None",
                terms=("goodput",),
                alarming=True,
            )
        ]
    load = Tile(
        name=f"highest load of which {share} of the requests meet {verdict.limits} ({best.lengths})",
        value=f"{best.level:g} {best.unit}",
        terms=("load", "goodput"),
    )
    rate = Tile(
        name=f"output rate of good requests at {best.load}",
        value=f"{best.good_tok_per_s:,.0f} tok/s",
        terms=("throughput", "steady"),
    )
    return [*([] if has_found else [load]), rate, *_cost_tiles(run, best, "good tokens")]


def _cost_tiles(run: Mapping[str, Any], best: BestLoad, of: str) -> list[Tile]:
    if best.usd_per_million_good_tokens is None:
        return []
    name = f"per million {of} at {best.load}, at {run.get('usd_per_hour'):g} USD per hour"
    return [Tile(name=name, value=f"{best.usd_per_million_good_tokens:,.3g} USD", terms=("cost",))]


def _best_tiles(run: Mapping[str, Any], results: Sequence[Result], verdict: SweepVerdict) -> list[Tile]:
    """Return the tiles of the valid load with the highest output rate, of a sweep without limits."""
    best = verdict.best
    if best is None:
        return []
    bad = {result["point"]["key"] for result in invalid_points(results, _most_failed(run))}
    usable = [result for result in results if result["completed"] and result["point"]["key"] not in bad]
    result = next(result for result in usable if result["point"]["key"] == best.key)
    where = " in the steady window" if result.get("steady") else ""
    return [
        Tile(
            name=f"highest output rate{where}, at {best.load}",
            value=f"{best.output_tok_per_s:,.0f} tok/s",
            terms=("throughput", "steady"),
        ),
        Tile(
            name="fastest median TTFT",
            value=f"{min(result['median_ttft_ms'] for result in usable):,.1f} ms",
            terms=("ttft",),
        ),
        *_cost_tiles(run, best, "output tokens"),
    ]


def _sweep_notes(run: Mapping[str, Any]) -> list[str]:
    found = as_mapping(run.get("found"))
    return [
        *([f"{found['sentence']}."] if found else []),
        *dict.fromkeys(str(note) for note in as_list(run.get("notes"))),
    ]
