"""Cloud TPU v2alpha1: the catalogs of a zone: locations, accelerator types, runtime versions, reservations."""

from localcloud.json_values import JsonObject
from localcloud.rest.call import Call, Handler
from localcloud.rest.errors import CloudError
from localcloud.services import tpu_requests
from localcloud.services.service import ApiService, listing, method
from localcloud.world.cloud import Cloud


def handlers(cloud: Cloud) -> dict[str, Handler]:
    """Return the methods of the catalogs."""
    return _Catalog(cloud).handlers()


class _Catalog(ApiService):
    prefix = "tpu.projects.locations"

    @method("get")
    def get_location(self, call: Call) -> JsonObject:
        zone, _ = tpu_requests.zone_of(self._cloud, call.name)
        return _location(call, zone)

    @method("list")
    def list_locations(self, call: Call) -> JsonObject:
        return _listed(call, "locations", [_location(call, zone) for zone in self._cloud.scenario.tpu.zones])

    @method("acceleratorTypes.get")
    def get_accelerator_type(self, call: Call) -> JsonObject:
        return _only(self._accelerator_types(call), call.name)

    @method("acceleratorTypes.list")
    def list_accelerator_types(self, call: Call) -> JsonObject:
        return _listed(call, "acceleratorTypes", self._accelerator_types(call))

    @method("runtimeVersions.get")
    def get_runtime_version(self, call: Call) -> JsonObject:
        return _only(self._runtime_versions(call), call.name)

    @method("runtimeVersions.list")
    def list_runtime_versions(self, call: Call) -> JsonObject:
        return _listed(call, "runtimeVersions", self._runtime_versions(call))

    @method("reservations.list")
    def list_reservations(self, call: Call) -> JsonObject:
        tpu_requests.zone_of(self._cloud, call.name)
        return {}

    def _accelerator_types(self, call: Call) -> list[JsonObject]:
        _, zone = tpu_requests.zone_of(self._cloud, call.name)
        return [tpu_requests.accelerator_document(call.location, kind) for kind in zone.accelerator_types]

    def _runtime_versions(self, call: Call) -> list[JsonObject]:
        tpu_requests.zone_of(self._cloud, call.name)
        return [
            {"name": f"{call.location}/runtimeVersions/{version}", "version": version}
            for version in self._cloud.scenario.tpu.runtime_versions
        ]


def _location(call: Call, zone: str) -> JsonObject:
    return {"name": f"projects/{call.name.split('/')[1]}/locations/{zone}", "locationId": zone}


def _listed(call: Call, key: str, items: list[JsonObject]) -> JsonObject:
    return listing(call.query, key, sorted(((str(item["name"]), item) for item in items), key=lambda pair: pair[0]))


def _only(items: list[JsonObject], name: str) -> JsonObject:
    for item in items:
        if item["name"] == name:
            return item
    raise CloudError.not_found(f"Resource '{name}' was not found.")
