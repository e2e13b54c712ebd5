"""Text around the table and the charts of a report: problems first, then the metrics of the whole sweep."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from loadtest.client.json_values import as_list, as_mapping
from loadtest.measure import failed_share, failed_text, has_too_many_failures, point_text
from loadtest.planned import plan_match
from loadtest.reports.table import Result

UNKNOWN: Final = "unknown"


@dataclass(frozen=True, slots=True)
class Notice:
    """A sentence above all metrics, with its reasons."""

    text: str
    reasons: tuple[str, ...] = ()
    alarming: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFacts:
    """Text around the table and the charts."""

    title: str
    plan: str
    """The plan beside the measurement; empty without a forecast."""
    subtitle: tuple[str, ...]
    header: tuple[str, ...]
    """Hardware, zone, price, image, release and client machine."""
    notices: tuple[Notice, ...]
    notes: tuple[str, ...]
    """Notes about the whole sweep, then one line for each point that has notes."""


def sweep_facts(run: Mapping[str, Any], results: Sequence[Result]) -> ReportFacts:
    """Return the facts of a sweep from its run.json and its results, of which it has one or more."""
    server = as_mapping(run.get("server"))
    subtitle = [str(run.get("url") or "")]
    length = server.get("max_model_len")
    if isinstance(length, int):
        subtitle.append(f"max-model-len {length:,}")
    last = results[-1]
    subtitle += [str(last["point"].get("traffic") or ""), f"seed {run.get('seed')}", str(last["date"])]
    match = plan_match(results)
    return ReportFacts(
        plan="" if match is None else match.text,
        header=tuple(_header(run)),
        title=f"Benchmark of {run.get('model') or results[0]['model_id']}",
        subtitle=tuple(part for part in subtitle if part),
        notices=tuple(_notices(run, results)),
        notes=(*dict.fromkeys(str(note) for note in as_list(run.get("notes"))), *_by_point(results, "notes")),
    )


def _by_point(results: Sequence[Result], field: str) -> Iterator[str]:
    """Yield each point that has texts in a field of its result, with them."""
    return (f"{point_text(result['point'])}: {'; '.join(result[field])}" for result in results if result[field])


def _header(run: Mapping[str, Any]) -> list[str]:
    """Return the conditions of the figures: the server's hardware and software, its price, and this client. Unknown parts are named."""
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


def _notices(run: Mapping[str, Any], results: Sequence[Result]) -> Iterator[Notice]:
    """Yield the notices of the report: invalid points, failed requests, a simulated server, skipped points."""
    most = float(run.get("max_failed", 1.0))
    invalid = sum(not result["valid"] for result in results)
    if invalid:
        which = "NO point is valid" if invalid == len(results) else f"{invalid} of {len(results)} points"
        reasons = tuple(_by_point(results, "invalid_reasons"))
        yield Notice(f"NOT VALID: {which}. Do not use their metrics.", reasons, alarming=True)
    failed = sum(result["failed"] for result in results)
    done = sum(result["completed"] for result in results)
    if failed:
        text = f"{failed_text(failed_share(*results))} of the requests failed: {failed:,} of {failed + done:,}"
        alarming = any(has_too_many_failures(result, most) for result in results)
        worst = failed_text(max(map(failed_share, results)))
        yield Notice(f"{text}, at most {worst} of a point.", tuple(_failures(results)), alarming=alarming)
    if as_mapping(run.get("server")).get("simulated") or any(result["simulated"] for result in results):
        yield Notice("Simulated server. Results do not reflect real hardware.")
    left_out = [as_mapping(row) for row in as_list(run.get("left_out"))]
    if left_out:
        names = "; ".join(f"{row.get('key')}: {row.get('reason')}" for row in left_out)
        yield Notice(f"{len(left_out)} {'point was' if len(left_out) == 1 else 'points were'} not measured: {names}.")


def _failures(results: Sequence[Result]) -> Iterator[str]:
    """Yield the failures of all points by kind, with a message of each."""
    kinds = Counter[str]()
    for result in results:
        kinds.update(result["errors_by_kind"])
    examples = {kind: text for result in results for kind, text in result["error_examples"].items() if text}
    for kind, count in kinds.most_common():
        yield f"{count:,} x {kind}{f', for example: {examples[kind]}' if kind in examples else ''}"
