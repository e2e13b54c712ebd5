"""`--measured`: planned, booted and measured metrics, with the difference and whether each is within its band."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Final

from contracts.errors import CommandRefusedError
from contracts.exit_codes import ExitCode
from planning.cost.subject import examine
from planning.planner import plan_of
from planning.question.fields import number_limits
from planning.question.types import Band, CostPlan, Deployment, Plan
from planning.question.vllm_args import given_options
from planning.solve.plan_json import plan_json
from planning.speed.residuals import kv_band, residual
from scripts.cli.measured.identity import kept_settings, settings_identity
from scripts.cli.measured.schema import BenchPoint, DeploymentRecord, Identity, MeasuredFile, SmokeMeasurement
from scripts.cli.measured.store import measured_path, read_measured
from scripts.cli.settings import NO_PROJECT
from scripts.plan.question import Question, deployment_from, stack_file, wording_of
from stacks.loading import from_file

_SHOWN_DIGEST: Final = 19
"""Characters of a digest shown in a sentence: `sha256:` and twelve digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One metric, with the number of digits to show."""

    figure: str
    planned: float | None
    low: float | None = None
    high: float | None = None
    booted: float | None = None
    measured: float | None = None
    digits: int = 1

    @property
    def difference(self) -> float | None:
        """Relative difference of the booted or measured value from the planned one."""
        shown = self.booted if self.measured is None else self.measured
        return None if shown is None or not self.planned else shown / self.planned - 1

    @property
    def within(self) -> bool | None:
        """True if the value is within the band; None without a band or a value."""
        shown = self.booted if self.measured is None else self.measured
        if shown is None or self.planned is None or self.low is None or self.high is None:
            return None
        return residual(Band(low=self.low, typical=self.planned, high=self.high), shown) == "within"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRate:
    """The output rate of all requests, as used for the costs."""

    tok_per_s: float
    source: str


def show_measured(question: Question, *, as_json: bool) -> ExitCode:
    """Print planned, booted and measured metrics. Raises CommandRefusedError if nothing was measured."""
    stack = question.stack or ""
    deployment = replace(deployment_from(question), today=datetime.now(UTC).date().isoformat())
    wording = wording_of(question, deployment)
    subject = examine(deployment)
    plan = plan_of(subject)
    settings = from_file(stack_file(stack), project=NO_PROJECT)
    file, identity = read_measured(stack), settings_identity(settings, subject.resolved)
    if not file.deployments:
        raise CommandRefusedError(
            f"{measured_path(stack)} not found: stack {stack} has no measurements. Run `gemma smoke {stack}` or "
            f"`gemma bench {stack} --preset quick`."
        )
    record = _current(file, identity)
    rate = None if record is None else _rate(record)
    priced = plan if rate is None else _priced(deployment, rate)
    old = tuple(_old(one, identity, plan) for one in file.deployments if not _is_same(one.identity, identity))
    if as_json:
        document = plan_json(priced, wording)
        document["measured"] = {
            "simulated": record.identity.simulated if record else None,
            "identity": asdict(identity),
            "first_seen": record.first_seen if record else None,
            "rows": [asdict(row) | {"difference": row.difference, "within": row.within} for row in _rows(record)],
            "rate": asdict(rate) if rate else None,
            "old": list(old),
        }
        print(json.dumps(document, indent=2, allow_nan=False))
    else:
        _show(stack, record, rate, plan=plan, priced=priced.cost, old=old)
    return ExitCode.DONE if plan.fits else ExitCode.REFUSED


def _is_same(found: Identity, wanted: Identity) -> bool:
    """Return whether results of one identity apply to the other. A stack-built image has an unknown digest, so only settings decide."""
    same_image = not wanted.image_digest or found.image_digest == wanted.image_digest
    return same_image and found.settings_sha256 == wanted.settings_sha256


def _current(file: MeasuredFile, identity: Identity) -> DeploymentRecord | None:
    """Return the newest deployment with these settings and this image, preferring a real one to a simulated one."""
    same = [one for one in file.deployments if _is_same(one.identity, identity)]
    real = [one for one in same if one.identity.simulated is None]
    return next(reversed(real or same), None)


def _rate(record: DeploymentRecord) -> MeasuredRate | None:
    """Return the highest output rate of the benchmark, or the burst rate of the last smoke run that has one."""
    limit = number_limits()["measured_tok_per_s"]
    points = [point for point in record.bench if limit.allows(point.output_tok_per_s)]
    best = max(points, key=lambda point: point.output_tok_per_s, default=None)
    if best is not None:
        return MeasuredRate(tok_per_s=best.output_tok_per_s, source=f"bench, {_load(best)}, {best.date}")
    burst = next((one for one in reversed(record.smoke) if limit.allows(one.burst_tok_per_s or 0)), None)
    if burst is None or burst.burst_tok_per_s is None:
        return None
    return MeasuredRate(tok_per_s=burst.burst_tok_per_s, source=f"smoke, burst of {burst.burst_requests}, {burst.date}")


def _priced(deployment: Deployment, rate: MeasuredRate) -> Plan:
    return plan_of(examine(replace(deployment, measured_tok_per_s=rate.tok_per_s)))


def _old(record: DeploymentRecord, identity: Identity, plan: Plan) -> str:
    """Return a note on a deployment whose results no longer apply."""
    found, reasons = record.identity, list[str]()
    if identity.image_digest and found.image_digest != identity.image_digest:
        reasons.append(
            f"image {found.image_digest[:_SHOWN_DIGEST] or 'unknown'}, now {identity.image_digest[:_SHOWN_DIGEST]}"
        )
    if found.settings_sha256 != identity.settings_sha256:
        now = kept_settings(given_options(plan.vllm))
        changed = [
            f"{key} {record.settings.get(key, 'unset')}, now {now.get(key, 'unset')}"
            for key in sorted({*now, *record.settings})
            if now.get(key) != record.settings.get(key)
        ]
        reasons.append(f"other settings ({'; '.join(changed) or 'model, accelerator or other options'})")
    what = "simulated server, " if found.simulated else ""
    last = next((one for one in reversed(record.smoke) if one.decode_tok_per_s), None)
    speed = f" It measured {last.decode_tok_per_s:.1f} tok/s for one stream." if last and last.decode_tok_per_s else ""
    return f"Outdated, not used: {what}{record.first_seen}, {'; '.join(reasons)}.{speed}"


def _rows(record: DeploymentRecord | None) -> Sequence[Row]:
    if record is None:
        return ()
    return (*_boot_rows(record), *_smoke_rows(record), *(row for point in record.bench for row in _bench_rows(point)))


def _boot_rows(record: DeploymentRecord) -> Iterator[Row]:
    planned = record.planned
    booted = next((one.booted for one in reversed(record.smoke) if one.booted), None)
    blocks, tokens = kv_band(planned.kv_blocks), kv_band(planned.kv_tokens)
    yield _row("KV blocks", blocks, booted=booted.num_gpu_blocks if booted else None, digits=0)
    yield _row("KV tokens (from blocks)", tokens, booted=booted.kv_tokens if booted else None, digits=0)
    for name, key, value, digits in (
        ("block size", "blockSize", booted.block_size if booted else None, 0),
        ("GPU memory utilization", "gpuMemoryUtilization", booted.gpu_memory_utilization if booted else None, 3),
    ):
        given = record.settings.get(key)
        exact = given if isinstance(given, int | float) else None
        yield Row(figure=name, planned=exact, low=exact, high=exact, booted=value, digits=digits)
    yield Row(
        figure="start without image pull, s",
        planned=planned.serving_start_s,
        booted=booted.start_s if booted else None,
        digits=0,
    )


def _smoke_rows(record: DeploymentRecord) -> Iterator[Row]:
    planned = record.planned
    last = record.smoke[-1] if record.smoke else SmokeMeasurement(date="")
    yield _row("one stream, tok/s", planned.decode_tok_per_s, measured=last.decode_tok_per_s)
    yield _row("one stream, TTFT s", planned.ttft_s, measured=last.ttft_s, digits=3)
    tpot = Band(
        low=1000 / planned.decode_tok_per_s.high,
        typical=1000 / planned.decode_tok_per_s.typical,
        high=1000 / planned.decode_tok_per_s.low,
    )
    yield _row("one stream, TPOT ms", tpot, measured=last.tpot_s * 1000 if last.tpot_s else None, digits=2)
    name = f"burst of {last.burst_requests}, tok/s" if last.burst_requests else "burst, tok/s"
    yield _row(name, planned.burst_tok_per_s, measured=last.burst_tok_per_s)


def _bench_rows(point: BenchPoint) -> Iterator[Row]:
    load = _load(point)
    yield _row(f"{load}: tok/s", point.planned_tok_per_s, measured=point.output_tok_per_s)
    yield _row(f"{load}: TTFT s", point.planned_ttft_s, measured=point.ttft_s, digits=3)
    tpot_ms = point.planned_tpot_s.times(1000) if point.planned_tpot_s else None
    yield _row(f"{load}: TPOT ms", tpot_ms, measured=point.tpot_s * 1000 if point.tpot_s else None, digits=2)


def _load(point: BenchPoint) -> str:
    clients = f"{point.users} users" if point.users is not None else f"{point.rate_per_s:g} requests/s"
    return f"{clients}, {point.input_tokens} in, {point.output_tokens} out"


def _row(
    figure: str, band: Band | None, *, booted: float | None = None, measured: float | None = None, digits: int = 1
) -> Row:
    if band is None:
        return Row(figure=figure, planned=None, booted=booted, measured=measured, digits=digits)
    return Row(
        figure=figure,
        planned=band.typical,
        low=band.low,
        high=band.high,
        booted=booted,
        measured=measured,
        digits=digits,
    )


def _show(
    stack: str,
    record: DeploymentRecord | None,
    rate: MeasuredRate | None,
    *,
    plan: Plan,
    priced: CostPlan,
    old: Sequence[str],
) -> None:
    import sys  # noqa: PLC0415 - only for the table

    from scripts.cli.tables import console, paragraph, table  # noqa: PLC0415 - rich takes longer to load than the plan

    out = console(sys.stdout)
    if record is None:
        paragraph(
            out,
            f"Stack {stack} has no measurements for its current image and settings. After `pulumi up`, run "
            f"`gemma smoke {stack}`.",
        )
    else:
        numbers = ("planned", "band", "booted", "measured", "difference")
        shown = table(
            f"Stack {stack}: {record.model} on {record.accelerator}, measured since {record.first_seen}",
            ("figure", *numbers, "within"),
            numbers=numbers,
            least=("band", "difference"),
        )
        for row in _rows(record):
            shown.add_row(row.figure, *_cells(row))
        out.print(shown)
        if record.identity.simulated is not None:
            paragraph(out, "The server was SIMULATED. Results do not reflect real hardware.")
    if rate is not None:
        paragraph(
            out,
            f"With the measured {rate.tok_per_s:,.1f} tok/s ({rate.source}): ${priced.usd_per_million_tokens_saturated:.2f} per million output "
            f"tokens; planned ${plan.cost.usd_per_million_tokens_saturated:.2f} at {plan.throughput.saturated_tok_per_s:,.0f} tok/s "
            f"for {plan.throughput.saturated_batch} concurrent requests.",
        )
    for sentence in old:
        paragraph(out, sentence)


def _cells(row: Row) -> Iterator[str]:
    def number(value: float | None) -> str:
        return "" if value is None else f"{value:,.{row.digits}f}"

    yield "not planned" if row.planned is None else number(row.planned)
    yield "" if row.low is None or row.low == row.high else f"{number(row.low)} to {number(row.high)}"
    yield number(row.booted)
    yield number(row.measured)
    missing = row.booted is None and row.measured is None
    yield "" if row.difference is None else f"{row.difference:+.0%}"
    yield "not measured" if missing else {True: "yes", False: "NO", None: ""}[row.within]
