"""The whole bill of a deployment, the cost of a cold start and an idle hour, and when running all the time is cheaper.

The bill includes parts that estimates often miss: disk, Cloud NAT, the bucket, the image repository, secrets, traffic. Omitted
because they are free here: logs (50 GiB per month are free, Cloud Logging pricing) and operations of the bucket (a checkpoint is
some dozen reads).
"""

import math
from collections.abc import Iterable, Iterator
from typing import Final

from gemma_serving.contracts.collector import MOST_SAMPLES, SCRAPE_INTERVAL_S
from gemma_serving.planning.cost.costs import most_usd_per_hour, parts_at, regions_of
from gemma_serving.planning.cost.subject import Subject
from gemma_serving.planning.data.overheads import constant
from gemma_serving.planning.data.prices import Price
from gemma_serving.planning.machine.hardware import MIN_BOOT_DISK_GB
from gemma_serving.planning.memory.budget import program_memory
from gemma_serving.planning.memory.host_memory import keeps_graphs, parts_bytes
from gemma_serving.planning.memory.speculation import drafter_bytes
from gemma_serving.planning.question.hub_files import hub_files
from gemma_serving.planning.question.recommendation import FUSE_MODES
from gemma_serving.planning.question.resolved import Resolved
from gemma_serving.planning.question.types import BillBasis, BillPart, RunningCosts, StartupPlan, Window, usd_per
from gemma_serving.planning.settings.observability import OBSERVABILITY_PLATFORMS
from gemma_serving.planning.settings.workload import DEFAULT_WORKLOAD
from gemma_serving.planning.units import DAY_S, GIB, HOUR_S, MONTH_H, to_gib

IMAGE_GIB: Final = 8.4
"""A vLLM image in a repository: 6 to 9 GB compressed (Docker Hub, vllm/vllm-openai and vllm/vllm-tpu tags); the upper end."""
BYTES_PER_STREAMED_TOKEN: Final = 256
"""A chunk of vLLM's stream has one token of about 4 bytes in about 250 bytes of JSON: id, object, created, model, choices."""
CLOUD_RUN_LINGER_S: Final = 900
"""Cloud Run keeps an idle instance for up to 15 minutes (Cloud Run documentation, instance autoscaling); billed in full with a GPU."""
_CENT: Final = 0.01
_MILLION: Final = 1_000_000
_DAY_H: Final = DAY_S / HOUR_S
_MONTH_DAYS: Final = MONTH_H / _DAY_H
_USED_H: Final = 8
"""Hours per day of one instance above which the alert on the cost fires by default, where none always runs."""
_WINDOWS_H: Final = (1, 2, 4, 8, 12, 24)
_BUCKET_MODES: Final = frozenset({"disk", "memory", "streamer", *FUSE_MODES})


def running_costs(subject: Subject) -> RunningCosts:
    """Return the bill and the break-even points of a deployment, at the prices of its most expensive location."""
    resolved = subject.resolved
    cost = subject.cost
    startup = subject.known_startup
    hourly = cost.usd_per_hour
    on_cloud_run = resolved.platform == "cloud-run"
    start_s = None if startup is None else usual_start_s(startup)
    idle_billing_s = CLOUD_RUN_LINGER_S if on_cloud_run else 0.0
    always_usd_per_hour, always_on = _always_on(subject)
    start_h = None if start_s is None else start_s / HOUR_S
    bill = tuple(_with_others(_bill(subject)))
    start_usd = usd_per("start", bill)
    windows: tuple[Window, ...] = ()
    if start_h is not None:
        windows = tuple(_window(hours, subject, idle_billing_s, start_h, start_usd) for hours in _WINDOWS_H)
    shortest_h: float | None = None
    even_h: float | None = _DAY_H
    if on_cloud_run:
        even_h = None if start_h is None else _DAY_H - start_h - idle_billing_s / HOUR_S
    elif hourly:
        even_h = _DAY_H * always_usd_per_hour / hourly
    if start_h is not None and resolved.platform == "tpu-vm" and always_usd_per_hour > hourly:
        # The run length N at which hourly x N / (N - start) equals the on-demand price.
        shortest_h = start_h * always_usd_per_hour / (always_usd_per_hour - hourly)
    return RunningCosts(
        bill=bill,
        cold_start_s=start_s,
        cold_start_usd=None if start_h is None else hourly * start_h + start_usd,
        idle_usd_per_hour=hourly,
        idle_billing_s=idle_billing_s,
        always_on_usd_per_month=always_usd_per_hour * MONTH_H,
        always_on=always_on,
        observability_usd_per_month=observability_usd_per_month(subject),
        collects_metrics=resolved.question.collects_on(resolved.platform),
        metrics_usd_per_month=_metrics_usd_per_month(subject),
        commitments=tuple(_commitments(subject)) if resolved.platform == "tpu-vm" else (),
        windows=windows,
        even_requests_per_day=_even_requests_per_day(subject, start_s, idle_billing_s) if on_cloud_run else None,
        even_hours_per_day=even_h,
        shortest_window_h=shortest_h,
    )


