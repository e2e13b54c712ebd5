"""Cloud KMS v1: key rings, keys and their IAM policies. Nothing is encrypted here: the engine encrypts through gRPC, which the local cloud does not serve."""

from localcloud.json_values import JsonObject
from localcloud.rest.call import Call, Handler, check_id
from localcloud.rest.errors import CloudError
from localcloud.services.service import PolicyService, held_permissions, method
from localcloud.world.cloud import REGIONS, Cloud, project_policy

_RINGS, _KEYS = "cloudkms.keyRings", "cloudkms.cryptoKeys"
_ID = "[a-zA-Z0-9_-]{1,63}"
_MULTI_REGIONS = {"global", "us", "europe", "asia"}
_HOST = "//cloudkms.googleapis.com/"


def handlers(cloud: Cloud) -> dict[str, Handler]:
    """Return the methods of key rings and keys."""
    served = (_KeyRings(cloud), _CryptoKeys(cloud))
    return {name: handler for service in served for name, handler in service.handlers().items()}


class _Named(PolicyService):
    """Base of key rings and keys. They are permanent: the local cloud deletes neither, and Google did not until 2025."""

    kind: str
    what: str

    def find(self, call: Call) -> JsonObject:
        return self.stored(self.kind, call.name, f"{self.what} {call.name} not found.")

    @method("testIamPermissions")
    def test_iam_permissions(self, call: Call) -> JsonObject:
        """Return the caller's permissions, including those inherited from the ring and the project.

        "If the resource does not exist, this will return an empty set of permissions, not a `NOT_FOUND` error." (discovery: cloudkms.v1)
        """
        if not self._store.has(self.kind, call.name):
            return {}
        parts = call.name.split("/")
        chain = [_HOST + "/".join(parts[:end]) for end in range(len(parts), 5, -2)]
        held = held_permissions(self._cloud, call, [*chain, project_policy(parts[1])])
        return {"permissions": held} if held else {}

    def _created(self, call: Call, given: str | None, parameter: str, document: JsonObject) -> JsonObject:
        """Store a new document below the parent that the call names."""
        name = f"{call.name}/{self.kind.rpartition('.')[2]}/{check_id(given, parameter, _ID)}"
        if self._store.has(self.kind, name):
            raise CloudError.already_exists(f"{self.what} {name} already exists.")
        stored = {"name": name, **document, "createTime": self._cloud.timeline.stamp()}
        self._store.put(self.kind, name, stored)
        return stored


class _KeyRings(_Named):
    prefix = "cloudkms.projects.locations.keyRings"
    kind, what = _RINGS, "KeyRing"

    @method("create")
    def create(self, call: Call) -> JsonObject:
        """Create a key ring."""
        location = call.name.rpartition("/")[2]
        if location not in _MULTI_REGIONS and location not in REGIONS:
            raise CloudError.not_found(f"The request concerns location '{location}' but was sent to location 'global'.")
        return self._created(call, call.query.get("keyRingId"), "key_ring_id", {})


class _CryptoKeys(_Named):
    prefix = "cloudkms.projects.locations.keyRings.cryptoKeys"
    kind, what = _KEYS, "CryptoKey"

    @method("create")
    def create(self, call: Call) -> JsonObject:
        """Create a key and its first version, which is its primary one."""
        if not self._store.has(_RINGS, call.name):
            raise CloudError.not_found(f"KeyRing {call.name} not found.")
        purpose = call.body.get("purpose")
        if purpose != "ENCRYPT_DECRYPT":
            raise CloudError.invalid(f"The local cloud only creates keys of purpose ENCRYPT_DECRYPT, not {purpose}.")
        name = f"{call.name}/cryptoKeys/{call.query.get('cryptoKeyId')}"
        stamp, algorithm = self._cloud.timeline.stamp(), "GOOGLE_SYMMETRIC_ENCRYPTION"
        version = {
            "name": f"{name}/cryptoKeyVersions/1",
            "state": "ENABLED",
            "createTime": stamp,
            "algorithm": algorithm,
        }
        template = {"protectionLevel": "SOFTWARE", "algorithm": algorithm}
        document: JsonObject = {"primary": version, "purpose": purpose, "versionTemplate": template}
        return self._created(call, call.query.get("cryptoKeyId"), "crypto_key_id", document)
