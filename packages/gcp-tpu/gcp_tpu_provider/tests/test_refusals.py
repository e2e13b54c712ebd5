"""Google's refusals by the table of words, and the table after a wait: a request that waited is `unknown`, because the provider reads no quota."""

import json
import re
import subprocess
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


def asked(
    words: str, status: int = 403, zones: Sequence[str] = (A, B, "us-west1-c"), **inputs: Any
) -> tuple[list[str], str]:
    """Return the zones of which a request was sent to Google, and the table, if each zone refuses in these words."""
    refusals = {
        zone: google_error(status, json.dumps({"error": {"message": words.replace("ZONE", zone)}}), None, "p")
        for zone in zones
    }
    cloud = FakeTpu(refusals=refusals)
    with pytest.raises(Aborted) as ended:
        FakeEngine(cloud, Pacing()).up(wanted(zones=[*zones], **inputs))
    sent = [call for call in cloud.calls if call.startswith("POST")]
    return [zone for zone in zones if any(zone in call for call in sent)], ended.value.message


@pytest.mark.parametrize(
    ("words", "status", "count"),
    [
        ("Operation denied by org policy.", 403, 2),
        ("Request had insufficient authentication scopes. [EID: 0x945ef875d10e8e13]", 403, 2),
        ("A target reservation must be specified when the host project has at least one", 400, 2),
        ("Something is refused in ZONE.", 403, 3),
        ("Something is refused in us-east5 and us-west1.", 403, 3),
        ("There is no more capacity", 429, 3),
        ("Quota limit 'X' has been exceeded.", 429, 3),
    ],
)
def test_the_same_words_of_two_zones_that_name_no_zone_end_the_tour(words: str, status: int, count: int):
    zones, table = asked(words, status)
    assert len(zones) == count
    is_over = "  us-west1-c  about the project: not requested: two zones refused in the same words." in table
    assert is_over == (count == 2)
    assert ("\nabout the project: two zones refused in the same words" in table) == is_over


COMMAND = re.compile(r"`([^`]+)`")
FILLED = {"YOUR_EMAIL", "ACCOUNT_ID", "ZONE", "PROJECT"}
"""What a user knows and writes into a command."""


@pytest.mark.parametrize("row", [row for _, row in rows()], ids=lambda row: row["words"][:40])
def test_each_printed_command_can_be_run_and_has_no_word_that_no_user_can_fill(row: Mapping[str, Any]):
    for names in ({"project": "p", "consumer": "p"}, {"project": "p"}, {}):
        for command in COMMAND.findall(read(row["words"], row.get("reason", "")).advice(**names)):
            if " " not in command or not command.startswith("gcloud "):
                continue
            subprocess.run(["sh", "-n", "-c", command], check=True)
            placeholders = {word for word in re.findall(r"[A-Z][A-Z_]{2,}", command) if word not in FILLED}
            assert not placeholders, command
            assert "--role= " not in f"{command} "


@pytest.mark.parametrize("unit", ["day", "Day", "minute", "100 seconds"])
@pytest.mark.parametrize("limit", ["Read requests per {}", "DefaultRequestsPer{}PerProject"])
@pytest.mark.parametrize(
    "frame",
    [
        "Quota exceeded for quota metric 'Requests' and limit '{}' of service 'tpu.googleapis.com'",
        "Quota exceeded for quota group 'ReadGroup' and limit '{}' of service 'compute.googleapis.com'",
        "Insufficient tokens for quota 'tpu.googleapis.com/requests' and limit '{}'",
    ],
)
@pytest.mark.parametrize("reason", ["", "RATE_LIMIT_EXCEEDED", "rateLimitExceeded"])
def test_the_limit_says_when_calls_are_possible_again_and_not_the_metric(
    frame: str, limit: str, unit: str, reason: str
):
    meaning = read(frame.format(limit.format(unit)), reason).meaning
    assert meaning == ("calls per day" if unit.lower() == "day" else "calls per minute")
    assert (
        read(
            "Quota exceeded for quota metric 'Chips' and limit 'ChipsPerProjectPerRegion' of service 'x'", reason
        ).meaning
        == "quota"
    )
