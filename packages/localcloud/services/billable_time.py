"""Cloud Monitoring's time series of one metric: billed instance time of Cloud Run services."""

import re
from datetime import UTC, datetime, timedelta

from localcloud.json_values import JsonObject
from localcloud.rest.call import Call
from localcloud.rest.errors import CloudError
from localcloud.services.run_deployments import REVISIONS, SERVICES
from localcloud.services.service import ApiService, listing, method
from localcloud.world.cloud import Cloud
from localcloud.world.timeline import rfc3339

METRIC = "run.googleapis.com/container/billable_instance_time"
_LAG = timedelta(seconds=210)
"""Google samples most metrics once a minute and shows them some minutes later; this value is assumed."""
_COMPARED = re.compile(r'([a-z_.]+)\s*=\s*"([^"]*)"')
_KNOWN = {"metric.type", "resource.type", "resource.labels.service_name", "resource.labels.location"}


class UseOfInstances(ApiService):
    """Lists the metric. One instance runs from the time that a service's first revision is ready; the local cloud has no others."""

    prefix = "monitoring.projects.timeSeries"

    @method("list")
    def list_all(self, call: Call) -> JsonObject:
        """Return one series per service, with a point for each alignment period, newest first."""
        wanted, start, end, period = _read(call)
        end = min(end, self._cloud.timeline.now() - _LAG)
        found: list[tuple[str, JsonObject]] = []
        for name, _ in self._store.under(SERVICES, f"{call.name}/locations/"):
            _, project, _, location, _, service = name.split("/")
            ready = _ready_since(self._cloud, name)
            labels = {"project_id": project, "location": location, "service_name": service}
            chosen = all(labels[key] == wanted.get(f"resource.labels.{key}", labels[key]) for key in labels)
            if chosen and ready is not None and ready < end:
                points = _points(max(ready, start), start, end, period)
                resource = {"type": "cloud_run_revision", "labels": labels}
                series = {"metric": {"type": METRIC}, "resource": resource, "points": points}
                found.append((name, {**series, "metricKind": "DELTA", "valueType": "DOUBLE"}))
        return {**listing({}, "timeSeries", found), "unit": "s"}


def _ready_since(cloud: Cloud, service: str) -> datetime | None:
    """Return when the first revision of a service became ready, or None."""
    moments = [
        datetime.fromisoformat(str(condition["lastTransitionTime"]))
        for _, revision in cloud.store.under(REVISIONS, f"{service}/revisions/")
        for condition in revision.get("conditions") or ()
        if condition.get("type") == "Ready" and condition.get("state") == "CONDITION_SUCCEEDED"
    ]
    return min(moments, default=None)


def _read(call: Call) -> tuple[dict[str, str], datetime, datetime, timedelta]:
    """Return the filter, the interval and the period of a request. Raises CloudError for requests that Google or this local cloud rejects."""
    wanted = dict(_COMPARED.findall(str(call.query.get("filter") or "")))
    if "metric.type" not in wanted:
        raise CloudError.field("filter", "Field filter must hold a comparison of metric.type.")
    if wanted["metric.type"] != METRIC or not set(wanted) <= _KNOWN:
        raise CloudError.unimplemented(
            f"The local cloud only has the metric {METRIC}, with these filters: {', '.join(sorted(_KNOWN))}."
        )
    if call.query.get("aggregation.perSeriesAligner") != "ALIGN_SUM":
        raise CloudError.unimplemented("The local cloud only supports ALIGN_SUM.")
    if not call.query.get("interval.endTime"):
        raise CloudError.field("interval.end_time", "Field interval.endTime is required.")
    end = _moment(call, "interval.endTime")
    start = _moment(call, "interval.startTime") if call.query.get("interval.startTime") else end
    seconds = str(call.query.get("aggregation.alignmentPeriod") or "").removesuffix("s")
    if start > end or not seconds.isdecimal() or int(seconds) < 60:  # noqa: PLR2004 - discovery text of alignmentPeriod: "at least 60 seconds"
        raise CloudError.field(
            "aggregation.alignment_period",
            "The interval must not end before it starts, and the period be 60 s or more.",
        )
    return wanted, start, end, timedelta(seconds=int(seconds))


def _moment(call: Call, key: str) -> datetime:
    try:
        return datetime.fromisoformat(str(call.query[key])).astimezone(UTC)
    except ValueError:
        raise CloudError.field(key, f"Field {key} is not an RFC 3339 time.") from None


def _points(since: datetime, start: datetime, end: datetime, period: timedelta) -> list[JsonObject]:
    points: list[JsonObject] = []
    while end > start:
        begin = max(start, end - period)
        used_s = (end - max(begin, since)).total_seconds()
        if used_s > 0:
            interval = {"startTime": rfc3339(begin), "endTime": rfc3339(end)}
            points.append({"interval": interval, "value": {"doubleValue": used_s}})
        end = begin
    return points
