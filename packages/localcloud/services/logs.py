"""Cloud Logging v2: writing and listing entries."""

from localcloud.json_values import JsonObject, parts, strings
from localcloud.rest import filters
from localcloud.rest.call import Call, Handler, page
from localcloud.rest.errors import CloudError
from localcloud.services.service import ApiService, method
from localcloud.world.cloud import Cloud

_ORDERS = ("timestamp asc", "timestamp desc")
_FIRST_MICROSECOND, _LAST_ENTRY = 10**20 - 1, 10**12 - 1


def handlers(cloud: Cloud) -> dict[str, Handler]:
    """Return the methods of entries."""
    return _LoggingMethods(cloud).handlers()


class _LoggingMethods(ApiService):
    prefix = "logging"

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
        matches = filters.matcher(call.body.get("filter") or "")
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