def _even_requests_per_day(subject: Subject, start_s: float | None, idle_billing_s: float) -> float | None:
    """Return how many single requests, each with a cold start, fill a day of billing; None if the start or the speed is unknown."""
    speed = subject.known_throughput
    if start_s is None or speed is None:
        return None
    answer_tokens = (subject.resolved.question.settings.workload or DEFAULT_WORKLOAD).output_tokens
    answer_s = speed.ttft_s + answer_tokens / speed.decode_tok_per_s
    return DAY_S / (start_s + answer_s + idle_billing_s)


def idle_text(subject: Subject) -> str:
    """Return the cost of a Cloud Run service without requests: its minimum instances, or else the resources that remain."""
    if subject.cost.idle_usd_per_hour:
        return f"${subject.cost.idle_usd_per_hour:.2f}/h while idle"
    stays = usd_per("month", _with_others(_bill(subject)))
    return f"${stays:.2f} per month while idle (bucket, images, alerts)"


def usual_start_s(startup: StartupPlan) -> float:
    """Return the seconds of every start except the first: with compiled graphs or programs from the bucket, if they are stored there."""
    return startup.total_s if startup.cached_total_s is None else startup.cached_total_s


def _always_on(subject: Subject) -> tuple[float, str]:
    """Return the hourly price of running all the time, and its description."""
    resolved = subject.resolved
    if resolved.platform == "cloud-run":
        return subject.cost.usd_per_hour, "one minimum instance"
    if resolved.platform in {"gce", "own"}:
        return subject.cost.usd_per_hour, "the machine"
    hourly = most_usd_per_hour(resolved, "standard")
    if hourly is None:
        return subject.cost.usd_per_hour, f"{resolved.accelerator.name}, whose price on demand is unknown"
    return hourly, f"{resolved.accelerator.name} on demand"


def _commitments(subject: Subject) -> Iterator[tuple[str, float]]:
    """Yield a month under each commitment with a known price in the most expensive location."""
    resolved = subject.resolved
    generation, chips = resolved.accelerator.generation, resolved.accelerator.chips
    place = max(subject.cost.places, key=lambda one: one.usd_per_hour).place
    for years in (1, 3):
        key = f"{generation}_commitment_{years}y_usd_per_chip_hour"
        price = resolved.prices.known(key, place)
        if price is not None and not price.is_assumed:
            yield f"{resolved.accelerator.name}, commitment of {years} y", chips * price.usd * MONTH_H


def _window(hours: float, subject: Subject, idle_billing_s: float, start_h: float, start_usd: float) -> Window:
    """Return a month with one run of some hours per day, and what each start adds to the bill.

    On Cloud Run, start and idle billing are added; on a machine the start is part of the run.
    """
    hourly = subject.cost.usd_per_hour
    if subject.resolved.platform == "cloud-run":
        billed_h = min(hours + start_h + idle_billing_s / HOUR_S, _DAY_H)
        served_h = hours
    else:
        billed_h = hours
        # A flex-start run of 24 h per day expires and starts again; one machine cannot run longer than the day.
        served_h = max(hours - start_h, 0.0)
    usd = hourly * billed_h + start_usd
    per_served = usd / served_h if served_h > 0 else math.inf
    return Window(hours_per_day=hours, usd_per_month=usd * _MONTH_DAYS, usd_per_served_hour=per_served)


def _bill(subject: Subject) -> Iterator[BillPart]:
    resolved = subject.resolved
    highest = max(subject.cost.places, key=lambda one: one.usd_per_hour).place
    for part in parts_at(resolved, highest):
        yield _part(part.name, part.amount, part.unit, "hour", part.price)
    if resolved.platform == "tpu-vm":
        per_hour = resolved.prices.price("disk_usd_per_gib_month", highest)
        disk_gib = resolved.question.tpu.boot_disk_size_gb or MIN_BOOT_DISK_GB
        yield _part(f"boot disk, {disk_gib} GiB", disk_gib / MONTH_H, "GiB-month", "hour", per_hour)
    if resolved.platform == "own":
        return
    yield from _nat(subject)
    yield from _stored(subject)
    yield from observability_parts(subject)
    if subject.known_throughput is None:
        return
    gib_per_hour = subject.known_throughput.saturated_tok_per_s * HOUR_S * BYTES_PER_STREAMED_TOKEN / GIB
    yield _part("responses", gib_per_hour, "GiB", "busy hour", resolved.prices.price("egress_usd_per_gib"))


