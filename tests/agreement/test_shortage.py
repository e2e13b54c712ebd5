"""The local cloud's words about capacity, which have their own sources, are read by the one module that reads them."""

import pytest

from gcp_tpu_provider.refusals import NOT_OFFERED, QUOTA, STOCK, UNKNOWN, kind, region_without_quota
from localcloud.services import capacity_words

ZONE = "us-east5-a"
WORDS = {
    "EXPIRED": (capacity_words.EXPIRED, UNKNOWN, None),
    "over_quota": (capacity_words.over_quota("TPUV6EPerProjectPerZoneForTPUAPI", 0, ZONE), QUOTA, None),
    "zone_is_empty": (capacity_words.zone_is_empty(ZONE), STOCK, None),
    "instance_over_quota": (
        capacity_words.instance_over_quota("TPUS_PER_TPU_FAMILY", 0, "us-east5"),
        QUOTA,
        "us-east5",
    ),
    "instance_without_stock": (capacity_words.instance_without_stock(f"projects/p/zones/{ZONE}"), STOCK, None),
    "zone_without_accelerator": (capacity_words.zone_without_accelerator("v6e-8", ZONE), NOT_OFFERED, None),
    "zone_without_machine_type": (
        capacity_words.zone_without_machine_type("ct6e-standard-8t", ZONE),
        NOT_OFFERED,
        None,
    ),
    "unknown_location": (capacity_words.unknown_location("mars"), NOT_OFFERED, None),
}
"""Each sentence of the local cloud, its meaning, and the region whose quota it names."""


@pytest.mark.parametrize("name", [name for name in vars(capacity_words) if name[0] != "_" and name != "Final"])
def test_the_words_of_the_local_cloud_are_read_as_they_are_meant(name):
    words, cause, region = WORDS[name]
    assert kind(words) == cause
    assert region_without_quota(words) == region
