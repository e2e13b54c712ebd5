"""The local cloud's words about capacity, which have their own sources, are read by the one module that judges quota or stock."""

import pytest

from gcp_tpu_provider.refusals import QUOTA, STOCK, UNKNOWN, kind, region_without_quota
from localcloud.services import capacity_words

CLOUD_RUN_QUOTA = (
    "You do not have quota for using GPUs with zonal redundancy (nvidia-l4 in us-east4: none left).",
    "Max instances must be set to 3 or fewer.\n\nQuota violated:\nMemAllocPerProjectRegion requested: 64 allowed: 40",
    "Quota exceeded for total allowable CPU per project per region.",
)
"""As `localcloud.services.run_limits` and `run_deployments` write them."""
WORDS = [
    (capacity_words.over_quota("TPUV6EPerProjectPerZoneForTPUAPI", 0, "us-east5-a"), QUOTA, None),
    (capacity_words.instance_over_quota("TPUS_PER_TPU_FAMILY", 0, "us-east5"), QUOTA, "us-east5"),
    (capacity_words.zone_is_empty("us-east5-a"), STOCK, None),
    (capacity_words.instance_without_stock("projects/p/zones/us-east5-a"), STOCK, None),
    (capacity_words.EXPIRED, UNKNOWN, None),
    *((words, QUOTA, None) for words in CLOUD_RUN_QUOTA),
]


@pytest.mark.parametrize(("words", "cause", "region"), WORDS)
def test_the_words_of_the_local_cloud_are_read_as_they_are_meant(words, cause, region):
    assert kind(words) == cause
    assert region_without_quota(words) == region