def _nat(subject: Subject) -> Iterator[BillPart]:
    """Yield Cloud NAT: a machine without an external address uses it for the hub and docker's package; Google's APIs do not need it."""
    resolved = subject.resolved
    from_hub = _is_from_hub(resolved)
    installs = resolved.is_tpu and resolved.question.tpu.api == "compute-engine"
    if not installs and not (from_hub and (resolved.is_tpu or resolved.service.direct_vpc)):
        return
    book = resolved.prices
    yield _part("Cloud NAT, gateway", 1, "machine-hour", "hour", book.price("nat_usd_per_machine_hour"))
    yield _part("Cloud NAT, address", 1, "hour", "hour", book.price("nat_address_usd_per_hour"))
    if not from_hub:
        return
    gib = to_gib(drafter_bytes(resolved)) + (subject.memory.checkpoint_gib if resolved.weights_mode == "hub" else 0)
    yield _part("Cloud NAT, weights from the hub", gib, "GiB", "start", book.price("nat_usd_per_gib"))
    if _others_pull_upstream(resolved):
        name = f"Cloud NAT, image outside {regions_of(resolved)[0]}"
        yield _part(name, IMAGE_GIB, "GiB", "start", book.price("nat_usd_per_gib"))


def _is_from_hub(resolved: Resolved) -> bool:
    return resolved.weights_mode == "hub" or any(hub_files(resolved))


def _others_pull_upstream(resolved: Resolved) -> bool:
    """Return whether machines outside the first region pull the image from Docker Hub (components.serving_image) through the stack's Cloud NAT."""
    return resolved.is_tpu and _is_from_hub(resolved) and len(regions_of(resolved)) > 1


def _stored(subject: Subject) -> Iterator[BillPart]:
    """Yield storage for as long as the stack exists, and the transfer of weights to another region."""
    resolved, regions = subject.resolved, regions_of(subject.resolved)
    gib = subject.memory.checkpoint_gib + (to_gib(parts_bytes(resolved)) if resolved.question.facts.staged_parts else 0)
    book = resolved.prices
    home = resolved.question.settings.bucket.region or (regions[0] if regions else None)
    if resolved.weights_mode in _BUCKET_MODES:
        price = book.price("bucket_usd_per_gib_month", home)
        yield _part(f"bucket{f' in {home}' if home else ''}", gib, "GiB-month", "month", price)
        yield from _between_regions(resolved, "weights", gib, home)
    image_gib = IMAGE_GIB + (gib if resolved.weights_mode == "image" else 0)
    copies = 1 if _others_pull_upstream(resolved) else max(len(regions), 1)
    name = f"image repository, {copies} regions" if copies > 1 else "image repository"
    if resolved.question.settings.image.is_stored:
        yield _part(name, copies * image_gib, "GiB-month", "month", book.price("registry_usd_per_gib_month"))
    if keeps_graphs(resolved):
        price = book.price("bucket_usd_per_gib_month", home)
        yield _part("compiled graphs in the bucket", constant("GRAPH_CACHE_GIB"), "GiB-month", "month", price)
    if resolved.weights_mode == "hub":
        yield _part("secret", 1, "version-month", "month", book.price("secret_usd_per_version_month"))
    yield from archive_parts(resolved)


def archive_parts(resolved: Resolved) -> Iterator[BillPart]:
    """Yield the archive of a TPU VM's compiled programs: storage, the key that signs it, and its transfer to another region; none without one.

    Its size is assumed: the code of the programs on one device, uncompressed.
    """
    if resolved.platform != "tpu-vm" or resolved.capacity.compile_cache != "bucket":
        return
    regions, book, gib = regions_of(resolved), resolved.prices, program_memory(resolved).code_gib
    home = resolved.question.settings.bucket.region or (regions[0] if regions else None)
    price = book.price("bucket_usd_per_gib_month", home)
    yield _part("compiled programs in the bucket", gib, "GiB-month", "month", price)
    key_price = book.price("secret_usd_per_version_month")
    yield _part("key of the compiled programs", 1, "version-month", "month", key_price)
    yield from _between_regions(resolved, "compiled programs", gib, home)


def _between_regions(resolved: Resolved, what: str, gib: float, home: str | None) -> Iterator[BillPart]:
    """Yield the transfer from the bucket to the region to which it costs most; none if all zones are in the bucket's region."""
    others = [region for region in regions_of(resolved) if home and region != home]
    away = [(resolved.prices.between_regions(home or "", region), region) for region in others]
    if away:
        price, region = max(away, key=lambda one: one[0].usd)
        yield _part(f"{what} from {home} to {region}", gib, "GiB", "start", price)


