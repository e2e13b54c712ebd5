"""List prices in US dollars as data: one row for each key and region, with the source and the date of the figure.

`planning.data.prices` reads it. A region that is missing has no price that was found; nothing here is guessed from a neighbour. The region `""`
is a price that is the same in every region. A source without a date (`as_of` is "") is old by definition: it is shown as such.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class PriceSource:
    """Where a price was read, and when it was right."""

    url: str
    as_of: str
    """YYYY-MM-DD, or "" where the source has no date."""


EVERYWHERE: Final = ""

_GEMMA4_DEV = "https://github.com/xbill9/gemma4-dev/blob/4cf2d8b"
SOURCES: Final[Mapping[str, PriceSource]] = {
    # Cloud Billing Catalog as a public log quotes it.
    "billing-v5e": PriceSource(f"{_GEMMA4_DEV}/gce-vllm-v5p1-2b/v5e.md", "2026-08-06"),
    "billing-v6e": PriceSource(f"{_GEMMA4_DEV}/HARDWARE.md", "2026-08-07"),
    "billing-flex": PriceSource(
        f"{_GEMMA4_DEV}/gce-vllm-v6e1-2b/benchmarks/runs/2026-08-10-gce-flex-v6e1/REPORT.md", "2026-08-10"
    ),
    # Google's own page, as a public document quotes it with this date.
    "tpu-page": PriceSource("https://cloud.google.com/tpu/pricing", "2026-10-02"),
    # Made from the Cloud Billing Catalog; the commit's date could not be read. A price of 700.0 in it means "not known".
    "catalog": PriceSource(
        "https://github.com/skypilot-org/skypilot-catalog/blob/2c3d7ea7d76bf84cf80d382e946c1609571485fd/catalogs/v9/gcp/vms.csv",
        "",
    ),
    # A public document of that day or later quotes the page.
    "run-page": PriceSource("https://cloud.google.com/run/pricing", "2026-09-19"),
    "run-page-may": PriceSource("https://cloud.google.com/run/pricing", "2026-05-24"),
    # Tier 2, from memory of the page.
    "run-page-tier-2": PriceSource("https://cloud.google.com/run/pricing", ""),
    # Nobody wrote down when these were read.
    "gce-page": PriceSource("https://cloud.google.com/compute/gpus-pricing", ""),
    "gce-page-may": PriceSource("https://cloud.google.com/compute/gpus-pricing", "2026-05-24"),
    "disk-page": PriceSource("https://cloud.google.com/compute/disks-image-pricing", ""),
    "nat-page": PriceSource("https://cloud.google.com/nat/pricing", ""),
    "storage-page": PriceSource("https://cloud.google.com/storage/pricing", ""),
    "registry-page": PriceSource("https://cloud.google.com/artifact-registry/pricing", ""),
    "secret-page": PriceSource("https://cloud.google.com/secret-manager/pricing", ""),
    "network-page": PriceSource("https://cloud.google.com/vpc/network-pricing", ""),
    "egress-page": PriceSource("https://egresscost.com/gcp/regions", "2026-04-01"),
}

Rows = Mapping[str, tuple[float, str]]
"""The price of each region, and the name of its source."""


def _each(source: str, prices: Mapping[str, float]) -> dict[str, tuple[float, str]]:
    return {region: (usd, source) for region, usd in prices.items()}


def _same(source: str, usd: float, *regions: str) -> dict[str, tuple[float, str]]:
    return dict.fromkeys(regions or (EVERYWHERE,), (usd, source))


_US_V6E: Final = ("us-central1", "us-east1", "us-east4", "us-east5", "us-south1", "us-west1")
_US_V5E: Final = ("us-central1", "us-east1", "us-east5", "us-west1")
_RUN_TIER_1: Final = ("us-central1", "us-east4", "europe-west1", "europe-west4")
"""Regions of tier 1 that have GPUs; asia-southeast1 is tier 2 (firebase-tools 15.1.0, lib/deploy/functions/pricing.js)."""

ROWS: Final[Mapping[str, Rows]] = {
    # One chip for an hour.
    "v6e_flex_start_usd_per_chip_hour": {
        **_same("billing-flex", 1.35, "us-east5", "europe-west4"),
        **_same("tpu-page", 1.35, "asia-northeast1"),
    },
    "v6e_spot_usd_per_chip_hour": {
        **_each("billing-flex", {"us-east5": 1.4033, "europe-west4": 1.782}),
        **_each(
            "catalog",
            {
                "asia-northeast1": 1.45707,
                "asia-south1": 1.38895,
                "asia-southeast1": 0.2673,
                "us-central1": 0.592665,
                "us-east1": 0.592665,
                "us-east4": 0.344911,
                "us-south1": 1.218375,
                "us-west1": 0.592665,
            },
        ),
    },
    "v6e_standard_usd_per_chip_hour": {
        **_same("billing-v6e", 2.70, *_US_V6E),
        **_each("billing-v6e", {"europe-west4": 2.97, "europe-west2": 3.24, "asia-south1": 3.24}),
        **_each("tpu-page", {"asia-northeast1": 3.24}),
        **_each("catalog", {"asia-southeast1": 2.97, "southamerica-west1": 2.70}),
    },
    "v5e_flex_start_usd_per_chip_hour": {
        **_same("billing-v5e", 0.60, "us-west4"),
        **_same("tpu-page", 0.60, "asia-southeast1"),
    },
    "v5e_spot_usd_per_chip_hour": {
        **_each("billing-v5e", {"us-west4": 0.5779}),
        **_each(
            "catalog",
            {
                "asia-southeast1": 0.78,
                "europe-west1": 0.528528,
                "europe-west4": 0.51011,
                "us-central1": 0.29771,
                "us-east1": 0.29771,
                "us-east5": 0.60,
                "us-south1": 0.654193,
                "us-west1": 0.29771,
            },
        ),
    },
    "v5e_standard_usd_per_chip_hour": {
        **_same("billing-v5e", 1.20, "us-west4"),
        **_same("tpu-page", 1.56, "asia-southeast1"),
        **_same("catalog", 1.20, *_US_V5E),
        **_each(
            "catalog",
            {"europe-west1": 1.32132, "europe-west4": 1.56, "southamerica-west1": 1.716, "us-south1": 1.416},
        ),
    },
    "v5p_spot_usd_per_chip_hour": _each(
        "catalog",
        {
            "europe-west1": 1.6098625,
            "europe-west4": 1.043435,
            "us-central1": 0.78049,
            "us-east1": 0.78049,
            "us-east5": 1.2999525,
            "us-south1": 0.785835,
        },
    ),
    "v5p_standard_usd_per_chip_hour": _each(
        "catalog",
        {
            "europe-west1": 4.459455,
            "europe-west4": 4.2525,
            "us-central1": 4.20,
            "us-east1": 4.20,
            "us-east5": 4.20,
            "us-south1": 4.779,
        },
    ),
    # Commitments: of v6e none was found.
    "v5e_commitment_1y_usd_per_chip_hour": _same("billing-v5e", 0.84, "us-west4"),
    "v5e_commitment_3y_usd_per_chip_hour": _same("billing-v5e", 0.54, "us-west4"),
    # Cloud Run, instance-based billing.
    "cloud_run_vcpu_usd_per_s": {
        **_same("run-page", 0.000018, *_RUN_TIER_1),
        **_each("run-page-tier-2", {"asia-southeast1": 0.0000216}),
    },
    "cloud_run_gib_usd_per_s": {
        **_same("run-page", 0.000002, *_RUN_TIER_1),
        **_each("run-page-tier-2", {"asia-southeast1": 0.0000024}),
    },
    "cloud_run_l4_usd_per_s": _same("run-page", 0.0001867, *_RUN_TIER_1),
    "cloud_run_l4_redundant_usd_per_s": _same("run-page", 0.0002909, *_RUN_TIER_1),
    "cloud_run_rtx_pro_6000_usd_per_s": _same("run-page", 0.00036522, *_RUN_TIER_1),
    "cloud_run_rtx_pro_6000_redundant_usd_per_s": _same("run-page-may", 0.00056913, *_RUN_TIER_1),
    # Compute Engine, one machine for an hour, vCPU and memory included; H200 is an eighth of a3-ultragpu-8g.
    "gce_l4_usd_per_hour": _same("gce-page", 0.8536, "us-central1"),
    "gce_l4x2_usd_per_hour": _same("gce-page", 2.0008, "us-central1"),
    "gce_rtx_pro_6000_usd_per_hour": _same("gce-page-may", 4.50, "us-central1"),
    "gce_a100_80gb_usd_per_hour": _same("gce-page", 5.0688, "us-central1"),
    "gce_h100_usd_per_hour": _same("gce-page", 11.0612, "us-central1"),
    "gce_h200_usd_per_hour": _same("gce-page", 10.4365, "us-central1"),
    # What stands around the server. Disk: a balanced persistent disk.
    "disk_usd_per_gib_month": _same("disk-page", 0.10, "us-central1", "us-east5"),
    "nat_usd_per_machine_hour": _same("nat-page", 0.0014),
    "nat_address_usd_per_hour": _same("nat-page", 0.005),
    "nat_usd_per_gib": _same("nat-page", 0.045),
    "bucket_usd_per_gib_month": {
        **_same("storage-page", 0.020, "us-central1", "us-east1", "us-east5", "us-south1", "us-west1", "europe-west1"),
        **_same("storage-page", 0.023, "us-east4", "us-west2", "us-west3", "us-west4", "northamerica-northeast1"),
        **_same("storage-page", 0.026, "northamerica-south1"),
    },
    "registry_usd_per_gib_month": _same("registry-page", 0.10),
    "secret_usd_per_version_month": _same("secret-page", 0.06),
    # Answers to most of the world; to Australia, Indonesia, Korea and South America 0.19.
    "egress_usd_per_gib": _same("egress-page", 0.12),
    # Between regions, by the pair of continents in the order of the alphabet.
    "between_regions_usd_per_gib": _each(
        "network-page",
        {
            "europe-us": 0.05,
            "us-us": 0.02,
            "asia-asia": 0.08,
            "asia-southamerica": 0.14,
            "europe-southamerica": 0.14,
            "southamerica-southamerica": 0.14,
            "southamerica-us": 0.14,
        },
    ),
}
"""By key: the key of the price file, which is a field of `planning.data.prices.PriceBook`."""
