"""Prices in US dollars: each with its region, its date and its URL, and overridable as a whole or in part.

`planning.data.price_list` has the list prices. A region without a known price is charged at the dearest known one, and the answer says so
(`Price.is_assumed`). A contract, a credit or a commitment changes a price: pass your own.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import date
from typing import Final, cast

from planning.data.price_list import EVERYWHERE, ROWS, SOURCES
from planning.errors import PlanningError
from planning.numbers import is_number
from planning.units import HOUR_S

MAX_AGE_DAYS: Final = 60
"""A price that is older is called old: spot prices change up to once every 30 days (Cloud TPU pricing)."""
_REGION: Final = re.compile(r"([a-z]+-[a-z]+\d+)(-[a-z])?")
_DATE: Final = re.compile(r"\d{4}-\d{2}(-\d{2})?")
_NO_REGION: Final[Mapping[str, Mapping[str, float]]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """One price as it was used."""

    key: str
    """The key of the price file."""
    region: str
    """The region that was asked for; "" where none was named."""
    usd: float
    as_of: str
    """YYYY-MM-DD or YYYY-MM; "" where the source has no date."""
    url: str
    """Where it was read; "" for a price of your own."""
    is_own: bool = False
    """Whether it comes from the price file."""
    is_assumed: bool = False
    """Whether the region's own price is not known, so that this is the dearest known one."""

    def age_days(self, today: str) -> int | None:
        """Return its age; None if it has no date. A month without a day counts from its first day."""
        return None if not self.as_of else (date.fromisoformat(today) - _day(self.as_of)).days

    def is_old(self, today: str) -> bool:
        """Return whether it is older than `MAX_AGE_DAYS`, or without a date."""
        age_days = self.age_days(today)
        return age_days is None or age_days > MAX_AGE_DAYS


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceBook:
    """Prices of everything that a deployment is billed for: here where no region is named, by region in the list."""

    as_of: str = ""
    """Date of the prices of your own."""
    regions: Mapping[str, Mapping[str, float]] = field(default_factory=lambda: _NO_REGION)
    """Prices of your own by region."""
    own: frozenset[str] = frozenset()
    """Keys of your own that hold in every region."""
    cloud_run_vcpu_usd_per_s: float = 0.000018
    cloud_run_gib_usd_per_s: float = 0.000002
    cloud_run_l4_usd_per_s: float = 0.0001867
    cloud_run_l4_redundant_usd_per_s: float = 0.0002909
    """Zonal redundancy keeps capacity free in a second zone."""
    cloud_run_rtx_pro_6000_usd_per_s: float = 0.00036522
    cloud_run_rtx_pro_6000_redundant_usd_per_s: float = 0.00056913
    v6e_flex_start_usd_per_chip_hour: float = 1.35
    v6e_spot_usd_per_chip_hour: float = 1.78
    v6e_standard_usd_per_chip_hour: float = 2.70
    v5e_flex_start_usd_per_chip_hour: float = 0.60
    v5e_spot_usd_per_chip_hour: float = 0.58
    v5e_standard_usd_per_chip_hour: float = 1.20
    v5e_commitment_1y_usd_per_chip_hour: float = 0.84
    v5e_commitment_3y_usd_per_chip_hour: float = 0.54
    v5p_spot_usd_per_chip_hour: float = 1.61
    v5p_standard_usd_per_chip_hour: float = 4.20
    gce_l4_usd_per_hour: float = 0.8536
    gce_l4x2_usd_per_hour: float = 2.0008
    gce_rtx_pro_6000_usd_per_hour: float = 4.50
    gce_a100_80gb_usd_per_hour: float = 5.0688
    gce_h100_usd_per_hour: float = 11.0612
    gce_h200_usd_per_hour: float = 10.4365
    disk_usd_per_gib_month: float = 0.10
    nat_usd_per_machine_hour: float = 0.0014
    nat_address_usd_per_hour: float = 0.005
    nat_usd_per_gib: float = 0.045
    bucket_usd_per_gib_month: float = 0.020
    registry_usd_per_gib_month: float = 0.10
    secret_usd_per_version_month: float = 0.06
    egress_usd_per_gib: float = 0.12
    between_regions_usd_per_gib: float = 0.14

    @classmethod
    def from_mapping(cls, given: Mapping[str, object]) -> "PriceBook":
        """Return the list prices with some replaced. Keys are the names of the prices above, `as_of` and `regions`.

        A price at the top holds in every region, a price below `regions` in that region.

        Raises:
            PlanningError: for an unknown key, or a price that is not a positive number.
        """
        flat = {key: value for key, value in given.items() if key not in {"as_of", "regions"}}
        regions = given.get("regions", {})
        if not isinstance(regions, Mapping):
            raise PlanningError(
                f'The price file has "regions" {regions!r}; write regions with their prices, such as '
                '{"us-east5": {"v6e_spot_usd_per_chip_hour": 1.4}}.'
            )
        changes: dict[str, object] = {"own": frozenset(flat), **_checked(flat)}
        changes["regions"] = {
            str(region): _checked_region(str(region), prices)
            for region, prices in cast("Mapping[object, object]", regions).items()
        }
        if "as_of" in given:
            changes["as_of"] = _checked_date(given["as_of"])
        return replace(cls(), **changes)  # pyright: ignore[reportArgumentType] - keys and kinds were checked above

    def price(self, key: str, place: str | None = None) -> Price:
        """Return a price in a zone or region: your own, else the list's, else the dearest known one.

        Without a place, or with a text that is no place, it is the price where no region is named.
        """
        region, rows = region_of(place) or "", ROWS[key]
        own = self.regions.get(region, {}).get(key)
        if own is None and key in self.own:
            own = self._everywhere(key)
        if own is not None:
            return Price(key=key, region=region, usd=own, as_of=self.as_of, url="", is_own=True)
        found = rows.get(region) or rows.get(EVERYWHERE)
        if found is not None:
            return self._listed(key, region, found)
        if region:
            dearest = max(rows.values())
            return replace(self._listed(key, region, dearest), is_assumed=True)
        usual = self._everywhere(key)
        nearest = min(rows.values(), key=lambda row: abs(row[0] - usual))
        return self._listed(key, region, (usual, nearest[1]))

    def tpu_chip_hour(self, generation: str, provisioning: str, place: str | None = None) -> Price:
        """Return the price of one chip for an hour. A reservation is billed like standard capacity."""
        return self.price(_chip_key(generation, provisioning), place)

    @staticmethod
    def has_chip_hour(generation: str, provisioning: str) -> bool:
        """Return whether any price of such a chip is known."""
        return _chip_key(generation, provisioning) in ROWS

    def gce_hour(self, accelerator: str) -> Price:
        """Return the price of one machine with this accelerator for an hour, in us-central1."""
        return self.price(f"gce_{_in_key(accelerator)}_usd_per_hour", "us-central1")

    def cloud_run_gpu_second(self, accelerator: str, place: str | None = None, *, zonal_redundancy: bool) -> Price:
        """Return the price of one GPU of a Cloud Run instance for a second."""
        redundant = "_redundant" if zonal_redundancy else ""
        return self.price(f"cloud_run_{_in_key(accelerator)}{redundant}_usd_per_s", place)

    def between_regions(self, source: str, target: str) -> Price:
        """Return the price of a GiB from one region to another, by their continents; within one region it costs nothing."""
        if source == target:
            return Price(key="between_regions_usd_per_gib", region=target, usd=0.0, as_of="", url="")
        key, rows = "between_regions_usd_per_gib", ROWS["between_regions_usd_per_gib"]
        if key in self.own:
            return self.price(key)
        pair = "-".join(sorted((_continent(source), _continent(target))))
        known = rows.get(pair)
        return replace(
            self._listed(key, f"{source} to {target}", known or max(rows.values())), is_assumed=known is None
        )

    def _everywhere(self, key: str) -> float:
        return float(getattr(self, key))

    @staticmethod
    def _listed(key: str, region: str, row: tuple[float, str]) -> Price:
        source = SOURCES[row[1]]
        return Price(key=key, region=region, usd=row[0], as_of=source.as_of, url=source.url)