def observability_parts(subject: Subject, *, collects: bool | None = None) -> Iterator[BillPart]:
    """Yield the conditions of alerts, and the samples of metrics; `collects` is the deployment's own by default."""
    resolved = subject.resolved
    book = resolved.prices
    if resolved.platform not in OBSERVABILITY_PLATFORMS:
        return
    collects = resolved.collects if collects is None else collects
    if resolved.question.settings.alerts.enabled:
        from gemma_serving.contracts.alerts import alerts_of  # noqa: PLC0415 - 3 ms, and only stacks have alerts

        target = "cloud-run" if resolved.platform == "cloud-run" else "tpu"
        conditions = sum(
            len(alert.conditions)
            for alert in alerts_of(target, collects=collects, has_all=resolved.question.settings.alerts.has_all)
        )
        price = book.price("alert_condition_usd_per_month")
        yield _part("alert conditions", conditions, "condition-month", "month", price)
    if collects:
        per_hour = MOST_SAMPLES * resolved.dp * HOUR_S / SCRAPE_INTERVAL_S / _MILLION
        price = book.price("metric_usd_per_million_samples")
        yield _part("metric samples", per_hour, "million samples", "hour", price)


def observability_usd_per_month(subject: Subject, *, collects: bool | None = None) -> float:
    """Return the maximum cost of alerts and metrics in a month in which one instance or machine always runs."""
    parts = observability_parts(subject, collects=collects)
    return sum(part.usd * (MONTH_H if part.basis == "hour" else 1) for part in parts)


def daily_limit_usd(subject: Subject) -> float | None:
    """Return the cost per day above which the alert Daily cost fires, or None without that alert."""
    resolved = subject.resolved
    alerts = resolved.question.settings.alerts
    if not alerts.enabled or resolved.platform not in OBSERVABILITY_PLATFORMS:
        return None
    if resolved.platform != "cloud-run":
        return alerts.daily_cost if resolved.collects else None
    always = resolved.question.cloud_run.min_instances * _DAY_H
    return alerts.daily_cost or subject.cost.usd_per_hour * (always or _USED_H)


def _metrics_usd_per_month(subject: Subject) -> float | None:
    """Return the cost of the collector and the alerts that need it, on or off; None without alerts and collector."""
    if not any(observability_parts(subject)):
        return None
    return observability_usd_per_month(subject, collects=True) - observability_usd_per_month(subject, collects=False)


def _part(name: str, amount: float, unit: str, basis: BillBasis, price: Price) -> BillPart:
    return BillPart(name=name, amount=amount, unit=unit, basis=basis, usd=amount * price.usd, price=price)


def _with_others(parts: Iterable[BillPart]) -> Iterator[BillPart]:
    """Yield the parts of at least a cent, then for each basis the sum of the others."""
    small: dict[BillBasis, list[BillPart]] = {}
    for part in parts:
        if part.usd >= _CENT:
            yield part
        else:
            small.setdefault(part.basis, []).append(part)
    for basis, others in small.items():
        names = "; ".join(part.name for part in others)
        usd = sum(part.usd for part in others)
        yield BillPart(name=f"other ({names})", amount=1, unit=basis, basis=basis, usd=usd, price=None)


def bill_text(subject: Subject) -> str:
    """Return the whole bill in one line: per hour, while idle, and maximum. Empty without a known price."""
    cost, resolved = subject.cost, subject.resolved
    if not cost.is_known:
        return ""
    parts = " + ".join(f"{name} ${price:.2f}" for name, price in cost.parts_usd_per_hour)
    idle = f"; {idle_text(subject)}" if resolved.platform == "cloud-run" else ""
    observability_usd = observability_usd_per_month(subject)
    what = "alerts and metrics" if resolved.collects else "alerts"
    is_in_idle = resolved.platform == "cloud-run" and not cost.idle_usd_per_hour and not resolved.collects
    observability = f"; {what} up to ${observability_usd:.2f} per month" if observability_usd and not is_in_idle else ""
    daily_usd = daily_limit_usd(subject)
    observability += f"; an alert above ${daily_usd:.2f} per day" if daily_usd else ""
    return (
        f"${cost.usd_per_hour:.2f}/h ({parts}){_range(subject)}{idle}{observability}; ${cost.most_usd:,.2f} maximum "
        f"({cost.most_usd_basis}); prices of {cost.prices_as_of or 'an unknown date'}."
    )


def _range(subject: Subject) -> str:
    """Return the price range per hour if it differs by zone. The most expensive zone counts until one is granted."""
    cost = subject.cost
    if cost.usd_per_hour - cost.lowest_usd_per_hour < _CENT:
        return ""
    cheapest = min(cost.places, key=lambda one: one.usd_per_hour)
    highest = max(cost.places, key=lambda one: one.usd_per_hour)
    return f" in {highest.place}, the most expensive zone; ${cheapest.usd_per_hour:.2f}/h in {cheapest.place}"
