"""Text around the table and the charts of a report: problems first, then the metrics of the whole sweep."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from loadtest.client.json_values import as_list, as_mapping
from loadtest.measure import failed_share, failed_text, has_too_many_failures
from loadtest.reports.chart_model import Result
from loadtest.reports.notes import GroupedNote, failed_notes, invalid_notes, invalid_points, point_notes
from loadtest.verdict import BestLoad, SweepVerdict, sweep_verdict

UNKNOWN: Final = "unknown"


@dataclass(frozen=True, slots=True)
class Notice:
    """A sentence above all metrics, with its reasons."""

    text: str
    reasons: tuple[GroupedNote, ...] = ()
    alarming: bool = False


@dataclass(frozen=True, slots=True)
class Tile:
    """A metric of the whole sweep."""

    value: str
    name: str
    terms: tuple[str, ...]
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


def _notices(run: Mapping[str, Any], results: Sequence[Result]) -> Iterator[Notice]:
    """Yield the notices of the report: invalid points, a simulated server, skipped points."""
    most = _most_failed(run)
    invalid = invalid_points(results, most)
    if invalid:
        which = "NO point is valid" if len(invalid) == len(results) else f"{len(invalid)} of {len(results)} points"
        reasons = tuple(invalid_notes(results, most))
        yield Notice(f"NOT VALID: {which}. Do not use their metrics.", reasons, alarming=True)
    if as_mapping(run.get("server")).get("simulated") or any(result["simulated"] for result in results):
        yield Notice("Simulated server. Results do not reflect real hardware.")
    left_out = [as_mapping(row) for row in as_list(run.get("left_out"))]
    if left_out:
        names = "; ".join(f"{row.get('key')}: {row.get('reason')}" for row in left_out)
        yield Notice(f"{len(left_out)} {'point was' if len(left_out) == 1 else 'points were'} not measured: {names}.")


def _tiles(run: Mapping[str, Any], results: Sequence[Result], verdict: SweepVerdict) -> Iterator[Tile]:
    failed, done = (sum(result[name] for result in results) for name in ("failed", "completed"))
    most = _most_failed(run)
    invalid = invalid_points(results, most)
    worst = max(map(failed_share, results), default=0.0)
    at_most = f", at most {failed_text(worst)} of a point" if failed else ""
    text = f"of the requests failed: {failed:,} of {failed + done:,}{at_most}"
    alarming = any(has_too_many_failures(result, most) for result in results)
    yield Tile(failed_text(failed / max(1, failed + done)), text, ("failed",), alarming=alarming)
    yield Tile(
        f"{len(results) - len(invalid)} of {len(results)}", "points are valid", ("valid",), alarming=bool(invalid)
    )
    yield from _limit_tiles(run, verdict) if verdict.limits else _best_tiles(run, results, verdict)


def _limit_tiles(run: Mapping[str, Any], verdict: SweepVerdict) -> Iterator[Tile]:
    """Yield the tiles of a sweep with limits: the highest load within them, and its price."""
    share, best = f"{100 * verdict.slo_share:.6g}%", verdict.best
    if best is None:
        text = f"of the valid loads meets {verdict.limits} for {share} of the requests"
        yield Tile("None", text, ("goodput",), alarming=True)
        return
    text = f"highest load of which {share} of the requests meet {verdict.limits} ({best.lengths})"
    yield Tile(f"{best.level:g} {best.unit}", text, ("load", "goodput"))
    text = f"output rate of good requests at {best.load}"
    yield Tile(f"{best.good_tok_per_s:,.0f} tok/s", text, ("throughput", "steady"))
    yield from _cost_tiles(run, best, "good tokens")


def _cost_tiles(run: Mapping[str, Any], best: BestLoad, of: str) -> Iterator[Tile]:
    if best.usd_per_million_good_tokens is not None:
        text = f"per million {of} at {best.load}, at {run.get('usd_per_hour'):g} USD per hour"
        yield Tile(f"{best.usd_per_million_good_tokens:,.3g} USD", text, ("cost",))


def _best_tiles(run: Mapping[str, Any], results: Sequence[Result], verdict: SweepVerdict) -> Iterator[Tile]:
    """Yield the tiles of the valid load with the highest output rate, of a sweep without limits."""
    best = verdict.best
    if best is None:
        return
    bad = {result["point"]["key"] for result in invalid_points(results, _most_failed(run))}
    usable = {key: result for result in results if result["completed"] and (key := result["point"]["key"]) not in bad}
    where = " in the steady window" if usable[best.key].get("steady") else ""
    rate = f"{best.output_tok_per_s:,.0f} tok/s"
    yield Tile(rate, f"highest output rate{where}, at {best.load}", ("throughput", "steady"))
    fastest = min(result["median_ttft_ms"] for result in usable.values())
    yield Tile(f"{fastest:,.1f} ms", "fastest median TTFT", ("ttft",))
    yield from _cost_tiles(run, best, "output tokens")


def _sweep_notes(run: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys(str(note) for note in as_list(run.get("notes"))))