LIST_PRICES: Final = PriceBook()


@dataclass(frozen=True, slots=True, kw_only=True)
class HourlyPart:
    """A part of what one instance, machine or slice is billed for by time."""

    name: str
    amount: float
    """Units of `price` that an hour takes."""
    unit: str
    price: Price

    @property
    def usd_per_hour(self) -> float:
        """What it costs in an hour."""
        return self.amount * self.price.usd


def slice_parts(
    book: PriceBook, *, generation: str, chips: int, provisioning: str, place: str | None
) -> tuple[HourlyPart, ...]:
    """Return what a slice costs in an hour. The plan, the teardown and the guard all price slices with it."""
    price = book.tpu_chip_hour(generation, provisioning, place)
    name = f"{chips} {generation} chip{'s' if chips > 1 else ''}, {provisioning}"
    return (HourlyPart(name=name, amount=chips, unit="chip-hour", price=price),)


def instance_parts(
    book: PriceBook, *, gpu: str | None, vcpu: float, memory_gib: float, zonal_redundancy: bool, place: str | None
) -> tuple[HourlyPart, ...]:
    """Return what one instance of Cloud Run costs in an hour. The plan, the teardown and the guard all price instances with it."""
    cpu, memory = book.price("cloud_run_vcpu_usd_per_s", place), book.price("cloud_run_gib_usd_per_s", place)
    parts = (
        HourlyPart(name=f"{vcpu:g} vCPU", amount=vcpu * HOUR_S, unit="vCPU-s", price=cpu),
        HourlyPart(name=f"{memory_gib:g} GiB", amount=memory_gib * HOUR_S, unit="GiB-s", price=memory),
    )
    if gpu is None:
        return parts
    price = book.cloud_run_gpu_second(gpu, place, zonal_redundancy=zonal_redundancy)
    return (HourlyPart(name=f"1 {gpu}", amount=HOUR_S, unit="GPU-s", price=price), *parts)


