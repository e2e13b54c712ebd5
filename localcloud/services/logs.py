"""Cloud Logging v2: log-based metrics, and entries that are written and listed."""

from localcloud.json_values import JsonObject, part, parts, strings
from localcloud.rest import filters
from localcloud.rest.call import Call, Handler, page
from localcloud.rest.errors import CloudError
from localcloud.services.common import with_token
from localcloud.world.cloud import Cloud

_METRICS, _ENTRIES = "logging.metrics", "logging.entries"
_MAX_ENTRIES = 1000


def handlers(cloud: Cloud) -> dict[str, Handler]:  # noqa: C901 - small functions side by side, one a method
    """Methods of metrics and entries."""
    store = cloud.store

    def project_of(call: Call) -> str:
        return call.name.split("/")[1]

    def metric(call: Call) -> tuple[str, JsonObject]:
        document = store.get(_METRICS, call.name)
        if document is None:
            raise CloudError.not_found(f"Metric {call.name.rpartition('/')[2]} does not exist")
        return call.name, document

    def completed(body: JsonObject, project: str) -> JsonObject:
        if not body.get("name"):
            raise CloudError.field("metric.name", "The metric's name must be given.")
        if not body.get("filter"):
            raise CloudError.field("metric.filter", "The metric's filter must not be empty.")
        name = body["name"]
        given = {"metricKind": "DELTA", "valueType": "INT64", "unit": "1", **part(body, "metricDescriptor")}
        descriptor = {
            **given,
            "name": f"projects/{project}/metricDescriptors/logging.googleapis.com/user/{name}",
            "type": f"logging.googleapis.com/user/{name}",
        }
        return {**body, "metricDescriptor": descriptor, "resourceName": f"projects/{project}/metrics/{name}"}

    def create(call: Call) -> JsonObject:
        project = project_of(call)
        document = completed(call.body, project)
        name = f"projects/{project}/metrics/{document['name']}"
        if store.has(_METRICS, name):
            raise CloudError.already_exists(f"Metric {document['name']} already exists")
        now = cloud.timeline.stamp()
        return store.put(_METRICS, name, {**document, "createTime": now, "updateTime": now})

    def read(call: Call) -> JsonObject:
        return metric(call)[1]

    def listed(call: Call) -> JsonObject:
        metrics, following = page(
            store.under(_METRICS, call.name + "/metrics/"),
            size=call.query.get("pageSize"),
            token=call.query.get("pageToken"),
        )
        return with_token({"metrics": metrics}, following)

    def update(call: Call) -> JsonObject:
        known = store.get(_METRICS, call.name)
        now = cloud.timeline.stamp()
        document = completed(
            {**call.body, "name": call.body.get("name") or call.name.rpartition("/")[2]}, project_of(call)
        )
        return store.put(
            _METRICS, call.name, {**document, "createTime": known["createTime"] if known else now, "updateTime": now}
        )

    def delete(call: Call) -> JsonObject:
        store.delete(_METRICS, metric(call)[0])
        return {}

    def write(call: Call) -> JsonObject:
        for entry in parts(call.body, "entries"):
            log_name = entry.get("logName") or call.body.get("logName") or ""
            full = {
                **entry,
                "logName": log_name,
                "resource": entry.get("resource") or call.body.get("resource") or {"type": "global"},
            }
            full.setdefault("timestamp", cloud.timeline.stamp())
            store.put(_ENTRIES, f"{store.count_up(_ENTRIES):012}", full)
        for name, _ in store.under(_ENTRIES)[:-_MAX_ENTRIES]:
            store.delete(_ENTRIES, name)
        return {}

    def entries(call: Call) -> JsonObject:
        names = tuple(f"{name}/" for name in strings(call.body, "resourceNames"))
        found = [(key, entry) for key, entry in store.under(_ENTRIES) if entry["logName"].startswith(names)]
        chosen, following = page(
            filters.chosen(found, call.body.get("filter")),
            size=call.body.get("pageSize"),
            token=call.body.get("pageToken"),
            default=50,
        )
        return with_token({"entries": chosen}, following)

    prefix = "logging.projects.metrics"
    return {
        f"{prefix}.create": create,
        f"{prefix}.get": read,
        f"{prefix}.list": listed,
        f"{prefix}.update": update,
        f"{prefix}.delete": delete,
        "logging.entries.write": write,
        "logging.entries.list": entries,
    }
