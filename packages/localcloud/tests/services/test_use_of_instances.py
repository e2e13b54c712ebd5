"""The one metric of Cloud Monitoring: how long instances of Cloud Run services were billed."""

from datetime import UTC, datetime, timedelta

import pytest

from localcloud.services.monitoring import METRIC
from localcloud.tests.services.test_run_rules import PLAIN, deploy

PROJECT = "local-project"
PATH = f"/monitoring/v3/projects/{PROJECT}/timeSeries"


def query(cloud, **changes):
    now = cloud.cloud.timeline.now()
    found = {
        "filter": f'metric.type="{METRIC}" AND resource.labels.service_name="svc" AND resource.labels.location="us-east4"',
        "interval.startTime": (now - timedelta(hours=10)).isoformat(),
        "interval.endTime": now.isoformat(),
        "aggregation.alignmentPeriod": "3600s",
        "aggregation.perSeriesAligner": "ALIGN_SUM",
    }
    return {key: value for key, value in {**found, **changes}.items() if value is not None}


def used_s(answer):
    return [sum(point["value"]["doubleValue"] for point in series["points"]) for series in answer.get("timeSeries", [])]


def test_the_time_of_an_instance_adds_up_from_the_first_ready_revision_on(own_cloud, own_client):
    deploy(own_client, "svc", PLAIN)
    deploy(own_client, "other", PLAIN)
    own_cloud.cloud.timeline.advance(2 * 3600 + 210)
    answer = own_client.ok("GET", PATH, **query(own_cloud))
    assert used_s(answer) == [pytest.approx(7200, abs=60)]
    assert answer["timeSeries"][0]["resource"]["labels"]["service_name"] == "svc"
    assert len(answer["timeSeries"][0]["points"]) in {2, 3}


def test_the_last_minutes_cannot_be_read_yet(own_cloud, own_client):
    deploy(own_client, "svc", PLAIN)
    own_cloud.cloud.timeline.advance(200)
    assert used_s(own_client.ok("GET", PATH, **query(own_cloud))) == []


@pytest.mark.parametrize(
    "changes",
    [{"interval.endTime": None}, {"aggregation.alignmentPeriod": "30s"}, {"interval.startTime": "yesterday"}],
    ids=["no end", "short period", "no time"],
)
def test_requests_without_an_end_or_with_a_shorter_period_are_refused(own_cloud, own_client, changes):
    assert own_client.error("GET", PATH, **query(own_cloud, **changes))[0] == 400


@pytest.mark.parametrize(
    "changes",
    [{"filter": 'metric.type="compute.googleapis.com/x"'}, {"aggregation.perSeriesAligner": "ALIGN_RATE"}],
    ids=["another metric", "another aligner"],
)
def test_what_is_not_modelled_is_no_empty_answer(own_cloud, own_client, changes):
    assert own_client.error("GET", PATH, **query(own_cloud, **changes))[0] == 501


def test_the_answer_is_of_now(own_cloud, own_client):
    deploy(own_client, "svc", PLAIN)
    own_cloud.cloud.timeline.advance(3600)
    assert datetime.fromisoformat(query(own_cloud)["interval.endTime"]) > datetime.now(UTC)