def region_of(place: str | None) -> str | None:
    """Return the region of a zone or region; None for a text that is neither."""
    found = _REGION.fullmatch(place or "")
    return found[1] if found else None


def _continent(region: str) -> str:
    name = region.partition("-")[0]
    return "us" if name == "northamerica" else name


def _chip_key(generation: str, provisioning: str) -> str:
    kind = "standard" if provisioning == "reservation" else provisioning.replace("-", "_")
    return f"{generation}_{kind}_usd_per_chip_hour"


def _in_key(accelerator: str) -> str:
    return accelerator.lower().replace(" ", "_").replace("-", "_")


def _day(text: str) -> date:
    return date.fromisoformat(text if len(text) > len("YYYY-MM") else f"{text}-01")


def _checked(given: Mapping[str, object]) -> dict[str, float]:
    """Return prices that are positive numbers with known keys. Raises PlanningError for others."""
    known = {f.name for f in fields(PriceBook)} - {"own"}
    for key, value in given.items():
        if key not in known - {"as_of", "regions"}:
            raise PlanningError(f'The price file has the unknown key "{key}"; allowed are {", ".join(sorted(known))}.')
        if not (is_number(value) and value > 0):
            raise PlanningError(f'The price "{key}" is {value!r}; it must be a number above 0, in US dollars.')
    return {key: float(cast("float", value)) for key, value in given.items()}


def _checked_region(region: str, prices: object) -> dict[str, float]:
    if region_of(region) != region or not isinstance(prices, Mapping):
        raise PlanningError(
            f'The price file has "{region}" below "regions"; write a region with its prices, such as '
            '"us-east5": {"v6e_spot_usd_per_chip_hour": 1.4}.'
        )
    return _checked(cast("Mapping[str, object]", prices))


def _checked_date(given: object) -> str:
    text = str(given)
    try:
        if _DATE.fullmatch(text):
            _day(text)
            return text
    except ValueError:
        pass
    raise PlanningError(f'The price file has "as_of" {given!r}; write a date such as "2026-11-20" or "2026-11".')
