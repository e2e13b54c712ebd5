"""Cloud Logging v2: log-based metrics, and writing and listing entries."""

from localcloud.json_values import JsonObject, part, parts, strings
from localcloud.rest import log_filters
from localcloud.rest.call import Call, Handler, page
from localcloud.rest.errors import CloudError
from localcloud.services.service import ApiService, listing, method
from localcloud.world.cloud import Cloud

_METRICS = "logging.metrics"
_ORDERS = ("timestamp asc", "timestamp desc")
_FIRST_MICROSECOND, _LAST_ENTRY = 10**20 - 1, 10**12 - 1


def handlers(cloud: Cloud) -> dict[str, Handler]:
    """Return the methods of metrics and entries."""
    return _Logging(cloud).handlers()


class _Logging(ApiService):
    prefix = "logging"

    @method("projects.metrics.create")
    def create_metric(self, call: Call) -> JsonObject:
        project = call.name.split("/")[1]
        document = _completed(call.body, project)
        name = f"projects/{project}/metrics/{document['name']}"
        if self._store.has(_METRICS, name):
            raise CloudError.already_exists(f"Metric {document['name']} already exists")
        now = self._cloud.timeline.stamp()
        return self._store.put(_METRICS, name, {**document, "createTime": now, "updateTime": now})

    @method("projects.metrics.get")
    def get_metric(self, call: Call) -> JsonObject:
        return self.stored(_METRICS, call.name, f"Metric {call.name.rpartition('/')[2]} does not exist")

    @method("projects.metrics.list")
    def list_metrics(self, call: Call) -> JsonObject:
        return listing(call.query, "metrics", self._store.under(_METRICS, call.name + "/metrics/"))

    @method("projects.metrics.update")
    def update_metric(self, call: Call) -> JsonObject:
        name = call.body.get("name") or call.name.rpartition("/")[2]
        document = _completed({**call.body, "name": name}, call.name.split("/")[1])
        now = self._cloud.timeline.stamp()
        created = (self._store.get(_METRICS, call.name) or {}).get("createTime", now)
        return self._store.put(_METRICS, call.name, {**document, "createTime": created, "updateTime": now})

    @method("projects.metrics.delete")
    def delete_metric(self, call: Call) -> JsonObject:
        self.get_metric(call)
        self._store.delete(_METRICS, call.name)
        return {}

    @method("entries.write")
    def write_entries(self, call: Call) -> JsonObject:
        shared = {
            "logName": call.body.get("logName") or "",
            "resource": call.body.get("resource") or {"type": "global"},
        }
        for entry in parts(call.body, "entries"):
            given = {key: value for key, value in entry.items() if value or key not in shared}
            self._cloud.logs.write({**shared, **given})
        return {}

    @method("entries.list")
    def list_entries(self, call: Call) -> JsonObject:
        order = call.body.get("orderBy") or _ORDERS[0]
        if order not in _ORDERS:
            raise CloudError.field("order_by", f"Invalid order_by '{order}': it must be one of {', '.join(_ORDERS)}.")
        names = tuple(f"{name}/" for name in strings(call.body, "resourceNames"))
        matches = log_filters.matcher(call.body.get("filter") or "")
        found = [
            item for item in self._cloud.logs.listed() if item[1]["logName"].startswith(names) and matches(item[1])
        ]
        if order == _ORDERS[1]:
            found = [(_reversed(key), entry) for key, entry in reversed(found)]
        size, token = call.body.get("pageSize"), call.body.get("pageToken")
        shown, following = page(found, size=size, token=token, default=50, maximum=1000)
        return {**({"entries": shown} if shown else {}), **({"nextPageToken": following} if following else {})}


def _reversed(key: str) -> str:
    """Return a key that sorts in reverse."""
    micros, _, number = key.partition("-")
    return f"{_FIRST_MICROSECOND - int(micros):020}-{_LAST_ENTRY - int(number):012}"


def _completed(body: JsonObject, project: str) -> JsonObject:
    """Return a metric with the fields that the service sets."""
    for field in ("name", "filter"):
        if not body.get(field):
            raise CloudError.field(f"metric.{field}", f"The metric's {field} must not be empty.")
    name = body["name"]
    given = {"metricKind": "DELTA", "valueType": "INT64", "unit": "1", **part(body, "metricDescriptor")}
    descriptor = {
        **given,
        "name": f"projects/{project}/metricDescriptors/logging.googleapis.com/user/{name}",
        "type": f"logging.googleapis.com/user/{name}",
    }
    return {**body, "metricDescriptor": descriptor, "resourceName": f"projects/{project}/metrics/{name}"}
