"""The provider's table and the product's `status` call the same words and the same quotas quota, stock or unknown."""

import pytest

from gcp_tpu_provider.machines import GENERATIONS, chip_quota
from gcp_tpu_provider.refusals import QUOTA, STOCK, UNKNOWN, kind
from gcp_tpu_provider.tests.test_quota_or_stock import WORDS
from gemma_serving.cloud.quotas import tpu_quota
from gemma_serving.cloud.shortage import cause_of
from gemma_serving.planning.machine.hardware import ACCELERATORS, api_accelerator_type


@pytest.mark.parametrize(("words", "cause"), [pair for pair in WORDS if pair[1] in {QUOTA, STOCK, UNKNOWN}])
def test_both_read_googles_words_alike(words, cause):
    assert kind(words) == cause
    assert cause_of(words) == cause


@pytest.mark.parametrize("form", ["flex-start", "spot", "standard"])
def test_both_read_the_same_quota_of_each_form(form):
    names = {api_accelerator_type(one.name) for one in ACCELERATORS.values() if one.is_tpu}
    compared = 0
    for name in sorted(name for name in names if name.rpartition("-")[0] in GENERATIONS):
        ours, theirs = tpu_quota(name, form), chip_quota(name, preemptible=form != "standard")
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            assert (ours.metric, ours.quota_id) == (theirs.metric, theirs.id)
            compared += 1
    assert compared > 3
