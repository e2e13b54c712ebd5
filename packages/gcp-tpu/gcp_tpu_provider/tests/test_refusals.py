"""Google's refusals by the table of words, and the table after a wait: a request that waited is `unknown`, because the provider reads no quota."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from gcp_tpu_provider.errors import ProjectError
from gcp_tpu_provider.http_transport import google_error
from gcp_tpu_provider.refusals import PERMISSION, read, rows
from gcp_tpu_provider.tests.cloud import FakeTpu
from gcp_tpu_provider.tests.harness import Aborted, FakeEngine, wanted
from gcp_tpu_provider.tests.test_forms import DRY, OUT_OF_STOCK
from gcp_tpu_provider.transport import Pacing

A, B = "us-east5-a", "us-east5-b"
EXPIRED = ("CREATING", "FAILED:The queued resource could not be fulfilled by its valid-until time")
UNKNOWN = "unknown: compare the quota with the request before you wait again: https://console.cloud.google.com/iam-admin/quotas?project=my-project."


@pytest.mark.parametrize("row", [row for _, row in rows()], ids=lambda row: row["words"][:40])
def test_each_row_is_read_from_its_own_words_and_reason(row: Mapping[str, Any]):
    status = max(row["code"], 400)
    for words, reason in ((row["words"], ""), ("-", row.get("reason", ""))):
        if words == "-" and not reason:
            continue
        assert read(words, reason).meaning == row["meaning"]
        error = google_error(
            status, json.dumps({"error": {"message": words, "errors": [{"reason": reason}]}}), None, "p"
        )
        names = "permission" in read(words, reason).names or row["meaning"] != PERMISSION
        assert isinstance(error, ProjectError) == (read(words, reason).stops and names)
        assert words.rstrip(".") in str(error)
        advice = read(words, reason).advice(project="p")
        assert "{" not in advice
        assert "may not exist" not in words or not read(words, reason).stops or "does not exist" in advice
    assert row["source"]


@pytest.mark.parametrize(
    ("script", "waits", "said"),
    [
        (DRY, {}, r"unknown: WAITING_FOR_RESOURCES for 10m\w*: the wait for this zone timed out"),
        (DRY, {"waitTotalS": 300}, r"unknown: WAITING_FOR_RESOURCES for 5m\w*: the total wait timed out"),
        (EXPIRED, {}, "unknown: FAILED: The queued resource could not be fulfilled by its valid-until time"),
        (("CREATING", "PROVISIONING"), {}, r"unknown: PROVISIONING for 40m\w*: the wait for this zone timed out"),
        (OUT_OF_STOCK, {}, "stock: FAILED: There is no more capacity in the zone"),
    ],
)
def test_only_googles_words_name_a_cause_and_the_programs_advice_ends_the_table(
    script: Sequence[str], waits: Mapping[str, int], said: str
):
    cloud = FakeTpu(scripts={A: tuple(script), B: OUT_OF_STOCK})
    engine = FakeEngine(cloud, Pacing())
    with pytest.raises(Aborted) as ended:
        engine.up(wanted(waitPerZoneS=600, nextSteps=["To see the quota, run `gemma doctor dev`."], **waits))
    _, first, _, *advice = ended.value.message.splitlines()
    assert re.fullmatch(rf"  {A}  {said}\.", first)
    assert (UNKNOWN in advice) == said.startswith("unknown")
    assert advice[-1] == "To see the quota, run `gemma doctor dev`."
    assert not cloud.made("/consumerQuotaMetrics/")
