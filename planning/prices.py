"""List prices in US dollars, dated, and overridable as a whole or in part.

Sources: Cloud Run pricing (GPU without zonal redundancy, instance-based billing), Cloud TPU pricing (flex-start, spot, on demand; one
chip-hour), Compute Engine pricing of accelerator-optimized machines in us-central1 (vCPU and memory included; H200: an eighth of
a3-ultragpu-8g). A region, a commitment or a contract changes them: pass your own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Final, cast

from planning.errors import PlanningError

AS_OF: Final = "2026-11"


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceBook:
    """Prices of everything that a deployment is billed for."""

    as_of: str = AS_OF
    cloud_run_vcpu_usd_per_s: float = 0.000018
    cloud_run_gib_usd_per_s: float = 0.000002
    cloud_run_l4_usd_per_s: float = 0.0001867
    cloud_run_rtx_pro_6000_usd_per_s: float = 0.00036522
    cloud_run_zonal_redundancy_factor: float = 1.5
    """Zonal redundancy keeps capacity free in a second zone; L4: 0.00028 instead of 0.0001867 a second."""
    v6e_flex_start_usd_per_chip_hour: float = 1.35
    v6e_spot_usd_per_chip_hour: float = 1.78
    v6e_standard_usd_per_chip_hour: float = 2.70
    v5e_flex_start_usd_per_chip_hour: float = 0.60
    v5e_spot_usd_per_chip_hour: float = 0.58
    v5e_standard_usd_per_chip_hour: float = 1.20
    gce_l4_usd_per_hour: float = 0.8536
    gce_l4x2_usd_per_hour: float = 2.0008
    gce_rtx_pro_6000_usd_per_hour: float = 4.50
    gce_a100_80gb_usd_per_hour: float = 5.0688
    gce_h100_usd_per_hour: float = 11.0612
    gce_h200_usd_per_hour: float = 10.4365

    @classmethod
    def from_mapping(cls, given: Mapping[str, object]) -> "PriceBook":
        """Return the list prices with some replaced. Keys are the names of the fields above.

        Raises:
            PlanningError: for an unknown key, or a price that is not a positive number.
        """
        known = {f.name for f in fields(cls)}
        for key, value in given.items():
            if key not in known:
                raise PlanningError(
                    f'The price file has the unknown key "{key}"; allowed are {", ".join(sorted(known))}.'
                )
            if key != "as_of" and (isinstance(value, bool) or not isinstance(value, int | float) or not value > 0):
                raise PlanningError(f'The price "{key}" is {value!r}; it must be a number above 0, in US dollars.')
        changes = {key: str(value) if key == "as_of" else float(cast("float", value)) for key, value in given.items()}
        return replace(cls(), **changes)  # pyright: ignore[reportArgumentType] - keys and kinds were checked above

    def tpu_chip_hour_usd(self, generation: str, provisioning: str) -> float:
        """Return the price of one chip for an hour. A reservation is billed like standard capacity."""
        kind = "standard" if provisioning == "reservation" else provisioning.replace("-", "_")
        return float(getattr(self, f"{generation}_{kind}_usd_per_chip_hour"))

    def gce_hour_usd(self, accelerator: str) -> float:
        """Return the price of one machine with this accelerator for an hour."""
        return float(getattr(self, f"gce_{accelerator.lower().replace(' ', '_').replace('-', '_')}_usd_per_hour"))

    def cloud_run_gpu_usd_per_s(self, accelerator: str, *, zonal_redundancy: bool) -> float:
        """Return the price of one GPU of a Cloud Run instance for a second."""
        price = self.cloud_run_l4_usd_per_s if accelerator == "L4" else self.cloud_run_rtx_pro_6000_usd_per_s
        return price * (self.cloud_run_zonal_redundancy_factor if zonal_redundancy else 1.0)


LIST_PRICES: Final = PriceBook()
